"""Runs torchrun on one host, gates its ranks, and ends all of it whatever happens.

    keeper (subreaper) -> supervisor (this process) -> torchrun -> shim, then rank

torchrun starts at once and imports torch while the launcher still checks the hosts. Each rank's shim says hello on an
abstract unix socket and waits there; no code of the user runs before GO.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Set

from . import oom, procs, slurm, streams
from .folder import ENDS, Folder
from .gate import Gate, Rank, Starts
from .last import Look
from .loop import READ
from .output import Output
from .sample import Sampler
from .silence import Silence

if TYPE_CHECKING:
    from .main import Agent

_LAST_WORDS_SECONDS = 1.0
"""torchrun's own banner is out 0.4 s after its last rank (measured)."""
_LEFTOVER_SECONDS = 2.0
"""From TERM to KILL for what outlives a torchrun that ended by itself."""
_HEARSAY_SECONDS = 0.6
"""torchrun, which was quicker to reap a rank, tells its code within its next turn (0.1 s)."""
_STOPPED_SECONDS = 5.0
"""Between two looks at whether somebody stopped torchrun."""
_TERM_SECONDS = 0.3
"""A rank that ended by TERM waits so long for Slurm's word to the agent itself."""


class Job:
    """torchrun and its ranks on this host."""

    def __init__(self, agent: Agent, request: Dict[str, Any], where: Folder) -> None:
        self.done = False
        self._agent = agent
        self._link, self._loop = agent.link, agent.loop
        self._request = request
        self._where = where
        self._environment = {**request["defaults"], **os.environ, **request["set"]}
        self._ranks: Dict[int, Rank] = {}
        """By pid, those that have not ended."""
        self._rank_of: Dict[int, Rank] = {}
        """By pid, the ended ones too."""
        self._sampler: Optional[Sampler] = None
        self._silence: Optional[Silence] = None
        self._go: Optional[Dict[str, Any]] = None
        self._ending = False
        self._asked: Set[int] = set()
        self._starts = Starts()
        self._failed = False
        """A rank of the last start has."""
        self._shielded = False
        self._torchrun: Optional[subprocess.Popen[bytes]] = None
        self._torchrun_pidfd = -1
        self._unreported: Dict[int, Callable[[Optional[int]], None]] = {}
        """By pid, ranks that have ended and whose code is still to be told."""
        self._look = Look(self._loop, where.path, self._environment, request["cwd"])
        self._gate = Gate(self._loop, self._greet)

    # -- start ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        request = self._request
        self._gate.open(request["socket"])
        environment = {**self._environment, procs.MARK: request["mark"]}
        self._shielded = slurm.shields(environment, request["argv"])
        if self._shielded:
            environment[slurm.VARIABLE] = slurm.HANDLED
        output = Output(self._loop, self._link, self._where.path, request, self._rank_of, self._is_told)
        self._output = output
        supervisor = os.getpid()

        def in_child() -> None:
            procs.set_pdeathsig(signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)
            # torchrun takes USR1 and USR2 for an order to stop, or dies of them; the shim restores them for the rank.
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN if self._shielded else signal.SIG_DFL)
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        try:
            self._torchrun = subprocess.Popen(
                request["argv"],
                env=environment,
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=output.torchrun[0].write_end,
                stderr=output.torchrun[1].write_end,
                start_new_session=True,
                preexec_fn=in_child,
            )
        except OSError as error:
            if error.filename == request["cwd"]:
                why = "the working directory %s: %s" % (request["cwd"], error.strerror)
                self._link.send({"t": "cannot", "code": "path-missing", "why": why})
            else:
                why = "%s: %s" % (error.filename or request["argv"][0], error.strerror)
                self._link.send({"t": "no-start", "why": why})
            self._finish(127)
            return
        output.follow(output.torchrun)
        self._torchrun_pidfd = os.pidfd_open(self._torchrun.pid)
        self._loop.watch(self._torchrun_pidfd, READ, self._torchrun_ended)
        self._loop.later(_STOPPED_SECONDS, self._look_whether_stopped)

    def _look_whether_stopped(self, before: bool = False) -> None:
        """A torchrun that somebody stopped ends nothing and starts nothing, and looks like one that is patient."""
        assert self._torchrun is not None
        if self.done:
            return
        found = procs.stat(self._torchrun.pid)
        stopped = found is not None and found.state == "T" and not self._look.pids()
        if stopped and not before:
            self._link.send({"t": "stopped", "pid": self._torchrun.pid})
        self._loop.later(_STOPPED_SECONDS, partial(self._look_whether_stopped, stopped))

    @property
    def begun(self) -> bool:
        """Ranks were let go."""
        return self._go is not None

    @property
    def grace(self) -> float:
        """Seconds from TERM to KILL."""
        return float(self._request["grace"])

    def pids(self) -> Set[int]:
        """Processes whose exit status this job still wants to read."""
        wanted = set(self._ranks)
        if self._torchrun and self._torchrun.returncode is None:
            wanted.add(self._torchrun.pid)
        return wanted | self._look.pids()

    def spare(self) -> Set[int]:
        """Processes that are not the job's: its monitor."""
        return self._sampler.pids() if self._sampler else set()

    def rank_pids(self) -> Dict[int, int]:
        """Local rank -> pid of the ranks that run."""
        return {rank.local_rank: rank.pid for rank in self._ranks.values() if rank.sock is None}

    def running(self) -> Dict[int, int]:
        """Rank -> pid of the ranks that run."""
        return {rank.rank: rank.pid for rank in self._ranks.values() if rank.sock is None}

    def path(self) -> str:
        """Where a tool of the job's is looked for: on its PATH, then beside its interpreter."""
        assert self._go is not None
        return os.pathsep.join(filter(None, [self._environment.get("PATH", ""), self._go["hang"]["beside"]]))

    # -- the gate -------------------------------------------------------------------------------------------------

    def _greet(self, rank: Rank) -> None:
        if self._starts.add(rank):
            self._failed = False
        self._ranks[rank.pid] = rank
        self._rank_of[rank.pid] = rank
        self._loop.watch(rank.pidfd, READ, lambda: self._rank_ended(rank))
        if self._go is not None:
            self._release(rank)

    def go(self, message: Dict[str, Any]) -> None:
        """Lets the ranks run; each gets its environment, its binding and its pipes."""
        self._go = message
        if message.get("monitor"):
            with contextlib.suppress(OSError):  # no process to be had: the job goes on unwatched
                self._sampler = Sampler(self._loop, self._where.path, message["monitor"])
        self._output.begin(message)
        for rank in list(self._ranks.values()):
            if rank.sock:
                self._release(rank)

    def _release(self, rank: Rank) -> None:
        assert self._go is not None
        assert rank.sock is not None
        plan = self._go["ranks"].get(str(rank.local_rank), {})
        rank.streams = self._output.of_rank(rank, plan)
        body = json.dumps(
            {
                "set": plan.get("set", {}),
                "prefix": plan.get("prefix", []),
                "cpus": plan.get("cpus", []),
                "traced": bool(plan.get("last") or self._go["hang"]),
                "unset": [slurm.VARIABLE] if self._shielded else [],
            }
        ).encode()
        try:
            socket.send_fds(rank.sock, [struct.pack("!I", len(body))], [stream.write_end for stream in rank.streams])
            rank.sock.sendall(body)
        except OSError:
            pass  # it died at the gate: its pidfd says so
        rank.sock.close()
        rank.sock = None
        rank.begun = time.time()
        rank.oom = oom.read(rank.pid)
        self._output.follow(rank.streams, self._heard)
        if self._go["hang"] and not self._silence:
            self._silence = Silence(self._loop, self._go["hang"]["after"], self._tell_of_silence)
        self._heard()
        if self._sampler:
            self._sampler.begin(rank.rank, rank.pid)
        self._link.send({"t": "rank", "rank": rank.rank, "local": rank.local_rank, "pid": rank.pid,
                          "attempt": rank.attempt})  # fmt: skip

    def _heard(self) -> None:
        """A rank wrote something, began or ended."""
        if self._silence:
            self._silence.heard()

    def _tell_of_silence(self, silent: bool) -> None:
        if not self.done:
            self._link.send({"t": "silent" if silent else "speaks"})

    def _is_told(self) -> bool:
        """Whether the launcher's own report says more than what torchrun has to say from now on."""
        return self._failed or self._ending or bool(self._rank_of and not self._ranks)

    # -- ends -----------------------------------------------------------------------------------------------------

    def signal_ranks(self, number: int) -> None:
        procs.kill([rank.pid for rank in self._ranks.values() if rank.sock is None], number)

    def end(self, grace: Optional[float], look: bool = True) -> None:
        """TERM to the ranks by way of torchrun, after `grace` seconds (None: the job's own) KILL. `look`: not before
        the last look at them has been taken."""
        if self.done:
            return
        wait = self._request["grace"] if grace is None else grace
        if not self._ending:
            self._ending = True
            self._asked = set(self._ranks)
            procs.kill(
                [rank.pid for rank in self._ranks.values() if rank.sock], signal.SIGKILL
            )  # nothing of the user ran
            if look:
                self._look_last()
            self._look.when_done(self._tell)
        self._loop.later(wait, self._kill)

    def _tell(self) -> None:
        if self.done:
            return
        if self._torchrun and not self._failed:  # after a rank's failure torchrun is ending its siblings by itself
            self._torchrun.send_signal(slurm.END if self._shielded else signal.SIGTERM)
            if self._shielded and not self._agent.signals.came(signal.SIGTERM):
                self.signal_ranks(signal.SIGTERM)
        self._when_ranks_are_gone()

    def _look_last(self) -> None:
        """Starts what the plan wants to be run while ranks still live; once in a job."""
        if self._look.begun or self._go is None:
            return
        for rank in self._ranks.values():
            for each in self._go["ranks"].get(str(rank.local_rank), {}).get("last", ()) if rank.sock is None else ():
                self._look.start(rank.rank, rank.pid, each)

    def _look_before_siblings_end(self) -> None:
        """torchrun ends a failed rank's siblings within its next turn (0.1 s): it is stopped meanwhile."""
        self._look_last()
        if self._look.pids() and self._torchrun and not self._ending:
            self._torchrun.send_signal(signal.SIGSTOP)
            self._look.when_done(partial(self._torchrun.send_signal, signal.SIGCONT))

    def _kill(self) -> None:
        if self.done:
            return
        if self._torchrun is None:  # it could not be started, and neither could what follows from that
            self._finish(127)
        else:
            self._torchrun.send_signal(signal.SIGKILL)
            procs.sweep(self._request["mark"], os.getpid(), self._agent.spare())

    def _when_ranks_are_gone(self) -> None:
        """torchrun in its exit barrier does not act on TERM: without ranks it gets a last second for its words."""
        if self.done:
            return
        if not self._ranks:
            self._loop.later(_LAST_WORDS_SECONDS, self._kill)
        else:
            self._loop.later(0.05, self._when_ranks_are_gone)

    def _rank_ended(self, rank: Rank) -> None:
        found = procs.stat(rank.pid)
        status = found.exit_status if found and found.state in "ZX" else None
        code = None if status is None else os.waitstatus_to_exitcode(status)
        self._loop.unwatch(rank.pidfd)
        os.close(rank.pidfd)
        del self._ranks[rank.pid]
        self._heard()
        if self._sampler:
            self._sampler.end(rank.rank, last=not self._ranks)
        for stream in rank.streams:
            stream.drain()
        report = partial(self._report, rank, time.time(), self._torchrun_is_dead())
        if code is None:
            # torchrun was quicker; it tells the code of a rank that failed within its next turn (0.1 s).
            self._unreported[rank.pid] = report
            self._loop.later(_HEARSAY_SECONDS, lambda: self._report_hearsay(rank.pid))
        elif code == -signal.SIGTERM and not self._ending:
            # Slurm tells every process of a step at once: the word to the agent itself may be on its way.
            self._output.codes[rank.pid] = code
            self._unreported[rank.pid] = report
            self._loop.later(_TERM_SECONDS, lambda: self._report_hearsay(rank.pid))
        else:
            report(code)

    def _report_hearsay(self, pid: int, otherwise: Optional[int] = None) -> None:
        report = self._unreported.pop(pid, None)
        if report:
            report(self._output.codes.get(pid, otherwise))

    def _report(self, rank: Rank, at: float, orphaned: bool, code: Optional[int]) -> None:
        """`orphaned`: torchrun was dead when the rank was found to have ended, and not only when that is told."""
        asked = (
            rank.pid in self._asked
            or (code == -signal.SIGTERM and self._ending)
            or (code == -signal.SIGKILL and orphaned)
        )
        if code and not asked and self._starts.is_of_last(rank):
            self._failed = True
            self._look_before_siblings_end()
        killed = oom.since(rank.oom, rank.pid) if code and not asked and rank.oom else None
        tail = rank.streams[1].tail() if rank.streams else []
        first = [stream.first_at for stream in rank.streams if stream.first_at]
        end = {"t": "end", "rank": rank.rank, "local": rank.local_rank, "pid": rank.pid, "code": code,
               "attempt": rank.attempt, "asked": asked, "time": at, "begun": rank.begun,
               "first_output": min(first, default=None), "tail": tail, "oom": killed}  # fmt: skip
        self._link.send(end)
        self._note({**end, "hostname": socket.gethostname()})

    def _note(self, end: Dict[str, Any]) -> None:
        """Beside the logs too: the launcher may be killed before it has written anything down."""
        with contextlib.suppress(OSError):  # a full disk, no descriptor left: the launcher has been told
            fd = streams.append(os.path.join(self._where.path, ENDS))
            try:
                os.write(fd, json.dumps(end, separators=(",", ":")).encode() + b"\n")
            finally:
                os.close(fd)

    def _torchrun_is_dead(self) -> bool:
        """Its ranks die with it (PDEATHSIG): they are the effect then, not the cause."""
        assert self._torchrun is not None
        found = procs.stat(self._torchrun.pid)
        return found is None or found.state in "ZX"

    def _torchrun_ended(self) -> None:
        assert self._torchrun is not None
        self._loop.unwatch(self._torchrun_pidfd)
        os.close(self._torchrun_pidfd)
        code = self._torchrun.wait()
        left = procs.leftovers(self._request["mark"], os.getpid(), self._agent.spare())
        if not left:
            self._finish(code)
            return
        procs.kill(left, signal.SIGTERM)
        at_once = self._ending or code < 0
        self._loop.later(0.0 if at_once else _LEFTOVER_SECONDS, lambda: self._finish(code))

    def _finish(self, code: int) -> None:
        if self.done:
            return
        stuck = procs.sweep(self._request["mark"], os.getpid(), self._agent.spare())
        self.done = True
        for rank in list(self._ranks.values()):
            self._rank_ended(rank)
        for stream in self._output.torchrun:  # torchrun's last words, for the codes in them
            stream.drain()
        for pid in list(self._unreported):
            self._report_hearsay(pid, otherwise=None if code else 0)
        close = partial(self._close, code, stuck)
        if self._sampler:
            self._sampler.finish(close)
        else:
            close()

    def _close(self, code: int, stuck: Set[int]) -> None:
        """Everything of the job is gone: the last bytes, then the word to the launcher."""
        self._gate.close()
        self._link.send({"t": "done", "code": code, "stuck": sorted(stuck), **self._output.end()})
        self._agent.job_done()
