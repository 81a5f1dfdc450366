"""Connections, pushed bytes, path MTU, latency and bandwidth between hosts, as a conversation with their agents."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from nvrun.active import schedule
from nvrun.active.clock import Clock
from nvrun.active.places import Place
from nvrun.active.schedule import Pair
from nvrun.checks.connections import Latency, Rate, Tried
from nvrun.fleet.crew import Crew
from nvrun.fleet.session import Body
from nvrun.model import Frozen, Skipped

PORTS = 4
"""Listeners of a host, one in each quarter of its ephemeral range."""
PUSH_BYTES = 256 << 10
SILENCE = 1.3
"""Seconds without progress in the first try: a lost SYN is sent again after one (tcp(7))."""
SILENCE_AGAIN = 2.5
DEEP_ROUNDS = 2
_PINGS, _PING_SECONDS = 100, 0.25
_STREAM_SECONDS = 0.5
_MARGIN = 5.0
"""What starting a child and answering may take on a host under load, seconds."""

Edge = tuple[str, str]


class Measured(Frozen, frozen=True, kw_only=True):
    """What came of it."""

    tried: Mapping[Edge, Tried] = {}
    ranges: Mapping[str, tuple[int, int]] = {}
    """Host -> its ephemeral range."""
    latency: tuple[Latency, ...] = ()
    rates: tuple[Rate, ...] = ()
    busy: Mapping[str, str] = {}
    """Host -> why what had to wait for a CPU there says nothing."""
    skipped: tuple[Skipped, ...] = ()


def measure(crew: Crew, places: Mapping[int, Place], clock: Clock, *, deep: bool) -> Measured:
    """All tests of the network between these hosts; listeners are up before anybody connects, and closed afterwards."""
    conversation = _Conversation(crew, places, clock)
    try:
        conversation.listen()
        conversation.connect()
        conversation.ping(deep)
        if deep:
            conversation.stream()
    finally:
        crew.send({"t": "release", "test": "network"}, to=list(places))
    return conversation.measured()


def connected(crew: Crew, places: Mapping[int, Place], clock: Clock) -> Measured:
    """Connections and pushed bytes alone, after the end of a job."""
    conversation = _Conversation(crew, places, clock)
    try:
        conversation.listen()
        conversation.connect()
    finally:
        crew.send({"t": "release", "test": "network"}, to=list(places))
    return conversation.measured()


class _Conversation:
    def __init__(self, crew: Crew, places: Mapping[int, Place], clock: Clock) -> None:
        self._crew, self._places, self._clock = crew, dict(places), clock
        self._secret = secrets.token_hex(16)
        self._up: dict[int, Body] = {}
        self._tried: dict[Pair, Tried] = {}
        self._latency: list[Latency] = []
        self._rates: list[Rate] = []
        self._busy: dict[str, str] = {}
        self._skipped: list[Skipped] = []

    def measured(self) -> Measured:
        names = {host: place.name for host, place in self._places.items()}
        return Measured(
            tried={(names[a], names[b]): seen for (a, b), seen in self._tried.items()},
            ranges={names[host]: (body["range"][0], body["range"][1]) for host, body in self._up.items()},
            latency=tuple(self._latency),
            rates=tuple(self._rates),
            busy=self._busy,
            skipped=tuple(self._skipped),
        )

    # -- the parts, in order ----------------------------------------------------------------------------------------

    def listen(self) -> None:
        requests = {
            host: {"address": place.address, "ports": PORTS, "secret": self._secret, "host": host}
            for host, place in self._places.items()
        }
        for host, body in self._ask("stand", "network", requests, _MARGIN).items():
            if body["trouble"]:
                self._skip("connections", host, f"its listeners did not come up: {body['trouble']}")
            else:
                self._up[host] = body["result"]

    def connect(self) -> None:
        hosts = list(self._up)
        pairs, heavy = schedule.mesh(hosts), set(schedule.mesh(hosts, schedule.HEAVY_MESH))
        self._tried = self._try(pairs, heavy, SILENCE)
        bad = {pair: _answer(seen) for pair, seen in self._tried.items()}
        if any(bad.values()):
            retried = schedule.again(bad, hosts)
            second = self._try(retried, set(retried), SILENCE_AGAIN)
            after = schedule.settled(bad, {pair: _answer(seen) for pair, seen in second.items()})
            kept = {pair: seen for pair, seen in self._tried.items() if after[pair] or not bad[pair]}
            self._tried = {**kept, **{pair: _both(self._tried.get(pair), seen) for pair, seen in second.items()}}

    def ping(self, deep: bool) -> None:
        """Latency of pairs that talk; few at a time, since they share CPUs and links."""
        talking = self._talking()
        at_once = max(4, len(self._up) // 8)
        partners = schedule.partners(len(self._up), deep=deep)
        for pairs in schedule.rounds(list(self._up), partners):
            for part in schedule.few([pair for pair in pairs if pair in talking], at_once):
                work = {"count": _PINGS, "seconds": _PING_SECONDS}
                for pair, found in self._each("latency", part, work, SILENCE + _PING_SECONDS).items():
                    low, half, high = found["p10"], found["p50"], found["p99"]
                    self._latency.append(Latency(pair=self._names(pair), p10=low, p50=half, p99=high))
                    if found["runnable"] is None:
                        self._busy[self._places[pair[0]].name] = "how busy it is cannot be read (/proc/loadavg)"
                    elif found["runnable"] > found["cpus"]:
                        reason = f"a busy host: {found['runnable']} processes want its {found['cpus']} CPUs"
                        self._busy[self._places[pair[0]].name] = reason

    def stream(self) -> None:
        talking = self._talking()
        for pairs in schedule.rounds(list(self._up), DEEP_ROUNDS):
            both = [pair for pair in pairs if pair in talking]
            for way in (both, [pair[::-1] for pair in both]):
                found = self._each("bandwidth", way, {"seconds": _STREAM_SECONDS}, SILENCE + _STREAM_SECONDS)
                for pair, body in found.items():
                    gbps = 8e-9 * body["bytes"] / body["seconds"]
                    self._rates.append(Rate(pair=self._names(pair), gbps=gbps))

    # -- questions --------------------------------------------------------------------------------------------------

    def _try(self, pairs: Sequence[Pair], heavy: set[Pair], silence: float) -> dict[Pair, Tried]:
        targets: dict[int, list[Body]] = {}
        for pair in pairs:
            source, target = pair
            ports = schedule.turns(self._up[target]["ports"], source, len(self._up))
            targets.setdefault(source, []).append(
                {
                    "host": target,
                    "address": self._places[target].address,
                    "ports": ports,
                    "udp": self._up[target]["udp"],
                    "push": PUSH_BYTES if pair in heavy else 0,
                    "mtu": self._mtu(pair) if pair in heavy else None,
                }
            )
        requests = {
            source: {
                "source": self._places[source].address,
                "secret": self._secret,
                "silence": silence,
                "targets": theirs,
            }
            for source, theirs in targets.items()
        }
        found: dict[Pair, Tried] = {}
        # Connecting, being greeted and pushing may each be silent for that long, on a busy host several times so.
        for source, body in self._ask("test", "connections", requests, 12 * silence).items():
            if body["trouble"]:
                self._skip("connections", source, f"what it tried is not known: {body['trouble']}")
                continue
            for target, seen in body["result"].items():
                push, mtu = seen.get("push"), seen.get("mtu")
                found[source, int(target)] = Tried(
                    ports=seen["ports"], push=tuple(push) if push else None, mtu=tuple(mtu) if mtu else None
                )
        return found

    def _mtu(self, pair: Pair) -> int | None:
        """What both interfaces can take: where they differ the checks of facts say so."""
        both = [mtu for host in pair if (mtu := self._places[host].mtu)]
        return min(both) if len(both) == 2 else None

    def _each(self, test: str, pairs: Sequence[Pair], work: Body, seconds: float) -> dict[Pair, Body]:
        """One measurement of each pair, all at once; what failed is shown as skipped."""
        requests = {
            source: {
                "source": self._places[source].address,
                "secret": self._secret,
                "silence": SILENCE,
                "host": target,
                "address": self._places[target].address,
                "port": self._up[target]["ports"][0],
                **work,
            }
            for source, target in pairs
        }
        partner = dict(pairs)
        found: dict[Pair, Body] = {}
        for source, body in self._ask("test", test, requests, seconds + SILENCE).items():
            result = body["result"] or {}
            if trouble := body["trouble"] or result.get("error", ""):
                to = self._places[partner[source]].name
                self._skip(test, source, f"with {to}: {trouble}")
            else:
                found[source, partner[source]] = result
        return found

    def _ask(self, kind: str, test: str, requests: Mapping[int, Body], seconds: float) -> dict[int, Body]:
        """Every host's answer; none of them where the time is over."""
        if not requests:
            return {}
        if self._clock.left <= 0:
            self._skip(test, None, self._clock.reason)
            return {}
        deadline = min(seconds + _MARGIN, max(0.5, self._clock.left))
        bodies = {
            host: {"t": kind, "test": test, "request": request, "deadline": deadline, "answer": test}
            for host, request in requests.items()
        }
        if self._crew.ending:  # whoever does not answer is not what ended it
            return self._crew.answers(bodies, test, deadline + _MARGIN)
        return {host: body for host, (body, _) in self._crew.ask(bodies, test, deadline + _MARGIN).items()}

    def _talking(self) -> set[Pair]:
        """Pairs in whose way nothing failed, nor at their hosts, as far as is known."""
        bad = [pair for pair, seen in self._tried.items() if _answer(seen)]
        lame = {host for host in self._up if sum(host in pair for pair in bad) > 1}
        return {
            (a, b)
            for a in self._up
            for b in self._up
            if a != b and not {a, b} & lame and (a, b) not in bad and (b, a) not in bad
        }

    def _names(self, pair: Pair) -> Edge:
        return self._places[pair[0]].name, self._places[pair[1]].name

    def _skip(self, test: str, host: int | None, reason: str) -> None:
        name = None if host is None else self._places[host].name
        self._skipped.append(Skipped(code=test, host=name, reason=reason))


def _both(first: Tried | None, second: Tried) -> Tried:
    """The second try; where it heard nothing, the answer of the first: kernels limit how often they refuse
    (icmp_ratelimit)."""
    if first is None:
        return second
    silent = {port for port, answer in second.ports.items() if answer == "ETIMEDOUT"}
    told = {port: answer for port, answer in first.ports.items() if answer and port in silent}
    return msgspec.structs.replace(second, ports={**second.ports, **told})


def _answer(seen: Tried) -> str:
    """ "" where everything of this edge was well."""
    answers = [*seen.ports.values(), seen.push[0] if seen.push else ""]
    if seen.mtu and seen.mtu[1] and seen.mtu[1] < seen.mtu[0]:
        answers.append("mtu")
    return next((answer for answer in answers if answer), "")
