"""The monitor of one host, as the supervisor sees it: a child that writes samples into the host's log folder.

The supervisor writes to its pipe and never waits for it; it ends with the pipe, and with the supervisor. What it does
is in recorder.py, which is imported in the child only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, Callable, Dict, List, Optional, Set

from . import procs
from .folder import place
from .loop import READ, Loop

FILE = "samples.jsonl"
LAST_SECONDS = 0.5
"""What the end of a job waits for the last sample."""
_TAIL_BYTES = 1 << 17


class Sampler:
    """The supervisor's end: started with the ranks, told of each, ended after them."""

    def __init__(self, loop: Loop, folder: str, request: Dict[str, Any]) -> None:
        """`request`: `every` (seconds), `run`, `host`, and `textfile`, a folder for Prometheus text, or None. OSError
        where no process is to be had."""
        self._loop = loop
        self._then: Optional[Callable[[], None]] = None
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(read_end)
            os.close(self._write_end)
            raise
        if self.pid == 0:
            _child(read_end, os.path.join(folder, FILE), request)
        os.close(read_end)
        self._pidfd = os.pidfd_open(self.pid)
        loop.watch(self._pidfd, READ, self._ended)

    def pids(self) -> Set[int]:
        return {self.pid} if self._pidfd >= 0 else set()

    def begin(self, rank: int, pid: int) -> None:
        """This rank is `pid` from now on."""
        self._tell(b"+%d %d\n" % (rank, pid))

    def end(self, rank: int, last: bool) -> None:
        """This rank has ended; `last`: no other lives, and a sample shall show the host as it left it."""
        self._tell(b"-%d 0\n" % rank + (b"!0 0\n" if last else b""))

    def finish(self, then: Callable[[], None]) -> None:
        """Ends it and calls `then`, after a moment whatever it does."""
        self._then = then
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1
        if self._pidfd < 0:
            self._go_on()
        else:
            self._loop.later(LAST_SECONDS, self._too_long)

    def _tell(self, line: bytes) -> None:
        if self._write_end >= 0:
            with contextlib.suppress(OSError):  # it hangs with a full pipe, or is gone: the job goes on without it
                os.write(self._write_end, line)

    def _ended(self) -> None:
        if self._pidfd >= 0:
            self._loop.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            with contextlib.suppress(ChildProcessError):  # the agent has reaped it already
                os.waitpid(self.pid, os.WNOHANG)
            self._go_on()

    def _too_long(self) -> None:
        """One that cannot be killed is left: nobody waits for it."""
        if self._pidfd >= 0:
            procs.kill([self.pid], signal.SIGKILL)
            self._go_on()

    def _go_on(self) -> None:
        then, self._then = self._then, None
        if then:
            then()


def last(mark: str) -> List[str]:
    """Header and the last two samples of a run whose logs are in a folder of this host's own."""
    path = os.path.join(place(), mark, FILE)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        header = file.readline()
        size = os.fstat(file.fileno()).st_size
        file.seek(max(len(header), size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return [line.decode("utf-8", "replace") for line in (header.rstrip(), *lines[-2:])]


def _child(inbox: int, path: str, request: Dict[str, Any]) -> None:
    """Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        procs.set_pdeathsig(signal.SIGKILL)
        # Another's pipe kept open would hide its end, and the lock of the run's folder would outlive the agent.
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            if fd > 2 and fd != inbox:
                with contextlib.suppress(OSError):
                    os.close(fd)
        os.nice(5)  # where CPUs are short the ranks come first
        from . import recorder

        recorder.follow(inbox, path, request)
    finally:
        os._exit(0)
