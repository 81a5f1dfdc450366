"""Lines of log files that somebody waits for: NCCL's warnings, which NCCL_DEBUG_FILE takes from the console, and what
NCCL says it read."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

_TURN_BYTES = 256 << 10
"""Read of one file in one turn: the loop must not stay away for long."""
_LAST_TURNS = 64
"""The same at the end, when nobody waits for the loop any more: 16 MiB."""
_LINE_BYTES = 1 << 16
"""Of a line that has no end yet, what is kept."""

_MOST_NOTED = 10000
"""Lines of all ranks of a host; NCCL writes some twenty a rank."""
_LONGEST_NOTED = 500

Take = Callable[[int, bytes], None]
"""Called with (pid of the process that wrote it, or 0; the line)."""


class Followed:
    """The files in a folder that match patterns, as they grow."""

    def __init__(self, folder: str, wishes: List[Tuple[str, Take]]) -> None:
        """`wishes`: a pattern of file names, and what takes each line of such a file."""
        self._folder, self._wishes = folder, wishes
        self._read: Dict[str, int] = {}
        self._rest: Dict[str, bytes] = {}

    def look(self) -> None:
        """Hands on the new lines. A file that cannot be read is passed over: this is a courtesy."""
        for name, takers in self._files():
            self._turn(name, takers)

    def end(self) -> None:
        """Hands on all that is left, a last line without its end too."""
        for name, takers in self._files():
            for _ in range(_LAST_TURNS):
                if not self._turn(name, takers):
                    break
            if rest := self._rest.pop(name, b""):
                self._hand_on(name, takers, [rest])

    def _turn(self, name: str, takers: List[Take]) -> bool:
        """Whether there was something new."""
        try:
            fd = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(fd).st_size < self._read.get(name, 0):  # begun anew
                self._read[name], self._rest[name] = 0, b""
            data = os.pread(fd, _TURN_BYTES, self._read.get(name, 0))
        except OSError:
            return False
        finally:
            os.close(fd)
        self._read[name] = self._read.get(name, 0) + len(data)
        *lines, rest = (self._rest.get(name, b"") + data).split(b"\n")
        self._rest[name] = rest[:_LINE_BYTES]
        self._hand_on(name, takers, lines)
        return bool(data)

    def _hand_on(self, name: str, takers: List[Take], lines: List[bytes]) -> None:
        for line in lines:
            for take in takers:
                take(_pid(name), line)

    def _files(self) -> Iterator[Tuple[str, List[Take]]]:
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for name in names:
            takers = [take for pattern, take in self._wishes if fnmatch.fnmatch(name, pattern)]
            if takers:
                yield name, takers


def _pid(name: str) -> int:
    """`nccl.gpu01.4711.log` -> 4711."""
    found = re.search(r"\.(\d+)\.[a-z]+$", name)
    return int(found[1]) if found else 0


class Noted:
    """Lines that the launcher wants to know, each told once with the ranks that wrote it."""

    def __init__(self, wish: Dict[str, Any], tell: Callable[[Dict[str, List[int]]], None]) -> None:
        """`wish`: `texts`, of which a line must hold one, and `after`, from which on it is told."""
        self._after, self._tell = wish["after"].encode(), tell
        self._texts = [text.encode() for text in wish["texts"]]
        self._known: Set[Tuple[int, bytes]] = set()
        self._new: Dict[str, List[int]] = {}

    def take(self, rank: int, line: bytes) -> None:
        at = line.find(self._after)
        if at < 0 or len(self._known) >= _MOST_NOTED or not any(text in line for text in self._texts):
            return
        words = line[at : at + _LONGEST_NOTED]
        if (rank, words) not in self._known:
            self._known.add((rank, words))
            self._new.setdefault(words.decode("utf-8", "replace"), []).append(rank)

    def tell(self) -> None:
        """Tells what is new."""
        if self._new:
            new, self._new = self._new, {}
            self._tell(new)
