"""A trace of torch.profiler from chosen ranks, without a change to the script.

Steps are counted by the optimizer's own steps. Behind the first step come `wait` steps, `warmup` steps that are
profiled and thrown away, and `active` steps that are kept: torch-profiler/rankN.pt.trace.json.gz among the logs, for
TensorBoard, Perfetto or chrome://tracing. It enters the rank's interpreter by PYTHONPATH and leaves it at once; the
site's own sitecustomize runs as always. A rank run with -I, -E or -S is not entered; that shows as a missing trace. In
a script that uses torch.profiler itself the script's own goes first, and this one is off from there on.
"""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Mapping
from typing import Annotated, Literal

from nvrun.facts import HostFacts
from nvrun.hooks import Contribution, Frozen, Job, Option, asked, chosen, inside, log_folder
from nvrun.options import ranks, switch, whole
from nvrun.plan import HostPlan, Plan

FOLDER = "torch-profiler"


class Options(Frozen, frozen=True, kw_only=True):
    ranks: Annotated[tuple[int, ...] | Literal["all"], Option(ranks, "all|RANKS", "who is profiled")] = (0,)
    wait: Annotated[int, Option(whole, "N", "steps before it begins")] = 3
    warmup: Annotated[int, Option(whole, "N", "steps that are profiled and thrown away")] = 2
    active: Annotated[int, Option(whole, "N", "steps that are kept")] = 5
    repeat: Annotated[int, Option(whole, "N", "how often, a file each")] = 1
    stack: Annotated[bool, Option(switch, "true|false", "with Python stacks: slower")] = False
    memory: Annotated[bool, Option(switch, "true|false", "with allocations")] = False
    shapes: Annotated[bool, Option(switch, "true|false", "with the shapes of operands")] = False


def contribute(plan: Plan, facts: Mapping[int, HostFacts], options: Options) -> Contribution:
    return Contribution(
        prefix={
            rank: inside.prefix(plan, host, FOLDER, "NVRUN_TORCH_PROFILER", _wish(host, plan, rank, options))
            for host, rank in chosen(plan, options.ranks)
        }
    )


def _wish(host: HostPlan, plan: Plan, rank: int, options: Options) -> dict[str, object]:
    said = ("wait", "warmup", "active", "repeat", "stack", "memory", "shapes")
    return {
        "rank": rank,
        "folder": posixpath.join(log_folder(host, plan), FOLDER),
        **{name: getattr(options, name) for name in said},
    }


def around(job: Job, options: Options) -> Generator[None, None, None]:
    wanted = asked(job.plan, options.ranks)
    if not wanted:
        yield
        return
    hosts = {host.host.name for host, _ in wanted}
    inside.put(job, FOLDER, hosts)
    yield
    there = inside.take_away(job, FOLDER, hosts)
    for host, rank in wanted:
        names = there.get(host.host.name)
        if names is None or any(name.startswith(f"rank{rank}.") for name in names):
            continue
        steps = 1 + options.wait + options.warmup
        why = f"it made at most {steps} optimizer steps, was killed, or its interpreter was not entered"
        if f"own.rank{rank}" in names:
            why = "the script profiles itself"
        job.warn(f"torch-profiler: no trace of rank {rank}: {why}", host=host.host.name)
