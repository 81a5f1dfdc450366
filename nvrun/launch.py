"""Plan -> running job -> RunResult: the launcher's side of a run, from the agents' hello to their goodbye."""

from __future__ import annotations

import ipaddress
import math
import queue
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from nvrun.console import Writer
from nvrun.errors import NvrunError, UsageError
from nvrun.fleet import routes
from nvrun.fleet.link import Unreachable
from nvrun.fleet.session import Body, Event, Session
from nvrun.job import Job
from nvrun.model import EndedBy, Finding, Host, RankEnd, RunResult, Severity
from nvrun.plan import Plan, Site, as_mapping, build, rendezvous, socket_name
from nvrun.report.text import ended
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

    def __init__(self, job: Job, session: Session, folder: RunFolder, writer: Writer) -> None:
        self.hello: dict[int, Body] = {}
        self.offsets: dict[int, tuple[float, float]] = {}
        """Host -> its clock minus ours, and half the round trip, which is the error; seconds."""
        self.ends: list[RankEnd] = []
        self.findings: list[Finding] = []
        self.ended_by: EndedBy | None = None
        self.exit_code = 0
        self.message = ""
        self._job = job
        self._names = [host.name for host in job.hosts]
        self._session = session
        self._folder = folder
        self._writer = writer
        self._states: dict[int, State] = dict.fromkeys(range(len(job.hosts)), "connecting")
        self._answers: dict[tuple[int, str], tuple[Body, float]] = {}
        self._private: set[int] = set()
        """Hosts that keep the run's logs in a folder of their own."""
        self._not_fetched: dict[int, str] = {}
        self._gang = True
        """One rank's failure is the job's: torchrun neither restarts nor goes on with fewer nodes."""
        self._min_nodes = len(job.hosts)
        self._left: set[int] = set()
        """Hosts that an elastic job went on without."""
        self._dropped: Counter[str] = Counter()
        self._signals = 0
        self._silent: set[int] = set()
        self._looked = time.monotonic()
        self._fetched_at: dict[int, float] = {}

    # -- before the job ---------------------------------------------------------------------------------------------

    def prepare(self) -> Plan | None:
        """Agents greeted, folders made, the rendezvous port held: the plan. None where the run has ended already."""
        try:
            self._greet()
            prepared = self._make_folders()
        except HostGone:
            return None
        hosts = range(len(self._names))
        addresses = {host: [address for _, address in self.hello[host]["addresses"]] for host in hosts}
        master = master_address(addresses[0], [addresses[host] for host in hosts if host])
        sites = [
            Site(
                host=self._job.hosts[host],
                ranks=ranks_of(self._job, self._job.hosts[host], self.hello[host]["gpus"]),
                python=self._job.options.python or self.hello[host]["executable"],
                folder=prepared[host]["folder"],
                forwarded=self._job.forwarded if self._job.kinds[host] in ("ssh", "rsh") else (),
                address=master if host == 0 else nearest_address(addresses[host], master),
            )
            for host in hosts
        ]
        options = self._job.options
        return build(
            run_id=self._folder.run_id,
            args=self._job.args,
            sites=sites,
            cwd=self._job.cwd,
            fleet=self._job.fleet,
            master_port=prepared[0]["port"],
            env=self._job.env,
            defaults=self._job.defaults,
            grace=options.grace,
            lost_after=self._job.lost_after,
            console=None if options.console == "all" else options.console,
        )

    def _greet(self) -> None:
        """Waits until every host's agent has spoken or is known to be unreachable; then measures their clocks."""
        deadline = time.monotonic() + self._job.options.connect_timeout + _HELLO_SECONDS
        while "connecting" in self._states.values() and time.monotonic() < deadline and self.ended_by is None:
            self._pump(deadline)
        for host, state in self._states.items():
            if state == "connecting" and self.ended_by is None:
                self._unreachable(
                    host,
                    Unreachable(
                        f"{self._names[host]}: connected, but its agent said nothing for {_HELLO_SECONDS:g} s",
                        code="host-no-agent",
                        hint="a login script that waits, a full process table, or an MTU black hole on the way there",
                    ),
                )
        if self.ended_by is None and self.findings:
            self._end("unreachable", 69, "")
        if self.ended_by:
            raise HostGone
        asked = time.time()
        self._session.send({"t": "ping"})
        for host, (body, arrived) in self._collect("pong", self._states, _HELLO_SECONDS).items():
            self.offsets[host] = (body["time"] - (asked + arrived) / 2, (arrived - asked) / 2)

    def _make_folders(self) -> Mapping[int, Body]:
        """Every host's folder for logs, and on host 0 a port that nobody else is given from now on."""
        first, last = self._job.options.port_range
        wants_port = rendezvous(self._job.args, fleet=self._job.fleet) != "user"
        for host in self._states:
            body = {"t": "prepare", "run": self._folder.run_id, "folder": str(self._folder.path),
                    "token": self._folder.token, "name": self._folder.logs(self._names[host]).name,
                    "ports": list(range(first, last + 1)) if wants_port and host == 0 else None}  # fmt: skip
            self._session.send(body, to=[host])
        prepared = {host: body for host, (body, _) in self._collect("prepared", self._states, _HELLO_SECONDS).items()}
        self._private = {host for host, body in prepared.items() if not body["shared"]}
        self._not_fetched = {host: prepared[host]["folder"] for host in self._private}
        return prepared

    # -- the job ----------------------------------------------------------------------------------------------------

    def start(self, plan: Plan) -> None:
        """torchrun starts everywhere; its ranks wait at the gate."""
        self._gang = plan.restarts == 0 and plan.min_nodes == len(plan.hosts)
        self._min_nodes = plan.min_nodes
        for host in plan.hosts:
            self._states[host.node] = "running"
            body = {"t": "job", "mark": f"{plan.run_id}.{host.node}", "socket": socket_name(plan.run_id, host.node),
                    "argv": host.argv, "cwd": host.cwd, "set": as_mapping(host.env), "defaults": as_mapping(host.defaults),
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
            self._session.send({"t": "go", "ranks": ranks}, to=[host.node])

    def observe(self) -> None:
        """Until the job is over on every host that can still be heard."""
        while "running" in self._states.values() and self.ended_by is None:
            self._pump(math.inf)
        deadline = time.monotonic() + self._job.options.grace + _LAST_SECONDS
        while "running" in self._states.values() and time.monotonic() < deadline:
            self._pump(deadline)
        for host, state in self._states.items():
            if state == "running":
                self._writer.say(
                    f"nvrun: {self._names[host]} did not say that its ranks are gone; they may still run there"
                )
                self._states[host] = "gone"
        if self.ended_by is None:
            self.ended_by = "success"

    def finish(self) -> None:
        """Logs brought back, agents dismissed, links closed."""
        self._bring_logs()
        self._session.end_input()
        deadline = time.monotonic() + 2.0
        while any(state != "gone" for state in self._states.values()) and time.monotonic() < deadline:
            self._pump(deadline)
        self._session.close()

    def _bring_logs(self) -> None:
        """Fetches the logs of hosts that do not share the run's folder. What does not come stays in `_not_fetched`."""
        waiting = {host for host in self._private if self._states[host] in ("done", "greeted")}
        self._fetched_at = dict.fromkeys(waiting, time.monotonic())
        self._session.send({"t": "fetch"}, to=waiting)
        while waiting:
            self._pump(time.monotonic() + 1.0)
            whole = {host for host in waiting if self._answers.pop((host, "fetched"), None)}
            for host in whole:
                del self._not_fetched[host]
            self._session.send({"t": "remove"}, to=whole)
            late = {host for host in waiting if time.monotonic() - self._fetched_at[host] > _FETCH_SECONDS}
            waiting -= whole | late | {host for host in waiting if self._states[host] == "gone"}

    def result(self, started: float) -> RunResult:
        """How it went, as known now."""
        first = self.first_failure()
        return RunResult(
            run_id=self._folder.run_id,
            ended_by=self.ended_by or "internal",
            exit_code=self.exit_code,
            started=started,
            seconds=time.time() - started,
            ranks=tuple(sorted(self.ends, key=lambda end: (end.rank, end.attempt))),
            first_failure=first if self.ended_by == "rank" else None,
            message=self.message,
            findings=tuple(self.findings),
            console_dropped=self._dropped + Counter(self._writer.dropped),
            not_fetched=tuple(f"{self._names[host]}:{path}" for host, path in sorted(self._not_fetched.items())),
        )

    def first_failure(self) -> RankEnd | None:
        """The rank that failed first in the last attempt, by the hosts' corrected clocks; those that nvrun ended itself
        do not count."""
        failed = [end for end in self.ends if end.code and not end.by_nvrun]
        last = max((end.attempt for end in failed), default=0)
        return min((end for end in failed if end.attempt == last), key=lambda end: end.at or math.inf, default=None)

    # -- events -----------------------------------------------------------------------------------------------------

    def _pump(self, deadline: float) -> None:
        """Takes one event, or returns at `deadline` (monotonic) or after a second at most."""
        wait = min(1.0, max(0.0, deadline - time.monotonic()))
        with suppress(queue.Empty):
            self._handle(self._session.events.get(timeout=wait))
        self._look_for_silence()

    def _handle(self, event: Event) -> None:
        if event.kind == "message":
            handle = getattr(self, "_on_" + event.body["t"].replace("-", "_"), None)
            if handle:
                handle(event.host, event.body)
            else:
                self._answers[event.host, event.body["t"]] = (event.body, time.time())
        elif event.kind == "chunk":
            self._fetched_at[event.host] = time.monotonic()
            self._folder.append(event.host, event.body)
        elif event.kind == "unreachable":
            self._unreachable(event.host, event.body)
        elif event.kind == "closed":
            self._closed(event.host, event.body)
        elif event.kind == "signal":
            self._signalled(event.body)

    def _on_hello(self, host: int, body: Body) -> None:
        self.hello[host] = body
        if self._states[host] == "connecting":
            self._states[host] = "greeted"

    def _on_refused(self, host: int, body: Body) -> None:
        why, remedy = f"{self._names[host]}: {body['why']}", "--python PATH names another"
        self._unreachable(host, Unreachable(why, code="host-old-python", hint=remedy))

    def _on_gate(self, host: int, body: Body) -> None:
        """All its ranks wait for GO."""

    def _on_rank(self, host: int, body: Body) -> None:
        """A rank runs."""

    def _on_end(self, host: int, body: Body) -> None:
        end = RankEnd(
            rank=body["rank"],
            host=self._names[host],
            local_rank=body["local"],
            pid=body["pid"],
            attempt=body["attempt"],
            code=body["code"],
            at=body["time"] - self.offsets[host][0],
            by_nvrun=body["asked"],
            tail=tuple(body["tail"]),
        )
        self.ends.append(end)
        if end.code and not end.by_nvrun and self._gang:
            self._end("rank", shell_code(end.code), "")

    def _on_no_start(self, host: int, body: Body) -> None:
        self._end("torchrun", 127, f"{self._names[host]}: torchrun could not be started: {body['why']}")

    def _on_done(self, host: int, body: Body) -> None:
        self._states[host] = "done"
        name, code = self._names[host], body["code"]
        if body["dropped"]:
            self._dropped[name] += body["dropped"]
        for path, (lost, why) in body["lost"].items():
            self._writer.say(f"nvrun: {name}: {lost} bytes of output could not be written to {path}: {why}")
        if body["stuck"]:
            pids = " ".join(str(pid) for pid in body["stuck"])
            self._writer.say(
                f"nvrun: {name}: processes {pids} cannot be ended (uninterruptible wait); the host needs a reboot"
            )
        if code and self.ended_by is None and not self._goes_on_without(host, f"torchrun there {ended(code)}"):
            failed = self.first_failure()
            if failed:  # with restarts: the last attempt has failed as well
                self._end("rank", shell_code(failed.code or 0), "")
            else:
                words = "\n".join(f"    {line}" for line in body["tail"])
                self._end("torchrun", shell_code(code), f"torchrun on {name} {ended(code)}\n{words}".strip())

    def _on_terminated(self, host: int, body: Body) -> None:
        self._end("signal", 128 + signal.SIGTERM, f"{self._names[host]}: the agent was told to end (SIGTERM)")

    def _on_failed(self, host: int, body: Body) -> None:
        self._end("internal", 70, f"{self._names[host]}: {body['at']}: {body['why']}")

    def _on_file(self, host: int, body: Body) -> None:
        self._folder.begin_file(host, self._names[host], body["path"])

    def _on_fetched(self, host: int, body: Body) -> None:
        self._folder.end_file(host)
        self._answers[host, "fetched"] = (body, time.time())

    def _closed(self, host: int, words: str) -> None:
        before, self._states[host] = self._states[host], "gone"
        if before == "connecting":
            no_python = "no Python here" in words or "ended with 127" in words
            remedy = "--python PATH names the host's interpreter, --setup CMD prepares its environment"
            trouble = Unreachable(
                f"{self._names[host]}: the agent did not start: {words or 'the connection ended'}",
                code="host-no-python" if no_python else "host-no-agent",
                hint=remedy if no_python else "",
            )
            self._unreachable(host, trouble)
        elif before in ("greeted", "running") and not self._goes_on_without(host, "its connection ended"):
            self._end("lost", 69, f"lost {self._names[host]}: its connection ended{': ' + words if words else ''}")

    def _unreachable(self, host: int, trouble: Unreachable) -> None:
        self._states[host] = "gone"
        self.findings.append(
            Finding(
                code=trouble.code,
                severity=Severity.FATAL,
                message=trouble.message,
                host=self._names[host],
                remedy=trouble.hint,
            )
        )

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            self._session.send({"t": "signal", "name": name[3:]})
            return
        self._signals += 1
        if self._signals == 1:
            if "running" in self._states.values():
                self._writer.say(
                    f"nvrun: {name}: ending the ranks, {self._job.options.grace:g} s for their checkpoints (again: now)"
                )
            self._end("signal", 128 + number, f"ended by {name}")
        else:
            self._writer.say(f"nvrun: {name} again: now")
            self._session.send({"t": "end", "grace": 0.0})

    def _end(self, cause: EndedBy, exit_code: int, message: str) -> None:
        """The first cause stands; every host is told to end its job."""
        if self.ended_by is not None:
            return
        self.ended_by, self.exit_code, self.message = cause, exit_code, message
        self._session.send({"t": "end", "grace": self._job.options.grace})

    def _goes_on_without(self, host: int, why: str) -> bool:
        """Whether an elastic job still has nodes enough; `host` has left it then."""
        if self._gang or self.ended_by is not None:
            return False
        self._left.add(host)
        staying = len(self._names) - len(self._left)
        if staying < self._min_nodes:
            return False
        self._writer.say(f"nvrun: {self._names[host]} has left the job ({why}); it goes on with {staying}")
        return True

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
                self._writer.say(
                    f"nvrun: nothing heard from {self._names[host]} for {silent:.0f} s; its ranks may go on"
                )
            elif host in self._silent and silent < SILENT_AFTER:
                self._silent.discard(host)
                self._writer.say(f"nvrun: {self._names[host]} is heard again")
            if state == "running" and silent > self._session.lost_after:
                self._states[host] = "gone"
                if self._goes_on_without(host, f"nothing heard for {silent:.0f} s"):
                    continue
                self._end("lost", 69, f"lost {self._names[host]}: nothing heard for {silent:.0f} s")

    # -- questions --------------------------------------------------------------------------------------------------

    def _collect(self, answer: str, hosts: Collection[int], timeout: float) -> Mapping[int, tuple[Body, float]]:
        """One answer of each host: (body, when it arrived). Raises HostGone where the run has ended meanwhile."""
        deadline = time.monotonic() + timeout
        found: dict[int, tuple[Body, float]] = {}
        while len(found) < len(hosts):
            for host in hosts:
                if (host, answer) in self._answers:
                    found[host] = self._answers.pop((host, answer))
            if len(found) == len(hosts):
                break
            if self.ended_by and any(self._states[host] == "gone" for host in hosts):
                raise HostGone
            if time.monotonic() > deadline:
                silent = ", ".join(self._names[host] for host in hosts if host not in found)
                self._end("lost", 69, f"no answer ({answer}) from {silent} in {timeout:g} s")
                raise HostGone
            self._pump(deadline)
        if self.ended_by:
            raise HostGone
        return found


def shell_code(code: int) -> int:
    """An exit status as a shell has it: 128+n for signal n."""
    return code if code >= 0 else 128 - code


def master_address(addresses: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """The address of the first host that the others are to use: the one in whose network they all are, by family and
    the longest common prefix, the first of equals; for a single host the loopback."""
    if not others:
        return "127.0.0.1"
    if not addresses:
        raise NvrunError("the first host has no address that others could reach", hint="look there: ip address show")
    return max(
        addresses,
        key=lambda mine: min(max((_shared(mine, theirs) for theirs in other), default=-1) for other in others),
    )


def nearest_address(addresses: Sequence[str], master: str) -> str:
    """Of a host's addresses the one nearest to the first host's."""
    return max(addresses, key=lambda mine: _shared(mine, master), default="127.0.0.1")


def _shared(one: str, other: str) -> int:
    """Leading bits that two addresses share; -1 for different families."""
    first, second = ipaddress.ip_address(one), ipaddress.ip_address(other)
    if first.version != second.version:
        return -1
    return first.max_prefixlen - (int(first) ^ int(second)).bit_length()


def ranks_of(job: Job, host: Host, gpus: int) -> int:
    """Ranks of one host: its slots, else --nproc-per-node, else (a fleet) one for each visible GPU, at least one."""
    wanted = job.args.nproc_per_node
    if host.slots:
        return host.slots
    if isinstance(wanted, int) and (job.args.is_set("nproc_per_node") or not job.fleet):
        return wanted
    if wanted in ("cpu", "auto") and not gpus:
        raise UsageError(
            f"--nproc-per-node {wanted}: {host.name} has no GPU, so give a number", hint="--nproc-per-node N"
        )
    return max(gpus, 1)


@contextmanager
def conducting(job: Job, folder: RunFolder, writer: Writer, environ: Mapping[str, str]) -> Iterator[Conductor]:
    """Opens the links to all hosts; at the end logs are brought back and nothing of the run is left anywhere."""
    options = job.options
    ways = routes.routes(
        job.hosts,
        job.kinds,
        pythons=routes.interpreters(environ, options.python),
        rsh=options.rsh,
        connect_timeout=options.connect_timeout,
        ssh_config=options.ssh_config,
        environment=environ,
    )
    session = Session(ways, lost_after=job.lost_after, show=writer.offer)
    with _signals_to(session):
        conductor = Conductor(job, session, folder, writer)
        try:
            yield conductor
        finally:
            conductor.finish()


@contextmanager
def _signals_to(session: Session) -> Iterator[None]:
    def tell(number: int, frame: object) -> None:
        session.events.put(Event(-1, "signal", number))

    wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, tell) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
