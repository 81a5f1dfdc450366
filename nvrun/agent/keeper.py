"""The outermost process of the agent: outlives the supervisor and takes in what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys

from . import procs


def keep(into: int, out: int) -> int:
    """Forks; returns in the child, the supervisor, with the descriptor on which it writes the run's mark.

    The parent never returns: it waits for the supervisor's end, however that came (a kill -9 too), and sweeps. Being a
    subreaper it finds even a daemon that double-forked and threw its environment away.
    """
    procs.set_subreaper()
    mark_read, mark_write = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(mark_read)
        os.setsid()
        procs.set_pdeathsig(signal.SIGTERM)
        if os.getppid() != keeper:
            sys.exit(1)
        procs.set_subreaper()
        return mark_write
    for fd in (into, out, mark_write):  # or the launcher would never see the end of the stream
        os.close(fd)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    os.set_blocking(mark_read, False)  # a child that could not be killed may hold the other end
    try:
        mark = os.read(mark_read, 4096).decode()
    except BlockingIOError:
        mark = ""
    procs.sweep(mark, os.getpid())
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
