"""Processes as this machine sees them: which lab host each belongs to, and what it carries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Process:
    """A living process (a zombie is not one)."""

    pid: int
    """As seen by the caller; what os.kill takes."""
    inner_pid: int
    """As the process itself sees it."""
    parent: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    net: Path
    """Its network namespace, the one thing that tells the lab's hosts apart."""

    def carries(self, mark: str) -> bool:
        """The text stands in an argument or in an environment value."""
        return any(mark in text for text in (*self.argv, *self.environ.values()))


def processes() -> Iterator[Process]:
    """All living processes that the caller may look at."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield read(int(entry.name))
            except OSError:  # ended while being read, or somebody else's
                continue


def read(pid: int) -> Process:
    proc = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    environ = (text.partition("=") for text in texts(proc / "environ"))
    return Process(
        pid=pid,
        inner_pid=int(status["NSpid"].split()[-1]),
        parent=int(status["PPid"]),
        argv=texts(proc / "cmdline"),
        environ={name: value for name, _, value in environ},
        net=(proc / "ns/net").readlink(),
    )


def texts(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode(errors="replace").rstrip("\0").split("\0"))


def child_of(pid: int) -> int | None:
    """The pid of one child, also of one that is still to exec; None when there is none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                return int(entry.name)
    return None
