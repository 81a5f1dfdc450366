"""Plan -> running job -> RunResult: the launcher's side of a run."""

from __future__ import annotations

import errno
import math
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from nvrun.console import Writer
from nvrun.facts import HostFacts
from nvrun.fleet.crew import MUTE_AFTER, SILENT_AFTER, Crew, Ended, Ending
from nvrun.fleet.replies import rank_end
from nvrun.fleet.session import Body
from nvrun.inspection import Inspection
from nvrun.job import Job
from nvrun.meanings import MEANINGS, found, means, there
from nvrun.model import FAILURES, Attempt, Finding, RankEnd, RunResult, Severity, first_failure
from nvrun.nccl.heard import NOTED, Words, asked
from nvrun.plan import FIRST_STDERR_LINES, HostPlan, Plan, as_mapping, socket_name
from nvrun.preflight import Before, Decided
from nvrun.prepare import Prepared
from nvrun.private_logs import PrivateLogs
from nvrun.report.text import ended
from nvrun.rundir import RunFolder

if TYPE_CHECKING:
    from nvrun.hang.watch import Watch

_LAST_SECONDS = 15.0
"""After the grace has passed, what a host may still take for its sweep and its last words."""

_ALONE_SECONDS = 30.0
"""After which a node that torchrun has given no ranks says whom it waits for. To load torch takes a few seconds, from a
cold file server more."""

HOST_LOST = means(
    "host-lost",
    "a host was heard no more while its ranks ran",
    read="heartbeats of its agent, and the connection to it",
    why="its ranks are gone or cannot be reached: the others would wait for them for ever",
    remedy="is it up (ping, its BMC's console)? then nvrun check --hosts HOST, and journalctl -b -1 there; leave it "
    "out meanwhile: --exclude HOST",
    source="nvrun's own heartbeats: one every 2 s",
)
STEP_ENDED = means(
    "step-ended",
    "srun, or its step on all nodes, ended while ranks ran",
    read="the end of srun, and what it said at last",
    why="all ranks of the job end with their step; it says nothing about a node",
    remedy="scancel of the step or the job, a time limit, a preemption, a killed srun: scontrol show job, sacct -j and "
    "slurmctld's log say which",
    source="srun(1); scancel(1)",
)
TORCHRUN_KILLED = means(
    "torchrun-killed",
    "torchrun itself was ended by a signal on a host",
    read="its exit status, as the host's agent saw it",
    why="its ranks there end with it, and the job with them",
    remedy="look who sent it: the kernel for want of memory (dmesg -T | grep -i 'killed process' there), the "
    "scheduler, a person",
    source="waitpid(2); signal(7)",
)
TORCHRUN_FAILED = means(
    "torchrun-failed",
    "torchrun itself ended on a host, or could not be started, before any rank had failed",
    read="its exit status, as the host's agent saw it",
    why="its ranks there end with it, and the job with them",
    remedy="the reason given here, or its own last lines: torchrun.err in that host's logs",
    source="exit(3)",
)
OUTPUT_LOST = means(
    "output-lost",
    "output of ranks could not be written to their log files",
    read="write(2) of the host's agent",
    why="the job goes on, and the console has what was shown; the files miss it",
    remedy="df -h and df -i there; --run-dir DIR names another place for logs",
    source="write(2): ENOSPC, EDQUOT, EIO",
)


State = Literal["idle", "running", "done", "left", "gone"]
"""Of one host. left: out of an elastic job that goes on, but still heard; gone: out of it, and heard no more."""


