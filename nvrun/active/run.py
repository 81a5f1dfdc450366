"""All tests between the hosts of a job, by the level that was asked for, judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nvrun import checks
from nvrun.active import folders, network
from nvrun.active.clock import Clock
from nvrun.active.places import Place, places
from nvrun.checks import connections, shared
from nvrun.checks.rendezvous import rendezvous
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Crew
from nvrun.fleet.session import Body
from nvrun.job import Job
from nvrun.model import Finding, Frozen, Skipped, Verdict
from nvrun.plan import Plan

REACH_SECONDS = 2.5
"""A SYN is sent again after 1 s (tcp(7)): silence for longer than two of them is no lost packet."""
LISTEN_SECONDS = 60.0
"""torchrun imports torch before it listens; from a cold file server that takes long."""
TIMEOUTS = {"quick": 60.0, "full": 60.0, "deep": 300.0}
"""Seconds for all checks where --check-timeout does not say it, by --check."""


class Outcome(Frozen, frozen=True, kw_only=True):
    """What was tried between hosts, and the verdict on it."""

    verdict: Verdict = Verdict()
    network: network.Measured = network.Measured()


def clock_of(job: Job) -> Clock:
    """Starts now."""
    return Clock(job.options.check_timeout or TIMEOUTS.get(job.options.check, 60.0))


def tests(
    crew: Crew, job: Job, plan: Plan, context: checks.Job, facts: Mapping[int, HostFacts], clock: Clock
) -> Outcome:
    """All that the job's level asks for. `plan` and `context`: as placed. Ended where it all ended meanwhile."""
    options = job.options
    if options.check == "off":
        return Outcome()
    parts: list[Verdict] = []
    measured = network.Measured()
    if len(crew.hosts) > 1 and options.check != "quick":
        there, skipped = places(facts, context, plan.master_addr)
        parts.append(Verdict(skipped=skipped))
        if len(there) > 1:
            measured = network.measure(crew, there, clock, deep=options.check == "deep")
            parts.append(of_network(measured, there, bare_metal=options.latency == "bare-metal"))
    if len(crew.hosts) > 1 and options.require_path:
        parts.append(_shared(crew, job, clock))
    if len(crew.hosts) > 1 and options.check_ssh_mesh:
        parts.append(_ssh(crew, job, clock))
    parts.append(_reach(crew, plan, clock))  # last: torchrun listens only after it has imported torch
    verdict = Verdict(
        findings=tuple(finding for part in parts for finding in part.findings),
        skipped=tuple(skipped for part in parts for skipped in part.skipped),
        judged=tuple(name for part in parts for name in part.judged),
    )
    return Outcome(verdict=verdict, network=measured)


def of_network(measured: network.Measured, places: Mapping[int, Place], *, bare_metal: bool) -> Verdict:
    """The verdict on what was measured. Pure."""
    tried = measured.tried
    addresses = {place.name: place.address for place in places.values()}
    speeds = {place.name: place.gbps for place in places.values() if place.gbps}
    findings = [
        *connections.ports(tried, addresses, measured.ranges),
        *connections.stalls(tried),
        *connections.path_mtu(tried),
        *connections.latency(measured.latency, measured.busy, bare_metal=bare_metal),
        *connections.bandwidth(measured.rates, measured.busy, speeds),
    ]
    judged = {
        "connections": bool(tried),
        "path-mtu": any(seen.mtu for seen in tried.values()),
        "latency": any(not set(each.pair) & set(measured.busy) for each in measured.latency),
        "bandwidth": any(not set(each.pair) & set(measured.busy) for each in measured.rates),
    }
    return Verdict(
        findings=tuple(findings),
        skipped=(*measured.skipped, *_not_judged(measured)),
        judged=tuple(name for name, holds in judged.items() if holds),
    )


def _not_judged(measured: network.Measured) -> Iterator[Skipped]:
    for host, reason in measured.busy.items():
        yield Skipped(code="latency", host=host, reason=f"a busy host: {reason}")
        if measured.rates:
            yield Skipped(code="bandwidth", host=host, reason=f"a busy host: {reason}")
    if pairs := connections.without_udp(measured.tried):
        deaf = connections.of_hosts(pairs)
        yield Skipped(code="path-mtu", host=None, reason=f"UDP does not come through between {deaf}")


def _reach(crew: Crew, plan: Plan, clock: Clock) -> Verdict:
    """Every other host connects to the rendezvous port, once somebody listens there.

    A refusal counts only after the first host's own kernel shows the listener; silence at any time.
    """
    name = "rendezvous-reached"
    others = [host for host in crew.hosts if host]
    if not others or plan.master_addr is None or plan.master_port is None:
        return Verdict()
    first = plan.hosts[0].host.name
    listening = crew.heard([0], "listening", max(0.0, min(LISTEN_SECONDS, clock.left)))
    if not listening and clock.left <= 0:
        return Verdict(skipped=(Skipped(code=name, host=None, reason=clock.reason),))
    address, port = plan.master_addr, plan.master_port
    body: Body = {"t": "reach", "targets": [[address, port]], "timeout": REACH_SECONDS}
    answers = crew.ask(dict.fromkeys(others, body), "reach", REACH_SECONDS + 5.0)
    results = {
        crew.names[host]: answer["trouble"] or answer["result"][f"{address} {port}"]
        for host, (answer, _) in answers.items()
    }
    found = rendezvous(results, server=first, address=address, port=port, listening=bool(listening))
    return Verdict(findings=tuple(found), judged=(name,))


def _shared(crew: Crew, job: Job, clock: Clock) -> Verdict:
    name, wanted = "folders-shared", job.options.require_path
    tokens = folders.share(crew, wanted, job.cwd, clock)
    skipped = [Skipped(code=name, host=None, reason=clock.reason)] if len(tokens) < len(set(wanted)) else []
    return Verdict(findings=tuple(shared.folders(tokens)), skipped=tuple(skipped), judged=(name,) if tokens else ())


def _ssh(crew: Crew, job: Job, clock: Clock) -> Verdict:
    name = "ssh-between-hosts"
    if clock.left <= 0:
        return Verdict(skipped=(Skipped(code=name, host=None, reason=clock.reason),))
    found: list[Finding] = list(shared.ssh_mesh(folders.log_in(crew, job.hosts)))
    return Verdict(findings=tuple(found), judged=(name,))
