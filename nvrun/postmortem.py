"""A failed job's hosts, looked at once more: which of them failed. Only where another attempt may follow."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.checks.failed import failed
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Crew
from nvrun.job import Job
from nvrun.model import Finding, RunResult
from nvrun.preflight import Decided, context
from nvrun.prepare import facts_requests
from nvrun.replacement import BY_A_HOST

_SECONDS = 15.0
"""A driver that hangs answers nothing: that is known after the probe's own deadlines."""


def look_again(
    job: Job, crew: Crew, decided: Decided, before: Mapping[int, HostFacts], result: RunResult
) -> dict[str, Finding]:
    """Host -> what shows that it failed, of those that still answer."""
    if not job.options.node_restarts or not result.began or result.ended_by not in BY_A_HOST:
        return {}
    requests = {host: each for host, each in facts_requests(job, decided.plan).items() if host not in crew.gone}
    after = crew.facts_again(requests, _SECONDS)
    return failed(
        {each.host: each for each in before.values()},
        {each.host: each for each in after.values()},
        context(decided.plan, job),
        decided.verdict.findings,
        result.ranks,
    )
