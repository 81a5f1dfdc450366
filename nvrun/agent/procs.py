"""Processes of a host: prctl, descent, marks, ends. Everything is found by id, never by name."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

MARK = "NVRUN_MARK"
"""Environment variable that every process of a run carries on a host: `<id of the attempt>.<node rank>`."""
HOOK_MARK = "NVRUN_HOOK_MARK"
"""The same, of those that hooks started: they outlive the job until the agent ends."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_SWEEPS = 50
"""Looks, 10 ms apart, after which what still lives is taken to be beyond KILL."""
_PF_KTHREAD = 0x00200000
"""linux/sched.h: a kernel thread, which has no environment; among the flags of /proc/PID/stat."""


def set_pdeathsig(number: int) -> None:
    """The kernel sends `number` to this process when the thread that created it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def set_subreaper() -> None:
    """Orphaned descendants become children of this process instead of PID 1's."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Stat(NamedTuple):
    """Fields of /proc/PID/stat (proc(5))."""

    pid: int
    state: str
    ppid: int
    start: int
    """Clock ticks since boot: with the pid it names a process for good."""
    exit_status: Optional[int]
    """Wait status, meaningful while a zombie; None where the kernel hides it."""


def stat(pid: int) -> Optional[Stat]:
    """None where there is no such process."""
    fields = stat_fields(pid)
    if not fields:
        return None
    status = int(fields[49]) if len(fields) > 49 else None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]), status)


def stat_fields(pid: int) -> List[bytes]:
    """What /proc/PID/stat says behind the name; nothing where there is no such process."""
    return contents("/proc/%d/stat" % pid).rpartition(b")")[2].split()


def environ(pid: int, fields: List[bytes], proc: str = "/proc") -> List[bytes]:
    """`NAME=value` of a process whose stat has these `fields` behind its name, as far as this user may read it.

    A kernel thread has none, and one in uninterruptible wait (D) is not asked: reading its environment takes the lock
    of its memory, which it may hold for ever.
    """
    if fields[0] == b"D" or (len(fields) > 6 and int(fields[6]) & _PF_KTHREAD):
        return []
    return contents("%s/%d/environ" % (proc, pid)).split(b"\0")


def contents(path: str) -> bytes:
    """A file of /proc; empty where it is gone, or another user's. `open` would take five times as long, and a look
    through all processes reads thousands."""
    parts: List[bytes] = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(parts)


def blind() -> str:
    """Why /proc does not show this process and its neighbours, so that nobody can be found by it; empty where it does.
    The /proc of another pid namespace gives numbers that are somebody else's here."""
    try:
        own = os.readlink("/proc/self")
    except OSError as error:
        return "/proc is not mounted here (%s)" % error.strerror
    return "" if own == str(os.getpid()) else "/proc is that of another pid namespace"


def all_pids() -> List[int]:
    """Of this pid namespace, as far as this user may see them (proc(5), hidepid); none where /proc is blind."""
    return [] if blind() else [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(*roots: int) -> Set[int]:
    """All processes below `roots`, which are not among them themselves."""
    return _below(roots, _look(b"")[0]) if roots else set()


def marked(mark: str, variable: str = MARK) -> Set[int]:
    """Processes whose environment carries `mark`, as far as `environ` reads it; one that descends from the agent is
    found by that."""
    return _look(("%s=%s" % (variable, mark)).encode())[1]


def _look(wanted: bytes) -> Tuple[Dict[int, List[int]], Set[int]]:
    """One look through all processes: parent -> children, and those with `wanted` in their environment."""
    children_of: Dict[int, List[int]] = {}
    carrying: Set[int] = set()
    for pid in all_pids():
        fields = stat_fields(pid)
        if not fields or fields[0] in (b"Z", b"X"):
            continue
        children_of.setdefault(int(fields[1]), []).append(pid)
        if wanted and wanted in environ(pid, fields):
            carrying.add(pid)
    return children_of, carrying


def _below(roots: Iterable[int], children_of: Dict[int, List[int]]) -> Set[int]:
    below: Set[int] = set()
    todo = list(roots)
    while todo:
        for child in children_of.get(todo.pop(), ()):
            if child not in below:
                below.add(child)
                todo.append(child)
    return below


def kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or a setuid program: the next sweep looks again
            continue


def leftovers(mark: str, root: int, spare: Iterable[int]) -> Set[int]:
    """What still lives of a run: descendants of `root` and what carries `mark` (empty: none does), without `root`,
    `spare` and what descends from those. The same look tells it, for they may fork at any time."""
    children_of, carrying = _look(("%s=%s" % (MARK, mark)).encode() if mark else b"")
    spared = set(spare)
    return (_below((root,), children_of) | carrying) - {root} - spared - _below(spared, children_of)


def sweep(mark: str, root: int, spare: Iterable[int] = ()) -> Set[int]:
    """KILLs what is left of a run until two looks find nothing; returns what would not go (uninterruptible, most
    likely). Two looks, because a process in uninterruptible wait, as the parent in vfork(2) is for a moment, does not
    show its mark until that is over."""
    spared = set(spare)
    left: Set[int] = set()
    looked_clean = False
    for _ in range(_SWEEPS):
        left = leftovers(mark, root, spared)
        if not left and looked_clean:
            return left
        looked_clean = not left
        kill(left, signal.SIGKILL)
        time.sleep(0.01)
    return left


def reap(spare: Set[int]) -> None:
    """Takes in adopted children that have ended, but not those in `spare`: their exit status is someone else's."""
    for pid in children(os.getpid()):
        if pid in spare:
            continue
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def children(parent: int) -> List[int]:
    """Direct children, zombies included. One that is just being born or taken in may be missing."""
    lists = ["/proc/%d/task/%s/children" % (parent, thread) for thread in _listed("/proc/%d/task" % parent)]
    if lists and os.path.exists(lists[0]):
        return [int(pid) for each in lists for pid in contents(each).split()]
    # a kernel without CONFIG_PROC_CHILDREN
    return [pid for pid in all_pids() if (found := stat(pid)) and found.ppid == parent]


def _listed(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