class Launch:
    """One run on all hosts of a crew: started, let go, observed, ended."""

    def __init__(self, job: Job, crew: Crew, folder: RunFolder, writer: Writer) -> None:
        self._job, self._crew, self._folder, self._writer = job, crew, folder, writer
        self._states: dict[int, State] = dict.fromkeys(crew.hosts, "idle")
        self._ends: list[RankEnd] = []
        self._logs = PrivateLogs(crew, folder)
        self._inspection = Inspection(crew)
        self._gang = True
        """One rank's failure is the job's: torchrun neither restarts nor goes on with fewer nodes."""
        self._min_nodes = len(crew.hosts)
        self._store: int | None = None
        """The host without which the others cannot meet again: it holds c10d's store."""
        self._dropped: Counter[str] = Counter()
        self._before: Before | None = None
        self.plan: Plan | None = None
        """What the ranks were let go with."""
        self._watch: Watch | None = None
        """Of hangs, from the first silence on."""
        self._words = Words({})
        self._lost: dict[str, str] = {}
        """Host -> how, of those that the job could not do without."""
        self._tell_alone_at = math.inf
        """When it is said that no rank has begun: monotonic seconds."""
        self._torchrun: Finding | None = None
        """That it ended by itself, of the host where it did so first."""
        self._bad_hosts: dict[str, str] = {}
        self._between: tuple[str, ...] = ()
        self._changed: list[Finding] = []
        self._failed: list[Finding] = []
        """Why hosts are bad, where a second look at them said so."""
        crew.listener = self

    @property
    def begun(self) -> bool:
        """Ranks were let go."""
        return self.plan is not None

    # -- in the order of the pipeline -------------------------------------------------------------------------------

    def start(self, prepared: Prepared) -> Plan:
        """torchrun starts everywhere; its ranks wait at the gate."""
        plan = prepared.plan
        self._logs.private = dict(prepared.private)
        self._gang = plan.restarts == 0 and plan.min_nodes == len(plan.hosts)
        self._min_nodes = plan.min_nodes
        self._store = 0 if plan.rendezvous == "c10d" else None
        for host in plan.hosts:
            self._states[host.node] = "running"
            body = {"t": "job", "mark": f"{plan.id}.{host.node}", "socket": socket_name(plan.id, host.node),
                    "argv": (*host.prefix, *host.argv), "cwd": host.cwd, "grace": plan.grace,
                    "set": as_mapping(host.env), "defaults": as_mapping(host.defaults),
                    "console": "all" if plan.console is None else plan.console,
                    "first_stderr": FIRST_STDERR_LINES}  # fmt: skip
            self._crew.send(body, to=[host.node])
        if plan.master_port is not None:
            self._crew.send({"t": "listening", "port": plan.master_port}, to=[0])
        return plan

    def go(self, started: Plan, facts: Mapping[int, HostFacts], decided: Decided) -> None:
        """The ranks run, by the plan that was decided on; `started`: as torchrun was. Ended where they may not, or
        where torchrun was over before they could."""
        if decided.exit_code:
            self._bad_hosts |= decided.bad_hosts
            self._between = decided.between
            self._crew.end("preflight", decided.exit_code)
            raise Ended
        self.plan = plan = decided.plan
        self._before = Before(started, plan, facts, decided.verdict)
        if early := self._crew.stillborn:
            self._crew.end(early.by, early.exit_code, early.message)
            raise Ended
        several = len(plan.hosts) > 1 or self._job.step is not None or self._job.args.nnodes[1] > 1
        self._words = Words(asked(plan, facts, several=several))
        for host in plan.hosts:
            ranks = {
                str(rank.local_rank): {
                    "set": as_mapping(rank.env),
                    "prefix": rank.prefix,
                    "cpus": rank.cpus,
                    "files": rank.files,
                    "hidden": rank.hidden,
                    "last": msgspec.to_builtins(rank.last),
                }
                for rank in host.ranks
            }
            body = {"t": "go", "ranks": ranks, "echo": msgspec.to_builtins(host.echo), "noted": NOTED,
                    "monitor": self._monitor(host), "hang": self._silence(host)}  # fmt: skip
            self._crew.send(body, to=[host.node])

    def _monitor(self, host: HostPlan) -> Body | None:
        options = self._job.options
        if options.monitor == "off":
            return None
        return {
            "every": options.monitor,
            "run": self._folder.run_id,
            "host": host.host.name,
            "textfile": options.monitor_textfile,
        }

    def _silence(self, host: HostPlan) -> Body | None:
        """After how many seconds without output the host speaks up, and where a tool of the job's may lie."""
        after = min(self._job.options.hang_after, self._job.options.hang_timeout)
        return {"after": after, "beside": host.argv[0].rpartition("/")[0]} if math.isfinite(after) else None

    def observe(self) -> None:
        """Until the job is over on every host that can still be heard."""
        crew = self._crew
        self._tell_alone_at = time.monotonic() + _ALONE_SECONDS
        while "running" in self._states.values() and crew.ending is None:
            crew.pump(math.inf)
            self._tell_whom_it_waits_for()
            self._inspection.turn()
            if self._watch:
                self._watch.turn([host for host, state in self._states.items() if state == "running"])
            self._part_with_the_silent()
        deadline = time.monotonic() + self._job.options.grace + _LAST_SECONDS
        while "running" in self._states.values() and time.monotonic() < deadline and not self._waits_in_vain():
            crew.pump(deadline)
        for host, state in self._states.items():
            if state == "running":
                crew.say(f"nvrun: {crew.names[host]} did not say that its ranks are gone; they may still run there")
                self._states[host] = "gone"
                if (silent := crew.silent_for(host)) > SILENT_AFTER:
                    self._lost[crew.names[host]] = f"nothing heard for {silent:.0f} s"
        if crew.ending is None:
            crew.end("success", 0)

    def _tell_whom_it_waits_for(self) -> None:
        """Once, where this is one node of several that something else starts: torchrun itself says nothing."""
        if time.monotonic() < self._tell_alone_at:
            return
        self._tell_alone_at = math.inf
        where = self._job.endpoint
        if where is None or where.nodes < 2:
            return
        self._crew.say(
            f"nvrun: no rank has begun after {_ALONE_SECONDS:g} s: torchrun waits at {where.host} port {where.port} "
            f"for the other nodes ({where.nodes} in all), or is still being loaded"
        )

    def _waits_in_vain(self) -> bool:
        """All was to end now, and of hosts that have not said so nothing is heard."""
        running = [host for host, state in self._states.items() if state == "running"]
        return self._crew.signals > 1 and all(self._crew.silent_for(host) > MUTE_AFTER for host in running)

    def bring_logs(self) -> None:
        """Fetches the logs of hosts that do not share the run's folder, of all that are still heard."""
        self._logs.bring({host for host, state in self._states.items() if state in ("done", "left", "idle")})

    def look_again(self, started: float) -> Collection[int]:
        """After a failure: what changed on the hosts since the ranks were let go, and which of them failed. Not where
        all was to end now. Returns the hosts that were looked at."""
        crew = self._crew
        if self._before and crew.ending and crew.ending.by in FAILURES and crew.signals < 2:
            from nvrun import aftermath  # only a failure waits for the rules of diagnosis

            seen = aftermath.look(crew, self._job, self._before, self.result(started))
            self._changed += seen.changed
            self._bad_hosts |= {host: finding.message for host, finding in seen.failed.items()}
            self._failed += seen.failed.values()
            return seen.looked_at
        return ()

    def result(self, started: float, findings: Iterable[Finding] = (), earlier: Iterable[Attempt] = ()) -> RunResult:
        """How it went, as known now."""
        crew, ending = self._crew, self._ending()
        self._writer.flush()
        return RunResult(
            run_id=self._folder.run_id,
            ended_by=ending.by,
            exit_code=ending.exit_code,
            started=started,
            seconds=self._folder.seconds,
            ranks=tuple(sorted(self._ends, key=lambda end: (end.rank, end.attempt))),
            first_failure=first_failure(self._ends) if ending.by == "rank" else None,
            message=ending.message,
            findings=(
                *findings,
                *crew.findings,
                *self._inspection.found.values(),
                *self._failed,
                *self._words.findings(),
                *self._hang(),
                *self._losses(),
                *([self._torchrun] if self._torchrun and ending.by == "torchrun" else []),
            ),
            console_dropped=self._dropped + Counter(self._writer.dropped),
            attempts=tuple(earlier),
            began=self.begun,
            bad_hosts=self._bad_hosts | ({} if self._is_the_step() else self._lost | self._unreachable()),
            between=self._between,
            changed=tuple(self._changed),
            not_fetched=self._logs.not_fetched(begun=self.begun),
        )

    def _hang(self) -> Iterable[Finding]:
        return [self._watch.finding] if self._watch and self._watch.finding else []

    def _losses(self) -> Iterable[Finding]:
        if self._lost and self._is_the_step():
            yield found(STEP_ENDED, Severity.ERROR, self._step_ended(), confidence=0.9)
            return
        for name, why in self._lost.items():
            message = f"{name} was lost {'before' if self.plan is None else 'while'} its ranks ran: {why}"
            remedy = there(MEANINGS[HOST_LOST].remedy, name)
            yield found(HOST_LOST, Severity.ERROR, message, host=name, remedy=remedy, confidence=0.9)

    def _ending(self) -> Ending:
        """What ended it. Ranks that fail because a host is gone are often heard before that host is missed."""
        ending = self._crew.ending
        assert ending is not None
        if ending.by in ("rank", "torchrun") and self._lost and not self._is_the_step():
            (name, why), *_ = self._lost.items()
            return Ending(by="lost", exit_code=69, message=f"lost {name}: {why}")
        if ending.by == "lost" and self._lost and self._is_the_step():
            return Ending(by="lost", exit_code=ending.exit_code, message=self._step_ended())
        if ending.by == "rank" and (first := first_failure(self._ends)):  # another may have been heard sooner
            return Ending(by="rank", exit_code=shell_code(first.code or 0), message=ending.message)
        return ending

    def _step_ended(self) -> str:
        """In its own words, which all of its hosts have."""
        names, when = self._crew.names, "before" if self.plan is None else "while"
        whole = f"on all {len(names)} nodes" if len(names) > 1 else f"on {names[0]}"
        name, why = next(iter(self._lost.items()))
        last_words = self._crew.closed.get(names.index(name))
        if last_words is None:  # nothing is heard of it, and it may go on
            return f"srun's step {whole} was lost {when} its ranks ran: {why}"
        return f"srun's step {whole} ended {when} its ranks ran{last_words}"

    def _is_the_step(self) -> bool:
        """A step of srun that ends, or does not even start, as a whole says nothing about any of its nodes."""
        return "srun" in self._job.kinds and len(self._lost | self._unreachable()) == len(self._crew.names)

    def _unreachable(self) -> dict[str, str]:
        return {finding.host: finding.message for finding in self._crew.findings if finding.host}

    # -- what the agents say ----------------------------------------------------------------------------------------

    def message(self, host: int, body: Body) -> None:
        kind = body["t"]
        if kind == "rank":
            self._tell_alone_at = math.inf
            self._inspection.rank_began(host)
        elif kind == "inspected" and self.plan is not None:
            self._inspection.read_back(self.plan.hosts[host], body["result"] or {})
        elif kind == "noted":
            self._hear(host, body["lines"])
        elif kind == "end":
            self._rank_ended(host, body)
        elif kind == "done":
            self._host_done(host, body)
        elif kind == "file":
            self._logs.begin_file(host, body["path"])
        elif kind == "unread":
            self._logs.unread(host, body["path"], body["why"])
        elif kind == "no-start":
            self._states[host] = "done"  # there is nothing whose end could still be told
            name = self._crew.names[host]
            self._torchrun_over(name, 127, f"{name}: torchrun could not be started: {body['why']}")
        elif kind == "stopped":
            name, pid = self._crew.names[host], body["pid"]
            self._crew.say(f"nvrun: torchrun on {name} was stopped by somebody (SIGSTOP); there: kill -CONT {pid}")
        elif kind == "terminated":
            self._crew.end("signal", 143, f"{self._crew.names[host]}: the agent was told to end (SIGTERM)")
        elif kind == "silent" or self._watch:
            self._about_silence(host, body)

    def _about_silence(self, host: int, body: Body) -> None:
        from nvrun.hang.watch import Watch  # few jobs ever need it

        assert self.plan is not None, "ranks that were not let go are not listened to"
        self._watch = self._watch or Watch(self._crew, self.plan, self._job.options, self._folder, self._ends)
        self._watch.message(host, body)

    def chunk(self, host: int, data: bytes) -> None:
        self._logs.append(host, data)

    def lost(self, host: int, why: str) -> None:
        before, self._states[host] = self._states[host], "gone"
        self._logs.lost(host, why)
        if before in ("done", "left") or (before == "running" and self._goes_on_without(host, why)):
            return
        if before == "running" or self._crew.ending is None:
            self._lost[self._crew.names[host]] = why
        self._crew.end("lost", 69, f"lost {self._crew.names[host]}: {why}")

    def _hear(self, host: int, lines: Mapping[str, list[int]]) -> None:
        """NCCL's words of ranks; where they differ from the plan, that is said once."""
        for finding in self._words.hear(host, lines):
            self._crew.say(f"nvrun: {finding.host}: {finding.message}")

    def _rank_ended(self, host: int, body: Body) -> None:
        end = rank_end(body, self._crew.names[host], self._crew.offsets[host][0])
        self._ends.append(end)
        if end.code and not end.by_nvrun:
            if self._gang:
                self._crew.end("rank", shell_code(end.code))
            else:
                self._tell_of_restart(end)

    def _tell_of_restart(self, end: RankEnd) -> None:
        """The first failure of an attempt that torchrun follows with another: nothing else says it on the console."""
        most = self.plan.restarts if self.plan else 0
        if end.attempt < most and not any(other.code and other.attempt >= end.attempt for other in self._ends[:-1]):
            self._crew.say(
                f"nvrun: rank {end.rank} on {end.host} (local rank {end.local_rank}) {ended(end.code)}: torchrun "
                f"starts all ranks again ({end.attempt + 1} of {most})"
            )

    def _host_done(self, host: int, body: Body) -> None:
        crew, name, code = self._crew, self._crew.names[host], body["code"]
        self._states[host] = "done"
        if body["dropped"]:
            self._dropped[name] += body["dropped"]
        for path, (lost, why) in body["lost"].items():
            message = f"{name}: {_words(why)}: {lost} bytes of output could not be written to {path}"
            crew.say(f"nvrun: {message}")
            self._changed.append(found(OUTPUT_LOST, Severity.WARNING, message, host=name, subject=path))
        if body["stuck"]:
            pids = " ".join(str(pid) for pid in body["stuck"])
            crew.say(f"nvrun: {name}: processes {pids} cannot be ended (uninterruptible wait); it may need a reboot")
        if code and crew.ending is None and not self._goes_on_without(host, f"torchrun there {ended(code)}"):
            failed = first_failure(self._ends)
            if failed:  # with restarts: the last attempt has failed as well
                crew.end("rank", shell_code(failed.code or 0))
            else:
                self._torchrun_over(name, code, f"torchrun on {name} {ended(code)}", body["tail"])

    def _torchrun_over(self, name: str, code: int, message: str, tail: Sequence[str] = ()) -> None:
        """torchrun itself has failed on a host. Before the ranks were let go that waits for what the checks say."""
        kind, confidence = (TORCHRUN_KILLED, 0.9) if code < 0 else (TORCHRUN_FAILED, 0.5)
        self._torchrun = self._torchrun or found(
            kind, Severity.ERROR, message, host=name, evidence=tuple(tail), confidence=confidence
        )
        words = "\n".join([message, *(f"    {line}" for line in tail)])
        if self.plan is not None:
            self._crew.end("torchrun", shell_code(code), words)
        elif self._crew.stillborn is None:
            self._crew.stillborn = Ending(by="torchrun", exit_code=shell_code(code), message=words)

    def _goes_on_without(self, host: int, why: str) -> bool:
        """Whether an elastic job still has nodes enough; `host` has left it then."""
        staying = sum(state in ("running", "done") for other, state in self._states.items() if other != host)
        if self._gang or self._crew.ending is not None or staying < self._min_nodes or host == self._store:
            return False
        self._states[host] = "gone" if self._states[host] == "gone" else "left"
        self._crew.say(f"nvrun: {self._crew.names[host]} has left the job ({why}); it goes on with {staying}")
        return True

    def _part_with_the_silent(self) -> None:
        """An elastic job that has come to its end on nodes enough, and everywhere that is heard, is over: torchrun does
        not end on one node while another is still part of its job. What is silent ends by --lost-after."""
        running = {host for host, state in self._states.items() if state == "running"}
        done = sum(state == "done" for state in self._states.values())
        if self._gang or not running or not running <= self._crew.silent or done < self._min_nodes:
            return
        for host in running:
            self._states[host] = "gone"
            self._crew.say(f"nvrun: {self._crew.names[host]} is not waited for: the job has ended without it")


def _words(name: str) -> str:
    """`ENOSPC` as `No space left on device`."""
    return os.strerror(getattr(errno, name)) if name.isupper() and hasattr(errno, name) else name


def shell_code(code: int) -> int:
    """An exit status as a shell has it: 128+n for signal n."""
    return code if code >= 0 else 128 - code
