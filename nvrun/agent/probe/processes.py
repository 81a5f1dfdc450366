"""Processes that matter to a launch: stuck in the kernel, left over from another run, or holding a port."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from typing import Any

from .. import procs
from . import netlink
from .child import UnreadError
from .tree import Tree

MARK = f"{procs.MARK}=".encode()
LISTEN = "0A"
PORTS = range(29500, 29600)
"""torchrun's default port and the ones that nvrun moves on to: whose listeners are named."""


def processes(tree: Tree) -> list[dict[str, Any]]:
    """Those in uninterruptible sleep (D) and those whose environment carries the mark of an nvrun run."""
    if tree.live and (why := procs.blind()):
        raise UnreadError(why)
    found = []
    for pid in _pids(tree):
        head, _, tail = procs.contents(tree.path(f"/proc/{pid}/stat")).rpartition(b")")
        if not tail or int(pid) == os.getpid():
            continue
        fields = tail.split()
        state = fields[0].decode()
        mark = _mark(procs.environ(int(pid), fields, tree.path("/proc")))
        if state == "D" or mark:
            command = head.partition(b"(")[2].decode("utf-8", "replace")
            found.append(
                {"pid": int(pid), "command": command, "state": state, "user": user(tree, pid), "run_mark": mark}
            )
    return found


def listeners(tree: Tree, ports: list[int]) -> list[dict[str, Any]]:
    """Listening TCP ports; who holds one of `ports` (default: nvrun's range) as far as this user may see it."""
    inodes: dict[int, str] = {}
    for port, inode in listening(tree):
        inodes.setdefault(port, inode)
    wanted = {inode: port for port, inode in inodes.items() if port in (ports or PORTS)}
    holders = _holders(tree, wanted) if wanted else {}
    return [{"port": port, **holders.get(port, {})} for port in sorted(inodes)]


def listening(tree: Tree) -> list[tuple[int, str]]:
    """Port and inode of each listening TCP socket."""
    if tree.live:
        with contextlib.suppress(OSError):  # a kernel without inet_diag
            return netlink.listeners()
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in (tree.text(f"/proc/net/{name}") or "").splitlines()[1:]
    ]
    return [(int(row[1].rpartition(":")[2], 16), row[9]) for row in rows if row[3] == LISTEN]


def user(tree: Tree, pid: str) -> str:
    """Name of the owner, or the number where it has no name here."""
    try:
        uid = os.stat(tree.path(f"/proc/{pid}")).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _pids(tree: Tree) -> list[str]:
    if tree.live and procs.blind():
        return []
    try:
        return sorted(filter(str.isdigit, os.listdir(tree.path("/proc"))), key=int)
    except OSError:
        return []


def _mark(environ: list[bytes]) -> str | None:
    for variable in environ:
        if variable.startswith(MARK):
            return variable[len(MARK) :].decode("utf-8", "replace")
    return None


def _holders(tree: Tree, wanted: dict[str, int]) -> dict[int, dict[str, Any]]:
    """Port -> the process that has its socket open; the first where several share it."""
    found: dict[int, dict[str, Any]] = {}
    for pid in _pids(tree):
        for fd in tree.entries(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(tree.path(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue
            socket = re.fullmatch(r"socket:\[(\d+)\]", target)
            port = wanted.get(socket[1]) if socket else None
            if port is not None and port not in found:
                command = (tree.text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()[:200]
                found[port] = {"pid": int(pid), "command": command, "user": user(tree, pid)}
        if len(found) == len(wanted):
            break
    return found
