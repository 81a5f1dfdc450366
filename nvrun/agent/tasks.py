"""Work that may block, each in a child of its own with a deadline."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
from typing import Callable, Dict, List, Sequence, Set, Tuple

from . import procs
from .loop import READ, Loop

Reply = Callable[[object, str], None]
"""Called with (result, "") or (None, why there is none)."""


def reason(error: BaseException) -> str:
    """In one line, as the launcher is told it."""
    return "%s: %s" % (type(error).__name__, error)


class Tasks:
    """Starts children and hands their results to the loop."""

    def __init__(self, loop: Loop, keep_closed: Sequence[int]) -> None:
        self._loop = loop
        self._keep_closed = keep_closed
        self._running: Dict[int, Callable[[str], None]] = {}

    def pids(self) -> Set[int]:
        return set(self._running)

    def start(self, work: Callable[[], object], deadline: float, reply: Reply) -> None:
        """Runs `work` in a child; its result, which must be JSON, goes to `reply`. After `deadline` seconds: KILL. A
        host that has no process or no descriptor left for it answers with that: what runs there goes on."""
        ends: Tuple[int, ...] = ()
        try:
            ends = os.pipe()
            pid = os.fork()
        except OSError as error:
            for end in ends:
                os.close(end)
            reply(None, reason(error))
            return
        read_end, write_end = ends
        if pid == 0:
            os.close(read_end)
            self._child(work, write_end)
        os.close(write_end)
        parts: List[bytes] = []

        def finish(trouble: str) -> None:
            if pid not in self._running:
                return
            del self._running[pid]
            self._loop.unwatch(read_end)
            os.close(read_end)
            procs.kill([pid], signal.SIGKILL)  # one that cannot be killed is left: nobody waits for it
            # This child alone: another's exit status, torchrun's too, is not to be taken from whoever waits for it.
            with contextlib.suppress(ChildProcessError):  # the agent has reaped it already
                os.waitpid(pid, os.WNOHANG)
            if trouble:
                reply(None, trouble)
                return
            try:
                answer = json.loads(b"".join(parts))
            except ValueError:
                reply(None, "ended without an answer")
                return
            reply(answer.get("result"), answer.get("trouble", ""))

        def read() -> None:
            data = os.read(read_end, 1 << 16)
            if data:
                parts.append(data)
            else:
                finish("")

        self._running[pid] = finish
        self._loop.watch(read_end, READ, read)
        self._loop.later(deadline, lambda: finish("no answer in %.3g s" % deadline))

    def _child(self, work: Callable[[], object], write_end: int) -> None:
        """Never returns, whatever happens: this is a copy of the agent."""
        try:
            gc.disable()  # it would copy the agent's memory, page by page, for a child that ends at once
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            procs.set_pdeathsig(signal.SIGKILL)
            for fd in self._keep_closed:
                os.close(fd)
            try:
                data = json.dumps({"result": work()}).encode()
            except BaseException as error:  # noqa: BLE001 - the child's outermost border: the launcher is told why
                data = json.dumps({"trouble": reason(error)}).encode()
            while data:
                data = data[os.write(write_end, data) :]
        finally:
            os._exit(0)
