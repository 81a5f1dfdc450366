"""Lines of log files that must reach the console all the same: NCCL's warnings, which NCCL_DEBUG_FILE takes from it."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Tuple

_TURN_BYTES = 256 << 10
"""Read of one file in one turn: the loop must not stay away for long."""

Show = Callable[[int, bytes], None]
"""Called with (pid of the process that wrote it, or 0; the line)."""


class Echo:
    """Follows the files in a folder that match a pattern."""

    def __init__(self, folder: str, wishes: List[Dict[str, Any]], show: Show) -> None:
        self._folder, self._wishes, self._show = folder, wishes, show
        self._read: Dict[str, int] = {}
        self._rest: Dict[str, bytes] = {}

    def look(self) -> None:
        """Shows the new lines that hold the text. A file that cannot be read is passed over: this is a courtesy."""
        for name, text in self._files():
            path = os.path.join(self._folder, name)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                data = os.pread(fd, _TURN_BYTES, self._read.get(name, 0))
            except OSError:
                data = b""
            finally:
                os.close(fd)
            self._read[name] = self._read.get(name, 0) + len(data)
            *lines, self._rest[name] = (self._rest.get(name, b"") + data).split(b"\n")
            for line in lines:
                if text in line:
                    self._show(_pid(name), line)

    def _files(self) -> Iterator[Tuple[str, bytes]]:
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for wish in self._wishes:
            for name in fnmatch.filter(names, wish["files"]):
                yield name, wish["text"].encode()


def _pid(name: str) -> int:
    """`nccl.gpu01.4711.log` -> 4711."""
    found = re.search(r"\.(\d+)\.[a-z]+$", name)
    return int(found[1]) if found else 0
