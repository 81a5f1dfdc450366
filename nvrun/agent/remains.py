"""What runs left on this host: processes that carry a run's mark, and folders of runs. Found, and ended or removed.

A run is *alive* here while an agent is above one of its processes, or holds the lock of its folder: nothing of it is
touched then. Every process of a living run is below its agent, which is a subreaper; so what carries a mark and has no
agent above it was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import stat
import time
from typing import Any, Dict, Iterator, Optional, Set

from . import procs
from .folder import place

MARK = re.compile(r"\d{8}-\d{6}-[a-z0-9]{4}(?:\.a\d{1,6})?\.\d{1,6}")
"""`<run id>.<node rank>`, with the attempt between them from the second on (`.a1`): the value of a mark, and the name
of a private folder."""
_AGENT = b"nvrun-agent/boot.py"
"""In the command line of keeper and supervisor."""
_TERM_SECONDS = 3.0
_SWEEPS = 50
_NEW_SECONDS = 2.0
"""A younger folder may belong to an agent that has not locked it yet."""
_MOST = 1000
"""Processes and folders that one answer tells of."""


def hold(folder: str) -> int:
    """Locks a run's folder for as long as this process lives. The descriptor is never closed: the lock goes with it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    with contextlib.suppress(OSError):  # a file system without locks: then the folder is left alone by `clean`
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def end(mark: str, grace: float) -> Dict[str, Any]:
    """Ends all processes with this mark: TERM, after `grace` seconds KILL. Returns the pids that were ended and those
    that are still there."""
    _see()
    spare = set(_ancestors(os.getpid())) | {os.getpid()}  # whoever asks may itself run in that job
    ended: Set[int] = set()

    def living() -> Set[int]:
        now = marked().get(mark, set()) - spare
        ended.update(now)
        return now

    procs.kill(living(), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while living() and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(_SWEEPS):
        left = living()
        if not left:
            break
        procs.kill(left, signal.SIGKILL)
        time.sleep(0.02)
    left = living()
    return {"ended": sorted(ended - left)[:_MOST], "left": sorted(left)[:_MOST]}


def clean(dry: bool) -> Dict[str, Any]:
    """Ends orphans and removes folders of runs that are no longer alive here; `dry` only looks."""
    _see()
    found = marked()
    alive = {mark for mark, pids in found.items() if any(map(supervised, pids))}
    folders = _folders()
    alive |= {mark for mark, path in folders.items() if locked(path)}
    over = sorted((set(found) | set(folders)) - alive)[:_MOST]
    answer: Dict[str, Any] = {"alive": sorted(alive)[:_MOST], "runs": [], "trouble": []}
    for mark in over:
        pids = sorted(found.get(mark, ()))
        path = folders.get(mark)
        row: Dict[str, Any] = {"mark": mark, "pids": pids, "folder": path, "bytes": _size(path) if path else 0}
        if not dry:
            row["left"] = end(mark, _TERM_SECONDS)["left"] if pids else []
            if path and not row["left"]:
                try:
                    remove(path)
                except OSError as error:
                    answer["trouble"].append("%s: %s" % (error.filename or path, error.strerror))
        answer["runs"].append(row)
    if not dry and folders:
        with contextlib.suppress(OSError):  # other runs live there
            os.rmdir(place())
    return answer


def _see() -> None:
    """OSError where what is left cannot be seen: that must not pass for nothing."""
    if why := procs.blind():
        raise OSError(why)


def remove(path: str) -> None:
    """The folder is gone. Hosts that share the place clean it at once: what another has removed is gone as well."""
    import shutil

    for _ in range(_SWEEPS):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        if not os.path.lexists(path):
            return


def marked() -> Dict[str, Set[int]]:
    """Mark -> processes that carry it, as far as this user may read their environment."""
    head = ("%s=" % procs.MARK).encode()
    found: Dict[str, Set[int]] = {}
    for pid in procs.all_pids():
        fields = procs.stat_fields(pid)
        values = [part[len(head) :] for part in procs.environ(pid, fields) if part.startswith(head)] if fields else []
        mark = values[0].decode(errors="replace") if values else ""
        if MARK.fullmatch(mark) and _alive(pid):
            found.setdefault(mark, set()).add(pid)
    return found


def supervised(pid: int) -> bool:
    """Whether an agent of nvrun is among the ancestors."""
    return any(map(_is_agent, _ancestors(pid)))


def _ancestors(pid: int) -> Iterator[int]:
    found = procs.stat(pid)
    while found and found.ppid > 1:
        yield found.ppid
        found = procs.stat(found.ppid)


def locked(path: str) -> bool:
    """Whether an agent holds the folder. Where that cannot be told it counts as held."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        if time.time() - os.fstat(fd).st_mtime < _NEW_SECONDS:
            return True
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _folders() -> Dict[str, str]:
    """Mark -> private folder, of this user's runs only."""
    where = place()
    try:
        top = os.lstat(where)
        names = os.listdir(where) if stat.S_ISDIR(top.st_mode) and top.st_uid == os.getuid() else []
    except OSError:
        return {}
    found: Dict[str, str] = {}
    for name in names:
        path = os.path.join(where, name)
        if MARK.fullmatch(name) and stat.S_ISDIR(os.lstat(path).st_mode):
            found[name] = path
    return found


def _alive(pid: int) -> bool:
    found = procs.stat(pid)
    return found is not None and found.state not in "ZX"


def _is_agent(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return _AGENT in file.read()
    except OSError:
        return False


def _size(path: str) -> int:
    """Bytes of its files, as far as they can be seen."""
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            status: Optional[os.stat_result] = None
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(parent, name))
            total += status.st_size if status else 0
    return total
