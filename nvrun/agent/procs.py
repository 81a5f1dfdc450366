"""Processes of a host: prctl, descent, marks, ends. Everything is found by id, never by name."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

MARK = "NVRUN_MARK"
"""Environment variable that every process of a run carries on a host: `<id of the attempt>.<node rank>`."""
HOOK_MARK = "NVRUN_HOOK_MARK"
"""The same, of those that hooks started: they outlive the job until the agent ends."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


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
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    status = int(fields[49]) if len(fields) > 49 else None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]), status)


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int) -> Set[int]:
    """All processes below `root`, which itself is not among them."""
    children: Dict[int, List[int]] = {}
    for pid in all_pids():
        found = stat(pid)
        if found and found.state not in "ZX":
            children.setdefault(found.ppid, []).append(pid)
    below: Set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in below:
                below.add(child)
                todo.append(child)
    return below


def marked(mark: str, variable: str = MARK) -> Set[int]:
    """Processes whose environment carries `mark`, as far as this user may read it.

    One in uninterruptible wait (D) is not asked: reading its environment takes the lock of its memory, which it may
    hold for ever. Where it descends from the agent it is found by that.
    """
    wanted = ("%s=%s" % (variable, mark)).encode()
    found: Set[int] = set()
    for pid in all_pids():
        status = stat(pid)
        if status is None or status.state in "DZX":
            continue
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.add(pid)
        except OSError:  # another user's, or gone meanwhile: not ours to end
            continue
    return found


def kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or a setuid program: the next sweep looks again
            continue


def leftovers(mark: str, root: int, spare: Iterable[int]) -> Set[int]:
    """What still lives of a run: descendants of `root` and what carries `mark`, without `root` and `spare`."""
    return (descendants(root) | marked(mark)) - {root, *spare}


def sweep(mark: str, root: int, spare: Iterable[int] = (), tries: int = 50) -> Set[int]:
    """KILLs what is left of a run until two looks find nothing; returns what would not go (uninterruptible, most
    likely). Two, because who was in uninterruptible wait for a moment, as the parent in vfork(2) is, shows its mark
    only after it."""
    spared = set(spare)
    left: Set[int] = set()
    looked_clean = False
    for _ in range(tries):
        left = leftovers(mark, root, spared)
        if not left and looked_clean:
            return left
        looked_clean = not left
        kill(left, signal.SIGKILL)
        time.sleep(0.01)
    return left


def reap(spare: Iterable[int] = ()) -> None:
    """Takes in adopted children that have ended, but not those in `spare`: their exit status is someone else's."""
    spared = set(spare)
    for pid in children(os.getpid()):
        if pid in spared:
            continue
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def children(parent: int) -> List[int]:
    """Direct children, zombies included."""
    return [pid for pid in all_pids() if (found := stat(pid)) and found.ppid == parent]
