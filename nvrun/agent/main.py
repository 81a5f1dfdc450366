"""The agent: takes the launcher's messages and answers them, runs the job, and ends with the link.

What travelled as source is compiled when it is imported: each message's own modules are imported when it comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Callable, Iterator, Optional

from . import folder, keeper, netcheck, procs, slurm, standing, tasks, wire
from .link import Link, Message
from .loop import Loop

if TYPE_CHECKING:
    from .supervise import Job

_CLOSED_GRACE = 3.0
_LAST_SECONDS = 10.0
"""After the grace: what a sweep and the last bytes of logs may take where nobody is told any more."""


class Agent:
    """One host's part of a run."""

    def __init__(self, into: int, out: int, mark_fd: int) -> None:
        self.loop = Loop()
        self.link = Link(self.loop, into, out, self._dispatch, self._link_ended)
        self.signals = slurm.Signals(self.loop, os.environ)
        self.job: Optional[Job] = None
        self.folder: Optional[folder.Folder] = None
        self._mark, self._mark_fd = "", mark_fd
        self._keeper = os.getppid()
        self.fetched = False
        """The launcher has asked for the folder's files."""
        self._held: Optional[netcheck.Held] = None
        self.hook_mark = ""
        self._tasks = tasks.Tasks(self.loop, keep_closed=(into, out))
        self.standing = standing.Standing(self.loop, keep_closed=(into, out))

    def run(self) -> None:
        self.link.open()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self.loop.on_signal(number, partial(self.signals.note, number))
        self.loop.on_signal(signal.SIGTERM, self._terminated)
        self.loop.on_signal(signal.SIGCHLD, lambda: procs.reap(self._own_children()))
        self.loop.run()

    # -- what the launcher says -----------------------------------------------------------------------------------

    def _dispatch(self, message: Message) -> None:
        if "to" in message and self.link.host not in message["to"]:
            return
        handle: Callable[[Message], None] = getattr(self, "on_" + message["t"])
        try:
            handle(message)
        except Exception as error:  # noqa: BLE001 - the agent's outermost border: the launcher is told, nothing is hidden
            self.link.send({"t": "failed", "at": message["t"], "why": tasks.reason(error)})

    def on_beat(self, message: Message) -> None:
        """Reading it was the point."""

    def on_you(self, message: Message) -> None:
        """Which host of the run this is, by id or, where one stream goes to all, by Slurm's node name."""
        node = os.environ.get("SLURMD_NODENAME", "")
        self.link.host = message["id"] if "id" in message else message["ids"][node]
        self.link.lost_after = message["lost_after"]
        self.link.send({"t": "hello", "uid": os.getuid(), "hostname": socket.gethostname(),
                        "executable": sys.executable, "addresses": netcheck.addresses(),
                        "gpus": netcheck.visible_gpus(os.environ), "cpus": os.cpu_count() or 0})  # fmt: skip

    def on_ping(self, message: Message) -> None:
        self.link.send({"t": "pong", "time": time.time()})

    def on_prepare(self, message: Message) -> None:
        """The folder for this host's logs (none for a plan alone); where `ports` is given, a port that is ours now."""
        path, shared, port = "", False, None
        if why := procs.blind():
            self.link.send({"t": "cannot", "code": "host-no-proc", "why": why})
            return
        trouble = "host-no-folder"
        try:
            if message["folder"]:
                self._mark = "%s.%d" % (message["run"], self.link.host)
                os.write(self._mark_fd, self._mark.encode())
                run, where = message["run"], message["folder"]
                self.folder = folder.prepare(where, message["token"], message["name"], run, self.link.host)
                path, shared = self.folder
                if not shared:
                    from . import remains

                    remains.hold(path)
            trouble = "ports-taken"
            if message.get("ports"):
                self._held, port = netcheck.hold_port(message["ports"])
        except OSError as error:
            why = "%s: %s" % (error.filename, error.strerror) if error.filename and error.strerror else str(error)
            self.link.send({"t": "cannot", "code": trouble, "why": why})
            return
        self.link.send({"t": "prepared", "folder": path, "shared": shared, "port": port})

    def on_facts(self, message: Message) -> None:
        request = message["request"]

        def collect() -> object:
            from . import probe

            return probe.collect(request)

        self._tasks.start(collect, message.get("deadline", 20.0), self._answer("facts"))

    def on_reach(self, message: Message) -> None:
        """Connects to each target; the launcher knows which of them listens."""
        self._tasks.start(
            lambda: netcheck.reach(message["targets"], message["timeout"]),
            message["timeout"] + 2.0,
            self._answer("reach"),
        )

    def on_test(self, message: Message) -> None:
        """Something to try or to measure, by name."""
        from . import tests

        work, request = tests.WORK[message["test"]], message["request"]
        self._tasks.start(lambda: work(request), message["deadline"], self._answer(message["answer"]))

    def on_stand(self, message: Message) -> None:
        """Something that other hosts' tests need here, until `release`."""
        from . import tests

        work, request = tests.STANDING[message["test"]], message["request"]
        answer = self._answer(message["answer"])
        self.standing.begin(message["test"], lambda say, until: work(request, say, until), message["deadline"], answer)

    def on_release(self, message: Message) -> None:
        self.standing.end(message["test"])

    def on_listen(self, message: Message) -> None:
        """Listens on the held port itself: a check alone has no torchrun that would."""
        assert self._held is not None
        self._held.listen()
        self.link.send({"t": "listening"})

    def on_listening(self, message: Message) -> None:
        """Says when somebody of this host listens on the port that the agent holds."""

        def look() -> None:
            if netcheck.listening(message["port"]):
                self.link.send({"t": "listening"})
            else:
                self.loop.later(0.02, look)

        look()

    def on_run(self, message: Message) -> None:
        """A hook's command."""
        from . import command

        request, mark = message["request"], "%s.%d" % (message["run"], self.link.host)
        self.hook_mark = mark

        self._tasks.start(lambda: command.run(request, mark), request["timeout"] + 3.0, self._answer(message["answer"]))

    def on_inspect(self, message: Message) -> None:
        """Where the ranks really are: CPUs, memory policy, GPU."""
        if self.job:
            from . import inspect

            pids = self.job.rank_pids()
            self._tasks.start(lambda: inspect.look(pids), 10.0, self._answer("inspected"))

    def on_stacks(self, message: Message) -> None:
        """Whether the ranks move."""
        from . import stacks

        if self.job:
            ranks, request = self.job.running(), {**message["request"], "path": self.job.path()}
            self._tasks.start(
                lambda: stacks.look(request, ranks), stacks.seconds(request), self._answer(message["answer"])
            )

    def on_sample(self, message: Message) -> None:
        """The newest samples of a run whose logs are in a folder of this host's own."""
        from . import sample

        self._tasks.start(lambda: sample.last(message["mark"]), 5.0, self._answer("sampled"))

    def on_job(self, message: Message) -> None:
        from .supervise import Job

        assert self.folder is not None
        job = Job(self, message, self.folder)
        try:
            job.start()
        except OSError as error:  # no descriptors left, or somebody else holds the ranks' socket
            self.link.send({"t": "no-start", "why": str(error)})
        else:
            self.job = job

    def on_go(self, message: Message) -> None:
        if self.job:
            self.job.go(message)

    def on_end(self, message: Message) -> None:
        """`by` signal: the scheduler may be telling every process of the job, this one too."""
        if not self.job:
            return
        end = partial(self.job.end, message["grace"])
        if message.get("by") == "signal":
            self.signals.when_settled(end)
        else:
            end()

    def on_signal(self, message: Message) -> None:
        number = getattr(signal, "SIG" + message["name"])

        def hand_on() -> None:
            if self.job and not self.signals.came(number):
                self.job.signal_ranks(number)

        self.signals.when_settled(hand_on)

    def on_fetch(self, message: Message) -> None:
        """All files of a private folder, as the link takes them."""
        assert self.folder is not None
        self.fetched = True
        self.link.send_all(self._files(self.folder))

    def on_sweep(self, message: Message) -> None:
        """Ends what carries the mark of a run whose launcher is gone or out of reach."""
        from . import remains

        mark, grace = "%s.%d" % (message["run"], self.link.host), message["grace"]
        self._tasks.start(lambda: remains.end(mark, grace), grace + 10.0, self._answer("swept"))

    def on_clean(self, message: Message) -> None:
        """Ends orphans and removes folders of runs that are over; only tells of them where `dry`."""
        from . import remains

        self._tasks.start(lambda: remains.clean(message["dry"]), message["deadline"], self._answer("cleaned"))

    def on_remove(self, message: Message) -> None:
        if self.folder:
            folder.remove(self.folder)
            self.folder = None

    def _answer(self, name: str) -> Callable[[object, str], None]:
        def answer(result: object, trouble: str) -> None:
            self.link.send({"t": name, "result": result, "trouble": trouble})

        return answer

    def _files(self, where: folder.Folder) -> Iterator[bytes]:
        """What cannot be read is named with the reason, and the rest comes."""
        for name, path, why in folder.files(where):
            try:
                if not why:
                    yield from self._file(name, path)
            except OSError as error:
                why = str(error.strerror)
            if why:
                yield wire.message(self.link.host, {"t": "unread", "path": name, "why": why})
        yield wire.message(self.link.host, {"t": "fetched"})

    def _file(self, name: str, path: str) -> Iterator[bytes]:
        with open(path, "rb") as file:
            yield wire.message(self.link.host, {"t": "file", "path": name})
            while data := file.read(1 << 16):
                yield b"".join(wire.frames(self.link.host, wire.FILE, data))

    # -- ends -----------------------------------------------------------------------------------------------------

    def _terminated(self) -> None:
        """SIGTERM: the keeper's end, or Slurm that ends the step."""
        if os.getppid() != self._keeper:
            self._link_ended()
            return
        self.signals.note(signal.SIGTERM)
        if self.job:
            self.link.send({"t": "terminated"})
            self.job.end(None)
        else:
            self.loop.stop()

    def _link_ended(self, silent: bool = False) -> None:
        """Nobody is there to tell any more: the job ends, then the agent. `silent`: with the job's own grace."""
        if self.link.closed:
            return
        self.link.close()
        if self.job and not self.job.done:
            # Whatever goes wrong in ending it: the keeper sweeps what this process leaves behind.
            grace = None if silent else _CLOSED_GRACE
            self.loop.later((self.job.grace if grace is None else grace) + _LAST_SECONDS, self.loop.stop)
            self.job.end(grace, look=silent)
        else:
            self.loop.stop()

    def job_done(self) -> None:
        if self.link.closed:
            self.loop.stop()

    def _own_children(self) -> "set[int]":
        return self._tasks.pids() | self.standing.pids() | (self.job.pids() if self.job else set())

    def spare(self) -> "set[int]":
        """Processes of the agent and of hooks. They are not the job's, nor is what they start: the task that reads
        facts may still do so when torchrun ends."""
        own = self._tasks.pids() | self.standing.pids() | (self.job.spare() if self.job else set())
        return own | (procs.marked(self.hook_mark, procs.HOOK_MARK) if self.hook_mark else set())

    def end_what_is_left(self) -> None:
        """Where somebody has killed the keeper nobody sweeps behind this process: hooks, and what they started."""
        if os.getppid() != self._keeper:
            procs.sweep(self._mark, os.getpid())


def _raised_at(error: BaseException) -> str:
    """File and line. By hand: importing `traceback` takes a descriptor, and there may be none."""
    at = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    return "%s:%d" % (at.tb_frame.f_code.co_filename, at.tb_lineno) if at else ""


def main(into: int, out: int) -> None:
    agent = Agent(into, out, keeper.keep(into, out))
    code = 0
    try:
        agent.run()
    except Exception as error:  # noqa: BLE001 - no descriptor, no memory: one line is what the launcher can show
        sys.stderr.write("the agent: %s: %s (%s)\n" % (type(error).__name__, error, _raised_at(error)))
        code = 1
    agent.standing.end_all()
    agent.end_what_is_left()
    if agent.folder and not agent.fetched and not (agent.job and agent.job.begun):  # no rank has written into it
        with contextlib.suppress(OSError):  # what a hook started may still write there: `nvrun clean` finds the rest
            folder.remove(agent.folder)
    if agent.hook_mark:
        from . import command

        command.remove_programs(agent.hook_mark)
    with contextlib.suppress(OSError):
        os.kill(os.getppid(), signal.SIGCONT)  # a keeper that somebody stopped would stay for ever
    sys.stderr.flush()
    os._exit(code)
