"""All tests between the hosts of a job, by the level that was asked for, judged."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from nvrun import checks
from nvrun.active import folders, network, smoke
from nvrun.active.clock import Clock
from nvrun.active.places import Place, places
from nvrun.agent import netprobe
from nvrun.checks import collectives, connections, shared
from nvrun.checks.blame import Edge
from nvrun.checks.rendezvous import by_subnet, closed_everywhere, rendezvous
from nvrun.facts import HostFacts
from nvrun.fleet.crew import MUTE_AFTER, Crew
from nvrun.fleet.session import Body
from nvrun.job import Job
from nvrun.model import Finding, Frozen, Severity, Skipped, Verdict
from nvrun.plan import Plan
from nvrun.prepare import nearest_address

REACH_SECONDS = 2.5
"""A SYN is sent again after 1 s (tcp(7)): silence for longer than two of them is no lost packet."""
LISTEN_SECONDS = 60.0
"""torchrun imports torch before it listens; from a cold file server that takes long."""
_MOMENT = 0.1
"""Seconds for the answer of a host that listens already."""
_MTU = 1500
"""What is tried where nothing is known of a host's interface: every Ethernet takes it."""
TIMEOUTS = {"quick": 60.0, "full": 60.0, "deep": 300.0}
"""Seconds for all checks where --check-timeout does not say it, by --check."""


class Outcome(Frozen, frozen=True, kw_only=True):
    """What was tried between hosts, and the verdict on it."""

    verdict: Verdict = Verdict()
    network: network.Measured = network.Measured()
    collectives: smoke.Rounds = smoke.Rounds()


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
    if crew.mute:
        return Outcome(verdict=_mute(crew, plan))
    parts: list[Verdict] = []
    reached = _Reach(crew, plan)
    reached.begin()
    measured = network.Measured()
    there: Mapping[int, Place] = {}
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
    parts.append(reached.finish(clock, {host: place.subnet for host, place in there.items()}, measured.tried))
    rounds = smoke.Rounds()
    if options.check == "deep" and not any(
        finding.severity >= Severity.FATAL for part in parts for finding in part.findings
    ):
        used = {host.node: len(context.gpus.get(host.host.name, ())) for host in plan.hosts}
        rounds = smoke.smoke(crew, plan, there, used, clock)
        parts.append(of_smoke(rounds, facts))
    elif options.check == "deep":
        parts.append(Verdict(skipped=(Skipped(code="collectives", host=None, reason="hosts do not reach each other"),)))
    verdict = Verdict(
        findings=tuple(finding for part in parts for finding in part.findings),
        skipped=tuple(skipped for part in parts for skipped in part.skipped),
        judged=tuple(name for part in parts for name in part.judged),
    )
    return Outcome(verdict=verdict, network=measured, collectives=rounds)


def of_smoke(rounds: smoke.Rounds, facts: Mapping[int, HostFacts]) -> Verdict:
    """The verdict on the collective test. Pure."""
    gpus = {known.host: known.gpus or () for known in facts.values()}
    skipped = [Skipped(code="collectives", host=None, reason=rounds.untried)] if rounds.untried else []
    return Verdict(
        findings=tuple(collectives.judge(rounds.first, rounds.second, gpus)),
        skipped=tuple(skipped),
        judged=("collectives",) if rounds.first else (),
    )


def of_network(measured: network.Measured, places: Mapping[int, Place], *, bare_metal: bool) -> Verdict:
    """The verdict on what was measured. Pure."""
    tried = measured.tried
    addresses = {place.name: place.address for place in places.values()}
    subnets = {place.name: place.subnet for place in places.values()}
    speeds = {place.name: place.gbps for place in places.values() if place.gbps}
    findings = [
        *connections.ports(tried, addresses, measured.ranges, subnets),
        *connections.stalls(tried),
        *connections.path_mtu(tried),
        *connections.latency(measured.latency, measured.busy, bare_metal=bare_metal),
        *connections.bandwidth(measured.rates, measured.busy, speeds),
    ]
    judged = {
        "connections": bool(tried),
        "path-mtu": any(seen.mtu for seen in tried.values()),
        "latency": bool(measured.latency),
        "bandwidth": any(not set(each.pair) & set(measured.busy) for each in measured.rates),
    }
    return Verdict(
        findings=tuple(findings),
        skipped=(*measured.skipped, *_not_judged(measured, bare_metal)),
        judged=tuple(name for name, holds in judged.items() if holds),
    )


def _not_judged(measured: network.Measured, bare_metal: bool) -> Iterator[Skipped]:
    for host, reason in measured.busy.items():
        if bare_metal:
            yield Skipped(code="latency", host=host, reason=reason)
        if measured.rates:
            yield Skipped(code="bandwidth", host=host, reason=reason)
    if pairs := connections.without_udp(measured.tried):
        deaf = connections.of_hosts(pairs)
        yield Skipped(code="path-mtu", host=None, reason=f"UDP does not come through between {deaf}")


