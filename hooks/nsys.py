"""A report of Nsight Systems from chosen ranks, or one for each host.

nsys/<host>.rankN.nsys-rep (or <host>.nsys-rep) among the logs. Where nsys is not installed the run does not start, and
that is said. The report is finalised before a rank is killed: by `nsys stop` when the job fails or is ended, within
the grace. `capture=api` waits for the program's cudaProfilerStart; `capture=steps` makes those calls itself, counted by
the optimizer's steps. From NVIDIA's documentation; see hooks/README.md for what was run.
"""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Mapping, Sequence
from typing import Annotated, Literal

from nvrun.facts import HostFacts
from nvrun.hooks import Contribution, Frozen, HookFailed, Job, LastCommand, Option, asked, chosen, inside, log_folder
from nvrun.options import choice, ranks, text
from nvrun.plan import HostPlan, Plan
from nvrun.rundir import file_name

FOLDER = "nsys"
FINALISE_SECONDS = 60.0


def steps(value: str) -> tuple[int, int]:
    """`10-20` -> first and last step, from 1."""
    first, dash, last = value.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or not 2 <= int(first) <= int(last):
        raise ValueError("FIRST-LAST, optimizer steps from 2")
    return int(first), int(last)


class Options(Frozen, frozen=True, kw_only=True):
    per: Annotated[
        Literal["rank", "host"], Option(choice("rank", "host"), "rank|host", "one report a rank, or one a host")
    ] = "rank"
    ranks: Annotated[
        tuple[int, ...] | Literal["all"], Option(ranks, "all|RANKS", "who is profiled; with per=host: whose hosts")
    ] = (0,)
    capture: Annotated[
        Literal["all", "api", "steps"],
        Option(
            choice("all", "api", "steps"), "all|api|steps", "the whole program, cudaProfilerStart to Stop, or steps"
        ),
    ] = "all"
    steps: Annotated[tuple[int, int], Option(steps, "FIRST-LAST", "with capture=steps: which")] = (10, 15)
    trace: Annotated[str, Option(text, "LIST", "what nsys traces")] = "cuda,nvtx,osrt,cudnn,cublas"


def contribute(plan: Plan, facts: Mapping[int, HostFacts], options: Options) -> Contribution:
    wanted = chosen(plan, options.ranks)
    each = options.per == "rank"
    # One report a host ends once, however many of its ranks were chosen.
    first = {host.node: rank for host, rank in reversed(wanted)}
    return Contribution(
        prefix={
            rank: (*(_profile(plan, host, rank, options) if each else ()), *_enter(plan, host, options))
            for host, rank in wanted
        },
        last={
            rank: (_stop(_session(plan, host, rank if each else None)),)
            for host, rank in wanted
            if each or first[host.node] == rank
        },
    )


def _stop(session: str) -> LastCommand:
    return LastCommand(name="nsys.txt", argv=("nsys", "stop", f"--session={session}"), seconds=FINALISE_SECONDS)


def wrap(plan: Plan, options: Options) -> Mapping[int, Sequence[str]]:
    if options.per == "rank":
        return {}
    return {host.node: _profile(plan, host, None, options) for host, _ in chosen(plan, options.ranks)}


def _profile(plan: Plan, host: HostPlan, rank: int | None, options: Options) -> tuple[str, ...]:
    name = file_name(host.host.name) + ("" if rank is None else f".rank{rank}")
    # -w true: the program's output is shown; -s cpu: CPU samples; the file names are unique by host and rank.
    argv = ["nsys", "profile", "-w", "true", "-t", options.trace, "-s", "cpu", "-f", "true",
            "-o", posixpath.join(log_folder(host, plan), FOLDER, name),
            f"--session-new={_session(plan, host, rank)}"]  # fmt: skip
    if options.capture != "all":
        argv += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return tuple(argv)


def _session(plan: Plan, host: HostPlan, rank: int | None) -> str:
    """nsys takes a letter first, then letters, digits and dashes."""
    return f"nvrun-{plan.run_id}-" + (f"node{host.node}" if rank is None else f"rank{rank}")


def _enter(plan: Plan, host: HostPlan, options: Options) -> tuple[str, ...]:
    if options.capture != "steps":
        return ()
    first, last = options.steps
    return inside.prefix(plan, host, FOLDER, "NVRUN_CUDA_RANGE", {"first": first, "last": last})


def around(job: Job, options: Options) -> Generator[None, None, None]:
    wanted = asked(job.plan, options.ranks)
    if not wanted:
        yield
        return
    hosts = {host.host.name for host, _ in wanted}
    looked = job.on_hosts(["sh", "-c", f'command -v nsys && mkdir -p "$NVRUN_FOLDER/{FOLDER}"'], hosts=hosts)
    missing = [name for name, done in looked.items() if not done.ok]
    if missing:
        raise HookFailed(f"nsys is not on PATH on {', '.join(missing)}")
    if options.capture == "steps":
        inside.put(job, FOLDER, hosts)
    yield
    for name, files in inside.take_away(job, FOLDER, hosts).items():
        if not any(file.endswith(".nsys-rep") for file in files):
            job.warn(f"nsys left no report on {name}", host=name)
