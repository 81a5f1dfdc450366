"""The agents of all hosts as one crew: greeted, asked, listened to. Every method pumps the one queue of events."""

from __future__ import annotations

import math
import queue
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec

from nvrun.facts import SECTIONS, HostFacts, decode
from nvrun.fleet import routes, trouble
from nvrun.fleet.link import Unreachable
from nvrun.fleet.session import Body, Console, Event, Session
from nvrun.fleet.signals import TOLD_RANKS, signals_to
from nvrun.fleet.start import Start, interpreters
from nvrun.job import Job
from nvrun.meanings import MEANINGS, means
from nvrun.model import EndedBy, Finding, Frozen, Severity

HELLO_SECONDS = 20.0
FACTS_SECONDS = 40.0
MUTE_AFTER = 5.0
"""Seconds without a heartbeat (one every 2 s) after which a host that is only looked at is waited for no longer."""
SILENT_AFTER = 10.0
"""Seconds without a heartbeat after which the user is told whom nvrun no longer hears."""
_STOPPED_SECONDS = 5.0
_ONE_SIGNAL_SECONDS = 0.2
"""Slurm's time limit sends SIGTERM twice within 5 ms (measured on 22.05); nobody presses Ctrl-C twice so quickly."""
means(
    "ports-taken",
    "no port of --port-range is free on the first host",
    read="bind(2) on each of them there",
    why="torchrun's rendezvous could not listen",
    remedy="end it, or --port-range FIRST-LAST (or --master-port PORT) names others; ss -ltnp on that host shows who "
    "has them",
    source="bind(2): EADDRINUSE",
)


class Ending(Frozen, frozen=True, kw_only=True):
    """The first thing that made an end of it."""

    by: EndedBy
    exit_code: int
    message: str = ""


class Ended(Exception):
    """It is over before what was asked for was there; `Crew.ending` says why."""


class Listener(Protocol):
    """Whoever is concerned with more than answers: the launch."""

    @property
    def begun(self) -> bool: ...
    def message(self, host: int, body: Body) -> None: ...
    def chunk(self, host: int, data: bytes) -> None: ...
    def lost(self, host: int, why: str) -> None: ...