def _mute(crew: Crew, plan: Plan) -> Verdict:
    """Hosts that are heard no more, looked at from here and from a host that is well; nothing else is tried then."""
    known = {host: [address for _, address in body["addresses"]] for host, body in crew.hello.items()}
    well = next((host for host in crew.hosts if host not in crew.mute), None)
    found = []
    for host in sorted(crew.mute):
        address = nearest_address(known[host], plan.master_addr or next(iter(known[host]), "127.0.0.1"))
        request: Body = {"address": address, "mtu": _MTU}
        sounded = {"here": (_MTU, netprobe.sound(request))}
        if well is not None and not 0 < sounded["here"][1] < _MTU:
            body: Body = {"t": "test", "test": "sounding", "request": request, "deadline": 6.0, "answer": "sounding"}
            answer = crew.ask({well: body}, "sounding", 8.0)[well][0]
            sounded[crew.names[well]] = (_MTU, answer["result"] or 0)
        found.append(connections.fallen_silent(crew.names[host], MUTE_AFTER, sounded))
    reason = f"{', '.join(crew.names[host] for host in sorted(crew.mute))} fell silent"
    return Verdict(findings=tuple(found), skipped=(Skipped(code="connections", host=None, reason=reason),))


def _talk(tried: Mapping[Edge, connections.Tried]) -> bool:
    """Whether all hosts reach each other on other ports."""
    return bool(tried) and not any(answer for seen in tried.values() for answer in seen.ports.values())


class _Reach:
    """Every other host connects to the rendezvous port, once somebody listens there.

    A refusal counts only after the first host's own kernel shows the listener; silence at any time.
    """

    name = "rendezvous-reached"

    def __init__(self, crew: Crew, plan: Plan) -> None:
        self._crew, self._plan = crew, plan
        self._others = [host for host in crew.hosts if host] if plan.master_addr and plan.master_port else []
        self._listening = False
        self._asked = False

    def begin(self) -> None:
        """Asks at once, beside the other tests, where somebody listens already. Else this test comes last: torchrun
        listens only after it has imported torch."""
        if self._others and self._crew.heard([0], "listening", _MOMENT):
            self._listening = True
            self._ask()

    def finish(self, clock: Clock, subnets: Mapping[int, str], tried: Mapping[Edge, connections.Tried]) -> Verdict:
        """`tried`: what other ports of these hosts said."""
        if not self._others:
            return Verdict()
        if not self._asked:
            patience = time.monotonic() + min(LISTEN_SECONDS, max(0.0, clock.left))
            while not self._listening:
                self._listening = bool(self._crew.heard([0], "listening", _MOMENT))
                if self._crew.stillborn or time.monotonic() > patience:
                    break
            if not self._listening and (self._crew.stillborn or clock.left <= 0):
                reason = "torchrun ended before it could listen" if self._crew.stillborn else clock.reason
                return Verdict(skipped=(Skipped(code=self.name, host=None, reason=reason),))
            self._ask()
        key = f"{self._plan.master_addr} {self._plan.master_port}"
        answers = self._crew.collect(self._others, "reach", REACH_SECONDS + 5.0)
        results = {
            self._crew.names[host]: by_subnet(body["trouble"] or body["result"][key], subnets.get(host), subnets.get(0))
            for host, (body, _) in answers.items()
        }
        server, port = self._plan.hosts[0].host.name, self._plan.master_port or 0
        found = rendezvous(
            results, server=server, address=self._plan.master_addr or "", port=port, listening=self._listening
        )
        if self._listening and all(results.values()) and clock.left > REACH_SECONDS:
            elsewhere = self._elsewhere(port)
            # Of two hosts that talk on no port either may be bad.
            if elsewhere and all(elsewhere) and (len(results) > 1 or _talk(tried)):
                said, hosts = [*results.values(), *elsewhere], [server, self._crew.names[self._others[0]]]
                found = [closed_everywhere(said, hosts=hosts, port=port)]
        return Verdict(findings=tuple(found), judged=(self.name,))

    def _elsewhere(self, port: int) -> list[str]:
        """What the hosts are told by the same port of the second one, which listens on it for so long; empty where that
        is not known."""
        second, crew = self._others[0], self._crew
        others = [host for host in crew.hosts if host != second]
        address = nearest_address([each for _, each in crew.hello[second]["addresses"]], self._plan.master_addr or "")
        stand: Body = {"t": "stand", "test": "listener", "request": {"port": port}, "deadline": REACH_SECONDS,
                       "answer": "listener"}  # fmt: skip
        try:
            body, _ = crew.ask({second: stand}, "listener", REACH_SECONDS + 5.0)[second]
            if body["trouble"]:
                return []
            reach: Body = {"t": "reach", "targets": [[address, port]], "timeout": REACH_SECONDS}
            answers = crew.ask(dict.fromkeys(others, reach), "reach", REACH_SECONDS + 5.0)
        finally:
            crew.send({"t": "release", "test": "listener"}, to=[second])
        return [body["trouble"] or body["result"][f"{address} {port}"] for body, _ in answers.values()]

    def _ask(self) -> None:
        self._asked = True
        targets = [[self._plan.master_addr, self._plan.master_port]]
        self._crew.send({"t": "reach", "targets": targets, "timeout": REACH_SECONDS}, to=self._others)


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
