"""Children that keep something up (listeners, a token's file) until they are told to let go, or the agent is gone."""

from __future__ import annotations

import json
import os
import select
import signal
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from . import procs
from .loop import READ, Loop
from .tasks import Reply, reason

Say = Callable[[object], None]
"""Tells the launcher what stands now; called once."""
Work = Callable[[Say, int], None]
"""Sets something up, says so, and takes it down again once its second argument, a descriptor, can be read."""
_LET_GO_SECONDS = 0.5


class Standing:
    """Starts such children and ends them by name."""

    def __init__(self, loop: Loop, keep_closed: Sequence[int]) -> None:
        self._loop = loop
        self._keep_closed = keep_closed
        self._up: Dict[str, Tuple[int, int]] = {}
        """Name -> pid, and the end of the pipe that tells it to let go."""

    def pids(self) -> Set[int]:
        return {pid for pid, _ in self._up.values()}

    def begin(self, name: str, work: Work, deadline: float, reply: Reply) -> None:
        """Runs `work` in a child. What it says goes to `reply`, or why it said nothing within `deadline` seconds."""
        self.end(name)
        ends: List[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            pid = os.fork()
        except OSError as error:  # no process or no descriptor left
            for end in ends:
                os.close(end)
            reply(None, reason(error))
            return
        until, control, said, saying = ends
        if pid == 0:
            for fd in (control, said, *self._keep_closed, *(control for _, control in self._up.values())):
                os.close(fd)
            _child(work, saying, until)
        os.close(until)
        os.close(saying)
        self._up[name] = (pid, control)
        parts: List[bytes] = []
        open_ends = [said]

        def finish(trouble: str) -> None:
            if not open_ends:
                return
            self._loop.unwatch(open_ends.pop())
            os.close(said)
            try:
                answer = json.loads(b"".join(parts)) if not trouble else {"trouble": trouble}
            except ValueError:
                answer = {"trouble": "ended without an answer"}
            if answer.get("trouble"):
                self.end(name)
            reply(answer.get("result"), answer.get("trouble", ""))

        def read() -> None:
            data = os.read(said, 1 << 16)
            if data:
                parts.append(data)
            else:
                finish("")

        self._loop.watch(said, READ, read)
        self._loop.later(deadline, lambda: finish("no answer in %.3g s" % deadline))

    def end(self, name: str) -> None:
        """The child lets go; one that does not within half a second is killed."""
        if name not in self._up:
            return
        pid, control = self._up.pop(name)
        os.close(control)  # nobody else holds it but tasks, which end by themselves
        try:
            pidfd = os.pidfd_open(pid)
            wait(pidfd, _LET_GO_SECONDS)
            os.close(pidfd)
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                procs.kill([pid], signal.SIGKILL)
        except (ChildProcessError, ProcessLookupError):  # reaped already
            return

    def end_all(self) -> None:
        for name in list(self._up):
            self.end(name)


def _child(work: Work, saying: int, until: int) -> None:
    """Not killed with the agent: the pipe's end tells it, so that what it put up is taken down in any case."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ends = [saying]

    def say(answer: object) -> None:
        data = json.dumps(answer).encode()
        fd = ends.pop()
        while data:
            data = data[os.write(fd, data) :]
        os.close(fd)

    try:
        work(lambda result: say({"result": result}), until)
    except BaseException as error:  # noqa: BLE001 - the child's outermost border: the launcher is told why
        if ends:
            say({"trouble": reason(error)})
    finally:
        os._exit(0)


def wait(until: int, at_most: Optional[float] = None) -> None:
    """Returns when it is time to let go: when `until` can be read, or after `at_most` seconds."""
    poll = select.poll()
    poll.register(until, select.POLLIN)
    poll.poll(None if at_most is None else at_most * 1000)