class Crew:
    """One agent a host, by node rank."""

    def __init__(self, job: Job, session: Session, start: Start, say: Callable[[str], None]) -> None:
        self.names = [host.name for host in job.hosts]
        self.hosts = range(len(self.names))
        self.hello: dict[int, Body] = {}
        self.offsets: dict[int, tuple[float, float]] = {}
        """Host -> its clock minus ours, and half the round trip, which is the error; seconds."""
        self.findings: list[Finding] = []
        """Hosts that cannot be reached, and why."""
        self.gone: set[int] = set()
        self.mute: set[int] = set()
        """Hosts that spoke at first and are heard no more, though their connections stand."""
        self.silent: set[int] = set()
        """Hosts with a job of which nothing is heard at present; each may be heard again."""
        self.ending: Ending | None = None
        self.stillborn: Ending | None = None
        """How the job ended on a host before its ranks were let go. The checks may know why and have the first word."""
        self.signals = 0
        """How often the user, or Slurm, has asked for an end."""
        self.closed: dict[int, str] = {}
        """Host -> the last words of its link, as the end of a sentence: of those that had greeted before it ended."""
        self.listener: Listener | None = None
        self.say = say
        self.watch: Callable[[int, str], None] = lambda host, stage: None
        """Is told how far each host is: a stage of `trouble`, `hello`, `facts`, `unreachable`."""
        self.send = session.send
        self._job = job
        self._session = session
        self._start = start
        self._stages: dict[int, tuple[trouble.Stage, float]] = dict.fromkeys(
            self.hosts, ("connecting", time.monotonic())
        )
        self._answers: dict[tuple[int, str], tuple[Body, float]] = {}
        self._signalled_at = -math.inf
        self._looked = time.monotonic()

    def greet(self) -> None:
        """Every host's agent has spoken, and its clock is measured. Ended where one cannot be reached."""
        self.arrive()
        if self.findings:
            self.end("unreachable", 69)
            raise Ended
        asked = time.time()
        pings: dict[int, Body] = {host: {"t": "ping"} for host in self.hosts}
        for host, (body, arrived) in self.ask(pings, "pong", HELLO_SECONDS).items():
            self.offsets[host] = (body["time"] - (asked + arrived) / 2, (arrived - asked) / 2)

    def arrive(self) -> None:
        """Every host's agent has spoken, or `findings` says why not. Ended where a signal came meanwhile."""
        while self.ending is None and (waiting := set(self.hosts) - set(self.hello) - self.gone):
            now = time.monotonic()
            deadlines = {host: self._deadline(host) for host in waiting}
            for host in (host for host, deadline in deadlines.items() if deadline <= now):
                stage, began = self._stages[host]
                said = self._session.said(host)
                self._unreachable(host, trouble.late(self.names[host], stage, now - began, said, self._start))
            self.pump(min(deadlines.values()))
        if self.ending:
            raise Ended

    def _deadline(self, host: int) -> float:
        stage, began = self._stages[host]
        return began + trouble.limit(stage, self._job.options.connect_timeout)

    def facts(self, requests: Mapping[int, Body], seconds: float = FACTS_SECONDS) -> dict[int, HostFacts]:
        """What every host is like. A host whose answer does not come, or is not understood, has all sections missing,
        with the reason. A host that is heard no more is not waited for, and is in `mute` then."""
        seconds = min(seconds, FACTS_SECONDS)
        bodies = {host: {"t": "facts", "request": request, "deadline": seconds} for host, request in requests.items()}
        for host, body in bodies.items():
            self.send(body, to=[host])
        answers: dict[int, Body] = {}
        deadline = time.monotonic() + seconds + 5.0
        while waiting := set(bodies) - set(answers) - self.mute:
            answers |= self.heard(waiting, "facts", 0.2)
            now = time.monotonic()
            self.mute |= {host for host in waiting if self.silent_for(host) > MUTE_AFTER}
            self.mute |= waiting - set(answers) if now > deadline else set()
        silent = {"result": None, "trouble": f"no answer: nothing is heard from it for {MUTE_AFTER:g} s"}
        return {host: self._facts(host, answers.get(host, silent)) for host in bodies}

    def ask(self, bodies: Mapping[int, Body], answer: str, timeout: float) -> dict[int, tuple[Body, float]]:
        """Sends each host its message and waits for its `answer`: (body, when it arrived). Ended where it all ended."""
        for host, body in bodies.items():
            self.send(body, to=[host])
        return self.collect(bodies, answer, timeout)

    def collect(self, hosts: Collection[int], answer: str, timeout: float) -> dict[int, tuple[Body, float]]:
        """Waits for an answer of each of `hosts`; theirs, in node order."""
        found: dict[int, tuple[Body, float]] = {}
        deadline = time.monotonic() + timeout
        while True:
            for host in hosts:
                if (host, answer) in self._answers:
                    found[host] = self._answers.pop((host, answer))
            if self.ending:
                raise Ended
            if len(found) == len(hosts):
                return dict(sorted(found.items()))
            if time.monotonic() > deadline:
                silent = ", ".join(self.names[host] for host in hosts if host not in found)
                self.end("lost", 69, f"no answer ({answer}) from {silent} in {timeout:g} s")
                raise Ended
            self.pump(deadline)

    def heard(self, hosts: Collection[int], answer: str, timeout: float) -> dict[int, Body]:
        """The answers of those of `hosts` that give one within `timeout` seconds. Ended where it all ended."""
        deadline = time.monotonic() + timeout
        while not all((host, answer) in self._answers for host in hosts) and time.monotonic() < deadline:
            self.pump(deadline)
            if self.ending:
                raise Ended
        return {host: body for host in hosts if (body := self.take(host, answer)) is not None}

    def answers(self, bodies: Mapping[int, Body], answer: str, timeout: float) -> dict[int, Body]:
        """Sends each host its message and returns the answers that come within `timeout` seconds, also where hosts are
        lost meanwhile. Raises Ended where the run ends meanwhile. After the run's end hosts can still be asked: one
        that is heard no more is not waited for then, and a user who asks for an end is not kept waiting."""
        over, asked = self.ending is not None, self.signals
        waiting = bodies.keys() - self.gone
        for host in waiting:
            self.take(host, answer)  # one that came too late for whoever asked before
            self.send(dict(bodies[host]), to=[host])
        found: dict[int, Body] = {}
        deadline = time.monotonic() + timeout
        while waiting and time.monotonic() < deadline and (not over or self.signals == asked):
            if self.ending and not over:
                raise Ended
            self.pump(deadline)
            found |= {host: body for host in waiting if (body := self.take(host, answer)) is not None}
            waiting -= self.gone | found.keys() | (self.silent if over else set())
        return found

    def facts_again(self, requests: Mapping[int, Body], seconds: float) -> dict[int, HostFacts]:
        """What hosts are like by now, of those that answer in time."""
        bodies = {host: {"t": "facts", "request": request, "deadline": seconds} for host, request in requests.items()}
        answers = self.answers(bodies, "facts", seconds + 5.0)
        return {host: self._facts(host, body) for host, body in answers.items()}

    def silent_for(self, host: int) -> float:
        """Seconds for which nothing was heard from it."""
        now = time.monotonic()
        return now - self._session.heard.get(host, now)

    def take(self, host: int, answer: str) -> Body | None:
        """An answer that is there already."""
        found = self._answers.pop((host, answer), None)
        return found[0] if found else None

    def end(self, by: EndedBy, exit_code: int, message: str = "") -> None:
        """The first cause stands; every host is told to end its job, if it has one."""
        if self.ending is None:
            self.ending = Ending(by=by, exit_code=exit_code, message=message)
            self.send({"t": "end", "grace": self._job.options.grace, "by": by})

    def end_from_outside(self, by: EndedBy, exit_code: int, message: str) -> None:
        """`end`, from another thread: whoever pumps acts on it."""
        self._session.events.put(Event(-1, "end", Ending(by=by, exit_code=exit_code, message=message)))

    def dismiss(self) -> None:
        """The agents end; a link that does not is dropped."""
        self._session.end_input()
        deadline = time.monotonic() + 2.0
        while len(self.gone | self.mute) < len(self.names) and time.monotonic() < deadline:
            self.pump(deadline)
        self._session.close()

    # -- events -----------------------------------------------------------------------------------------------------

    def pump(self, deadline: float) -> None:
        """Takes one event, or returns at `deadline` (monotonic) or after a second at most."""
        wait = min(1.0, max(0.0, deadline - time.monotonic()))
        with suppress(queue.Empty):
            self._handle(self._session.events.get(timeout=wait))
        self._look_for_silence()

    def _handle(self, event: Event) -> None:
        if event.kind == "message":
            self._message(event.host, event.body)
        elif event.kind == "chunk" and self.listener:
            self.listener.chunk(event.host, event.body)
        elif event.kind == "stage" and event.body in trouble.SECONDS:
            self._stages[event.host] = (event.body, time.monotonic())
            self.watch(event.host, event.body)
        elif event.kind == "unreachable":
            self._unreachable(event.host, event.body)
        elif event.kind == "refused":
            body, words = event.body
            name, code = self.names[event.host], body.get("code", "host-old-python")
            self._unreachable(event.host, trouble.refused(name, code, body["why"], words, self._start))
        elif event.kind == "closed":
            self._closed(event.host, event.body)
        elif event.kind == "signal":
            self._signalled(event.body)
        elif event.kind == "end":
            self.end(event.body.by, event.body.exit_code, event.body.message)

    def _message(self, host: int, body: Body) -> None:
        kind = body["t"]
        if kind == "hello":
            self.hello[host] = body
        elif kind == "cannot":
            self._refuse(host, body["code"], body["why"])
        elif kind == "failed":
            self.end("internal", 70, f"{self.names[host]}: {body['at']}: {body['why']}")
        elif self.listener:
            self.listener.message(host, body)
        if kind in ("hello", "facts"):
            self.watch(host, kind)
        self._answers[host, kind] = (body, time.time())

    def _facts(self, host: int, body: Body) -> HostFacts:
        offset, error = self.offsets[host]
        reason: str = body["trouble"]
        try:
            facts = decode(body["result"]) if not reason else None
        except msgspec.ValidationError as wrong:
            facts, reason = None, f"not understood: {wrong}"
        if facts is None:
            facts = HostFacts(host=self.names[host], missing=dict.fromkeys(SECTIONS, reason))
        return msgspec.structs.replace(facts, clock_offset_s=offset, clock_error_s=error)

    def _closed(self, host: int, words: str) -> None:
        if host in self.gone:
            return
        if host not in self.hello:
            stage, _ = self._stages[host]
            self._unreachable(host, trouble.ended(self.names[host], stage, words, self._start))
        else:
            self.gone.add(host)
            self.closed[host] = trouble.tail(words)
            self._lost(host, f"its connection ended{self.closed[host]}")

    def _lost(self, host: int, why: str) -> None:
        if self.listener:
            self.listener.lost(host, why)
        else:
            self.end("lost", 69, f"lost {self.names[host]}: {why}")

    def _unreachable(self, host: int, why: Unreachable) -> None:
        if host in self.gone:  # a refusal, and then the connection's end
            return
        self.gone.add(host)
        self.watch(host, "unreachable")
        from nvrun.checks.unreachable import from_unreachable  # all checks come with it: only bad news waits for them

        self.findings.append(from_unreachable(self.names[host], why.code, why.message, why.hint))

    def _refuse(self, host: int, code: str, why: str) -> None:
        """A host that answers but cannot take part: nothing is launched."""
        from nvrun.checks.code import CODES  # all checks come with it: only bad news waits for them

        known, name = CODES.get(code) or MEANINGS.get(code), self.names[host]
        self.findings.append(
            Finding(
                code=code,
                severity=Severity.FATAL,
                message=f"{name}: {why}",
                host=name,
                remedy=known.remedy if known else "",
            )
        )
        self.end("preflight", 78)

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if number in TOLD_RANKS:
            self.send({"t": "signal", "name": name[3:]})
            return
        now = time.monotonic()
        if now - self._signalled_at < _ONE_SIGNAL_SECONDS:
            return
        self._signalled_at = now
        self.signals += 1
        if self.signals == 1:
            grace = self._job.options.grace
            if self.listener and self.ending is None:
                ending = f"ending the ranks, {grace:g} s for their checkpoints"
                self.say(f"nvrun: {name}: {ending if self.listener.begun else 'no rank ran yet'} (again: now)")
            self.end("signal", 128 + number, f"ended by {name}")
        else:
            self.say(f"nvrun: {name} again: now")
            self.send({"t": "end", "grace": 0.0})

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        heard = self._session.heard
        if now - self._looked > _STOPPED_SECONDS:  # this process itself was stopped: what came meanwhile is unread
            heard.update(dict.fromkeys(heard, now))
        self._looked = now
        for host in set(heard) - self.gone:
            silent = now - heard[host]
            if silent > SILENT_AFTER and host not in self.silent:
                self.silent.add(host)
                self.say(f"nvrun: nothing heard from {self.names[host]} for {silent:.0f} s; its ranks may go on")
            elif silent < SILENT_AFTER and host in self.silent:
                self.silent.discard(host)
                self.say(f"nvrun: {self.names[host]} is heard again")
            if silent > self._job.lost_after:
                self.gone.add(host)
                self._lost(host, f"nothing heard for {silent:.0f} s")


@contextmanager
def gathered(
    job: Job,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    show: Callable[[Console], None],
    noted: list[int] | None = None,
) -> Iterator[Crew]:
    """The crew while its links are open. Signals reach it, as do those in `noted`, which came before it; at the end
    nothing of it is left on any host."""
    options = job.options
    start = Start(
        pythons=interpreters(environ, options.python, sys.executable),
        named=options.python is not None,
        setup=options.setup,
        within=options.in_,
        cwd=job.cwd,
        by_hand={
            host.name: routes.by_hand(host, kind, options.rsh) for host, kind in zip(job.hosts, job.kinds, strict=True)
        },
    )
    ways = routes.routes(
        job.hosts,
        job.kinds,
        start,
        environment=environ,
        rsh=options.rsh,
        ssh="openssh" if options.ssh == "openssh" else "paramiko",
        ssh_config=options.ssh_config,
        connect_timeout=options.connect_timeout,
    )
    session = Session(ways, lost_after=job.lost_after, show=show)
    with signals_to(session, [] if noted is None else noted):
        crew = Crew(job, session, start, say)
        try:
            yield crew
        finally:
            crew.dismiss()
