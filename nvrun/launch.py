"""Plan -> running job -> RunResult: the launcher's side of a run, from the agents' hello to their goodbye."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from nvrun.errors import NvrunError
from nvrun.fleet.link import Unreachable
from nvrun.fleet.session import Event, Session
from nvrun.model import EndedBy, RankEnd, RunResult
from nvrun.plan import Plan, as_mapping, socket_name
from nvrun.rundir import RunFolder

SILENT_AFTER = 10.0
"""Seconds without a heartbeat after which the user is told whom nvrun no longer hears."""
CLOSED_GRACE = 3.0
_HELLO_SECONDS = 20.0
_LAST_SECONDS = 15.0
"""After the grace has passed, what a host may still take for its sweep and its last words."""
_FETCH_SECONDS = 60.0
"""Without a byte for so long, fetching a host's logs is given up."""

State = Literal["connecting", "greeted", "running", "done", "gone"]


class HostGone(Exception):
    """A host that the run cannot do without is not there any more; `Conductor.cause` says why."""


class Conductor:
    """Leads all hosts through one run. Every method pumps the one queue of events."""

    def __init__(
        self, session: Session, names: Sequence[str], folder: RunFolder, say: Callable[[str], None], grace: float
    ) -> None:
        self.names = names
        self.hello: dict[int, dict[str, Any]] = {}
        self.offsets: dict[int, tuple[float, float]] = {}
        """Host -> its clock minus ours, and half the round trip, which is the error; seconds."""
        self.ends: list[tuple[RankEnd, tuple[str, ...]]] = []
        """Ranks that ended, with the last lines of their stderr."""
        self.ended_by: EndedBy | None = None
        self.exit_code = 0
        self.message = ""
        self.unreachable: dict[int, Unreachable] = {}
        self.dropped: dict[str, int] = {}
        self._session = session
        self._say = say
        self._grace = grace
        self._states: dict[int, State] = dict.fromkeys(range(len(names)), "connecting")
        self._answers: dict[tuple[int, str], dict[str, Any]] = {}
        self._folder = folder
        self._max_restarts = 0
        self._signals = 0
        self._silent: set[int] = set()
        self._looked = time.monotonic()
        self._fetched_at: dict[int, float] = {}

    # -- before the job ---------------------------------------------------------------------------------------------

    def greet(self, timeout: float) -> None:
        """Waits until every host's agent has spoken or is known to be unreachable; then measures their clocks."""
        deadline = time.monotonic() + timeout + _HELLO_SECONDS
        while any(state == "connecting" for state in self._states.values()) and time.monotonic() < deadline:
            self._pump(deadline)
        for host, state in self._states.items():
            if state == "connecting":
                self.unreachable[host] = Unreachable(
                    f"{self.names[host]}: connected, but its agent said nothing for {_HELLO_SECONDS:g} s",
                    code="host-no-agent",
                    hint="a login script that waits, a full process table, or an MTU black hole on the way there",
                )
                self._states[host] = "gone"
        if self.ended_by is None and self.unreachable:
            self._end("unreachable", 69, "; ".join(trouble.message for trouble in self.unreachable.values()))
        if self.ended_by:
            raise HostGone
        asked = time.time()
        for host, (body, arrived) in self._ask({"t": "ping"}, "pong", timeout=_HELLO_SECONDS).items():
            self.offsets[host] = (body["time"] - (asked + arrived) / 2, (arrived - asked) / 2)

    def prepare(self, ports: Sequence[int]) -> Mapping[int, dict[str, Any]]:
        """Every host's folder for logs, and on host 0 a port that nobody else is given from now on."""
        folder = self._folder
        for host in self._states:
            body = {"t": "prepare", "run": folder.run_id, "folder": str(folder.path), "token": folder.token,
                    "name": folder.logs(self.names[host]).name, "ports": list(ports) if host == 0 else None}  # fmt: skip
            self._session.send(body, to=[host])
        return {host: body for host, (body, _) in self._collect("prepared", self._states, _HELLO_SECONDS).items()}

    # -- the job ----------------------------------------------------------------------------------------------------

    def start(self, plan: Plan, *, max_restarts: int = 0) -> None:
        """torchrun starts everywhere; its ranks wait at the gate."""
        self._max_restarts = max_restarts
        for host in plan.hosts:
            self._states[host.node] = "running"
            body = {"t": "job", "mark": f"{plan.run_id}.{host.node}", "socket": socket_name(plan.run_id, host.node),
                    "argv": host.argv, "cwd": host.cwd, "set": as_mapping(host.env), "unset": host.unset,
                    "ranks": len(host.ranks), "grace": plan.grace, "first_stderr": 20,
                    "console": "all" if plan.console is None else plan.console}  # fmt: skip
            self._session.send(body, to=[host.node])

    def go(self, plan: Plan) -> None:
        """The ranks run."""
        for host in plan.hosts:
            ranks = {
                str(rank.local_rank): {"set": as_mapping(rank.env), "prefix": rank.prefix, "cpus": rank.cpus}
                for rank in host.ranks
            }
            self._session.send({"t": "go", "set": {}, "unset": [], "ranks": ranks}, to=[host.node])

    def observe(self) -> None:
        """Until the job is over on every host that can still be heard."""
        while "running" in self._states.values() and self.ended_by is None:
            self._pump(math.inf)
        deadline = time.monotonic() + self._grace + _LAST_SECONDS
        while "running" in self._states.values() and time.monotonic() < deadline:
            self._pump(deadline)
        for host, state in self._states.items():
            if state == "running":
                self._say(f"nvrun: {self.names[host]} did not say that its ranks are gone; they may still run there")
                self._states[host] = "gone"
        if self.ended_by is None:
            self.ended_by = "success"

    def bring_logs(self, private: Collection[int]) -> list[str]:
        """Fetches the logs of hosts that do not share the run's folder; returns where those are that did not come."""
        waiting = {host for host in private if self._states[host] == "done"}
        missing = [host for host in private if host not in waiting]
        self._fetched_at = dict.fromkeys(waiting, time.monotonic())
        self._session.send({"t": "fetch"}, to=waiting)
        while waiting := {host for host in waiting if (host, "fetched") not in self._answers}:
            late = {host for host in waiting if time.monotonic() - self._fetched_at[host] > _FETCH_SECONDS}
            late |= {host for host in waiting if self._states[host] == "gone"}
            missing += sorted(late)
            waiting -= late
            if waiting:
                self._pump(time.monotonic() + 1.0)
        whole = [host for host in private if host not in missing]
        if whole:
            self._session.send({"t": "remove"}, to=whole)
            self._collect("removed", whole, timeout=10.0)
        return [self.names[host] for host in missing]

    def goodbye(self) -> None:
        """The agents end; a link that does not is dropped."""
        self._session.end_input()
        deadline = time.monotonic() + 2.0
        while any(state != "gone" for state in self._states.values()) and time.monotonic() < deadline:
            self._pump(deadline)
        self._session.close()

    def result(self, *, run_id: str, started: float) -> RunResult:
        """How it went, as known now."""
        first = self.first_failure()
        return RunResult(
            run_id=run_id,
            ended_by=self.ended_by or "internal",
            exit_code=self.exit_code,
            started=started,
            seconds=time.time() - started,
            ranks=tuple(sorted((end for end, _ in self.ends), key=lambda end: (end.rank, end.attempt))),
            first_failure=first[0] if first and self.ended_by == "rank" else None,
            message=self.message,
            console_dropped=self.dropped,
        )

    def first_failure(self) -> tuple[RankEnd, tuple[str, ...]] | None:
        """The rank that failed first by the hosts' corrected clocks, not counting those that nvrun ended itself."""
        failed = [item for item in self.ends if item[0].code and not item[0].by_nvrun]
        return min(failed, key=lambda item: item[0].at or math.inf, default=None)

    # -- events -----------------------------------------------------------------------------------------------------

    def _pump(self, deadline: float) -> None:
        """Takes one event, or returns at `deadline` (monotonic) or after a second at most."""
        wait = min(1.0, max(0.0, deadline - time.monotonic()))
        try:
            event = self._session.events.get(timeout=wait)
        except Exception as empty:
            if type(empty).__name__ != "Empty":
                raise
        else:
            self._handle(event)
        self._look_for_silence()

    def _handle(self, event: Event) -> None:
        if event.kind == "message":
            handle = getattr(self, "_on_" + event.body["t"].replace("-", "_"), None)
            if handle:
                handle(event.host, event.body)
            else:
                self._answers[event.host, event.body["t"]] = {**event.body, "_arrived": time.time()}
        elif event.kind == "chunk":
            self._fetched_at[event.host] = time.monotonic()
            self._folder.append(event.host, event.body)
        elif event.kind == "unreachable":
            self.unreachable[event.host] = event.body
            self._states[event.host] = "gone"
        elif event.kind == "closed":
            self._closed(event.host, event.body)
        elif event.kind == "signal":
            self._signalled(event.body)

    def _on_hello(self, host: int, body: dict[str, Any]) -> None:
        self.hello[host] = body
        if self._states[host] == "connecting":
            self._states[host] = "greeted"

    def _on_refused(self, host: int, body: dict[str, Any]) -> None:
        self.unreachable[host] = Unreachable(
            f"{self.names[host]}: {body['why']}", code="host-old-python", hint="--python PATH"
        )
        self._states[host] = "gone"

    def _on_gate(self, host: int, body: dict[str, Any]) -> None:
        """All its ranks wait for GO."""

    def _on_rank(self, host: int, body: dict[str, Any]) -> None:
        """A rank runs."""

    def _on_end(self, host: int, body: dict[str, Any]) -> None:
        end = RankEnd(
            rank=body["rank"],
            host=self.names[host],
            local_rank=body["local"],
            pid=body["pid"],
            attempt=body["attempt"],
            code=body["code"],
            at=body["time"] - self.offsets[host][0],
            by_nvrun=body["asked"],
        )
        self.ends.append((end, tuple(body["tail"])))
        if end.code and not end.by_nvrun and end.attempt >= self._max_restarts:
            self._end("rank", end.code if end.code > 0 else 128 - end.code, "")

    def _on_no_start(self, host: int, body: dict[str, Any]) -> None:
        self._end("torchrun", 127, f"{self.names[host]}: torchrun could not be started: {body['why']}")

    def _on_done(self, host: int, body: dict[str, Any]) -> None:
        self._states[host] = "done"
        name, code = self.names[host], body["code"]
        if body["dropped"]:
            self.dropped[name] = body["dropped"]
        for path, (lost, why) in body["lost"].items():
            self._say(f"nvrun: {name}: {lost} bytes of output could not be written to {path}: {why}")
        if body["stuck"]:
            pids = " ".join(str(pid) for pid in body["stuck"])
            self._say(
                f"nvrun: {name}: processes {pids} cannot be ended (uninterruptible wait); the host needs a reboot"
            )
        if code and self.ended_by is None:
            failed = self.first_failure()
            if failed:  # with restarts: the last attempt has failed as well
                self._end("rank", failed[0].code if (failed[0].code or 0) > 0 else 128 - (failed[0].code or 0), "")
            else:
                words = "\n".join(f"    {line}" for line in body["tail"])
                self._end(
                    "torchrun", code if code > 0 else 128 - code, f"torchrun on {name} {ended(code)}\n{words}".strip()
                )

    def _on_terminated(self, host: int, body: dict[str, Any]) -> None:
        self._end("signal", 128 + signal.SIGTERM, f"{self.names[host]}: the agent was told to end (SIGTERM)")

    def _on_failed(self, host: int, body: dict[str, Any]) -> None:
        self._end("internal", 70, f"{self.names[host]}: {body['at']}: {body['why']}")

    def _on_file(self, host: int, body: dict[str, Any]) -> None:
        self._folder.begin_file(host, self.names[host], body["path"])

    def _on_fetched(self, host: int, body: dict[str, Any]) -> None:
        self._folder.end_file(host)
        self._answers[host, "fetched"] = body

    def _closed(self, host: int, words: str) -> None:
        before, self._states[host] = self._states[host], "gone"
        if before == "connecting" and host not in self.unreachable:
            no_python = "no Python here" in words or "ended with 127" in words
            self.unreachable[host] = Unreachable(
                f"{self.names[host]}: the agent did not start: {words or 'the connection ended'}",
                code="host-no-python" if no_python else "host-no-agent",
                hint="--python PATH names the host's interpreter, --setup CMD prepares its environment"
                if no_python
                else "",
            )
        elif before in ("greeted", "running") and self.ended_by != "unreachable":
            self._end("lost", 69, f"lost {self.names[host]}: its connection ended{': ' + words if words else ''}")

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            self._session.send({"t": "signal", "name": name[3:]})
            return
        self._signals += 1
        if self._signals == 1:
            if "running" in self._states.values():
                self._say(f"nvrun: {name}: ending the ranks, {self._grace:g} s for their checkpoints (again: now)")
            self._end("signal", 128 + number, f"ended by {name}")
        else:
            self._say(f"nvrun: {name} again: now")
            self._session.send({"t": "end", "grace": 0.0})

    def _end(self, cause: EndedBy, exit_code: int, message: str) -> None:
        """The first cause stands; every host is told to end its job."""
        if self.ended_by is not None:
            return
        self.ended_by, self.exit_code, self.message = cause, exit_code, message
        self._session.send({"t": "end", "grace": self._grace})

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now - self._looked > 5.0:  # this process itself was stopped: what came meanwhile is still to be read
            for host in self._session.heard:
                self._session.heard[host] = now
        self._looked = now
        for host, state in self._states.items():
            silent = now - self._session.heard.get(host, now)
            if state == "running" and silent > SILENT_AFTER and host not in self._silent:
                self._silent.add(host)
                self._say(f"nvrun: nothing heard from {self.names[host]} for {silent:.0f} s; its ranks may go on")
            elif host in self._silent and silent < SILENT_AFTER:
                self._silent.discard(host)
                self._say(f"nvrun: {self.names[host]} is heard again")
            if state == "running" and silent > self._session.lost_after:
                self._states[host] = "gone"
                self._end("lost", 69, f"lost {self.names[host]}: nothing heard for {silent:.0f} s")

    # -- questions --------------------------------------------------------------------------------------------------

    def _ask(self, body: dict[str, Any], answer: str, timeout: float) -> Mapping[int, tuple[dict[str, Any], float]]:
        self._session.send(body)
        return self._collect(answer, self._states, timeout)

    def _collect(
        self, answer: str, hosts: Collection[int], timeout: float
    ) -> Mapping[int, tuple[dict[str, Any], float]]:
        """One answer of each host: (body, when it arrived). Raises HostGone where the run has ended meanwhile."""
        deadline = time.monotonic() + timeout
        found: dict[int, tuple[dict[str, Any], float]] = {}
        while len(found) < len(hosts):
            for host in hosts:
                body = self._answers.pop((host, answer), None)
                if body is not None:
                    found[host] = (body, body.pop("_arrived"))
            if len(found) == len(hosts):
                break
            if self.ended_by and any(self._states[host] == "gone" for host in hosts):
                raise HostGone
            if time.monotonic() > deadline:
                silent = ", ".join(self.names[host] for host in hosts if host not in found)
                self._end("lost", 69, f"no answer ({answer}) from {silent} in {timeout:g} s")
                raise HostGone
            self._pump(deadline)
        if self.ended_by:
            raise HostGone
        return found


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


def master_address(addresses: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """The address of the first host that the others are to use: the first one whose network they all are in, by family
    and the longest common prefix; for a single host the loopback."""
    if not others:
        return "127.0.0.1"
    if not addresses:
        raise NvrunError("the first host has no address that others could reach", hint="ip address show, there")
    import ipaddress

    def closeness(address: str) -> int:
        mine = ipaddress.ip_address(address)
        return min(
            max(
                (
                    mine.max_prefixlen - (int(mine) ^ int(theirs)).bit_length()
                    for text in other
                    if (theirs := ipaddress.ip_address(text)).version == mine.version
                ),
                default=-1,
            )
            for other in others
        )

    return max(addresses, key=closeness)


def to_json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
