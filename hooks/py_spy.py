"""The Python stacks of ranks that still live, taken by py-spy before a failed or ended job is told to end.

rankN.py-spy.txt among the logs. Needs py-spy on the hosts, on PATH or beside the job's interpreter; where it is missing
that is said before the launch, and the job runs all the same.
"""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Mapping
from typing import Annotated, Literal

from nvrun.facts import HostFacts
from nvrun.hooks import Contribution, Frozen, Job, LastCommand, Option, asked, chosen
from nvrun.options import ranks, seconds, switch
from nvrun.plan import HostPlan, Plan

_FIND = 'PATH="$PATH:$1"; shift; '


class Options(Frozen, frozen=True, kw_only=True):
    ranks: Annotated[tuple[int, ...] | Literal["all"], Option(ranks, "all|RANKS", "whose stacks")] = "all"
    native: Annotated[bool, Option(switch, "true|false", "with frames of C and C++")] = False
    locals: Annotated[bool, Option(switch, "true|false", "with local variables: they may hold secrets")] = False
    timeout: Annotated[float, Option(seconds, "SECONDS", "what it may take; the grace goes on meanwhile")] = 10.0


def contribute(plan: Plan, facts: Mapping[int, HostFacts], options: Options) -> Contribution:
    flags = [*(["--native"] if options.native else []), *(["--locals"] if options.locals else [])]
    return Contribution(
        last={
            rank: (
                LastCommand(
                    name="py-spy.txt",
                    argv=("sh", "-c", _FIND + 'exec py-spy dump "$@"', "sh", _beside(host), "--pid", "{pid}", *flags),
                    seconds=options.timeout,
                ),
            )
            for host, rank in chosen(plan, options.ranks)
        }
    )


def around(job: Job, options: Options) -> Generator[None, None, None]:
    hosts = {host.host.name for host, _ in asked(job.plan, options.ranks)}
    for name, done in job.on_hosts(
        ["sh", "-c", 'PATH="$PATH:${NVRUN_PYTHON%/*}"; command -v py-spy'], hosts=hosts, timeout=10.0
    ).items():
        if not done.ok:
            job.warn(f"py-spy is not installed on {name}: no stacks from there", host=name)
            job.say(job.findings[-1].message)
    yield


def _beside(host: HostPlan) -> str:
    """Where the job's interpreter lies."""
    return posixpath.dirname(host.argv[0])
