"""What a host runs while its ranks still live, before they are told to end: their stacks, a profiler's last word."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, Callable, Dict, List, Set

from . import procs
from .loop import READ, Loop

MOST_SECONDS = 60.0


class Look:
    """The commands of all ranks at once. `then` is called once, when every one has ended or its time is up."""

    def __init__(self, loop: Loop, folder: str, environment: Dict[str, str], cwd: str) -> None:
        self._loop, self._folder, self._environment, self._cwd = loop, folder, environment, cwd
        self._running: Dict[int, "subprocess.Popen[bytes]"] = {}
        self._waiting: List[Callable[[], None]] = []
        self.begun = False

    def pids(self) -> Set[int]:
        return {process.pid for process in self._running.values()}

    def start(self, rank: int, pid: int, command: Dict[str, Any]) -> None:
        """`command`: `name` of its file behind `rankN.`, `argv` where `{pid}` is the rank's, `seconds`."""
        self.begun = True
        argv = [part.replace("{pid}", str(pid)) for part in command["argv"]]
        path = os.path.join(self._folder, "rank%d.%s" % (rank, command["name"]))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(path, flags, 0o666), "wb", buffering=0) as file:
                try:
                    process = subprocess.Popen(argv, env=self._environment, cwd=self._cwd, stdin=subprocess.DEVNULL,
                                               stdout=file, stderr=file, start_new_session=True)  # fmt: skip
                except OSError as error:
                    file.write(("%s: %s\n" % (argv[0], error.strerror)).encode())
                    return
            pidfd = os.pidfd_open(process.pid)
        except OSError:  # a full log disk: the end does not wait for what cannot be kept
            return
        self._running[pidfd] = process
        self._loop.watch(pidfd, READ, lambda: self._ended(pidfd))
        self._loop.later(min(command["seconds"], MOST_SECONDS), lambda: self._too_long(pidfd))

    def when_done(self, then: Callable[[], None]) -> None:
        self._waiting.append(then)
        self._check()

    def _too_long(self, pidfd: int) -> None:
        if pidfd in self._running:
            procs.kill([self._running[pidfd].pid], signal.SIGKILL)

    def _ended(self, pidfd: int) -> None:
        self._loop.unwatch(pidfd)
        os.close(pidfd)
        self._running.pop(pidfd).wait()
        self._check()

    def _check(self) -> None:
        while self._waiting and not self._running:
            self._waiting.pop(0)()
