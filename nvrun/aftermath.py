"""After a failure: the hosts that it concerns are looked at once more -> what is no longer as it was at the launch, and
where another attempt may follow, which hosts failed.

Facts are read again, and compared. Where a rank waited for a peer, or lost one, the hosts connect to each other again,
as in the preflight: a firewall that closed meanwhile shows there, and in no log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from nvrun import preflight
from nvrun.active import network, run
from nvrun.active.clock import Clock
from nvrun.active.places import places
from nvrun.checks.failed import failed
from nvrun.checks.grown import LOOKED_AT, growth
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import Source, scan
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Crew
from nvrun.job import Job
from nvrun.model import Finding, RunResult, Severity
from nvrun.plan import Plan
from nvrun.preflight import Before
from nvrun.prepare import facts_requests

MOST_HOSTS = 8
"""Whose facts are read again: those of the ranks that failed first."""
MOST_CONNECTED = 32
"""Hosts that connect to each other again, likewise."""
LOOK_SECONDS = 20.0
"""A wedged GPU driver is waited for (18 s in agent/probe): that it is, is worth knowing. Hosts that are well answer
at once."""
CONNECT_SECONDS = 10.0
"""For all of that: the user waits for the page."""
_WAITED = (Stage.NETWORK, Stage.TIMEOUT, Stage.CONSEQUENCE)


class Aftermath(NamedTuple):
    """What is known of hosts that still answer."""

    looked_at: Collection[int]
    changed: tuple[Finding, ...]
    failed: Mapping[str, Finding]
    """Host -> what shows that it failed; looked for only where --node-restarts may do without it."""


def look(crew: Crew, job: Job, before: Before, result: RunResult) -> Aftermath:
    """Reads the facts of the hosts concerned once more: of all, and whole, where a host may have to be replaced."""
    concerned, asked = _concerned(before.plan, result, crew), crew.signals
    requests = facts_requests(job, before.plan)
    replaceable = job.options.node_restarts > 0
    wanted = concerned if replaceable else concerned[:MOST_HOSTS]
    sections = {} if replaceable else {"sections": LOOKED_AT}
    now = crew.facts_again({host: {**requests[host], **sections} for host in wanted}, LOOK_SECONDS)
    found = [finding for host in now for finding in growth(before.facts[host], now[host])]
    if job.options.check != "off" and crew.signals == asked and waited_for_a_peer(result):
        found += _unconnected(crew, job, before, concerned[:MOST_CONNECTED])
    return Aftermath(now.keys(), tuple(found), _failed(job, before, now, result) if replaceable else {})


def _failed(job: Job, before: Before, now: Mapping[int, HostFacts], result: RunResult) -> dict[str, Finding]:
    return failed(
        {each.host: each for each in before.facts.values()},
        {each.host: each for each in now.values()},
        preflight.context(before.placed, job),
        before.verdict.findings,
        result.ranks,
    )


def _concerned(plan: Plan, result: RunResult, crew: Crew) -> list[int]:
    """Hosts that still answer, those of the ranks that failed first."""
    nodes = {host.host.name: host.node for host in plan.hosts}
    failed = sorted((end for end in result.ranks if end.failed), key=lambda end: end.at or 0.0)
    order = dict.fromkeys([*(nodes[end.host] for end in failed if end.host in nodes), *nodes.values()])
    return [node for node in order if node not in crew.gone | crew.silent]


def waited_for_a_peer(result: RunResult) -> bool:
    """Whether the last words of a rank that failed tell of a peer that did not answer, or was gone. Pure."""
    return result.ended_by == "hang" or any(
        match.stage in _WAITED for end in result.ranks if end.failed for match in scan(Source("last words", end.tail))
    )


def _unconnected(crew: Crew, job: Job, before: Before, hosts: Sequence[int]) -> Iterator[Finding]:
    """What the preflight's connections find now and did not find then."""
    facts = {host: before.facts[host] for host in hosts}
    there, _ = places(facts, preflight.context(before.placed, job), before.plan.master_addr)
    if len(there) < 2:
        return
    measured = network.connected(crew, there, Clock(CONNECT_SECONDS))
    known = {(finding.code, finding.host, finding.subject) for finding in before.verdict.findings}
    for finding in run.of_network(measured, there, bare_metal=False).findings:
        if finding.severity >= Severity.ERROR and (finding.code, finding.host, finding.subject) not in known:
            yield finding
