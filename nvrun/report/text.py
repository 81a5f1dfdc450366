"""Lines for a terminal. Pure: values in, text out."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nvrun.model import RunResult, worst_first
from nvrun.plan import Plan


def plan_lines(plan: Plan, folder: str) -> Iterator[str]:
    """What is about to run, in two lines."""
    layout = ", ".join(f"{host.host.name} x{len(host.ranks)}" for host in plan.hosts[:8])
    more = f" and {len(plan.hosts) - 8} more" if len(plan.hosts) > 8 else ""
    where = "" if plan.master_addr is None else f", rendezvous {plan.master_addr} port {plan.master_port}"
    yield f"nvrun: {plan.world_size} rank{'s'[: plan.world_size > 1]} on {layout}{more}{where}"
    yield f"nvrun: plan and logs in {folder}"


def result_lines(result: RunResult, folder: str) -> Iterator[str]:
    """How it ended; nothing where there is nothing to say."""
    for finding in worst_first(result.findings):
        yield f"nvrun: {finding.message}"
        if finding.remedy:
            yield f"nvrun:   {finding.remedy}"
    first = result.first_failure
    if first:
        yield f"nvrun: rank {first.rank} on {first.host} (local rank {first.local_rank}) {ended(first.code)}"
        yield from (f"    {line}" for line in first.tail)
    elif result.message:
        yield f"nvrun: {result.message}"
    for host, dropped in sorted(result.console_dropped.items()):
        yield f"nvrun: {dropped} bytes of {host}'s output were not shown here; its files in {folder} have them"
    for place in result.not_fetched:
        yield f"nvrun: logs that could not be brought back: {place}"


def ended(code: int | None) -> str:
    """An exit status in words: `exited with 37`, `was killed by SIGKILL`."""
    if code is None:
        return "ended, nobody saw how"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
