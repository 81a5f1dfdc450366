"""Ranks' lines on the user's terminal: `host:rank` before each, whole lines, one writer, and nobody waits for it."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nvrun.fleet.session import Console as Line

QUEUE_BYTES = 8 << 20
"""What may wait for a terminal that does not read; beyond that lines are dropped and counted."""
PATIENCE = 3.0
"""Seconds without a byte taken after which the reader of nvrun's output is given up."""
PROGRESS_IN_A_FILE = 10.0
"""Seconds between two states of a progress bar where the output is no terminal, which would redraw it."""

# Colours (CSI ... m) pass; what moves the cursor, sets titles or answers queries does not: it comes from a host.
_CONTROL = re.compile(
    rb"\x1b\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]?"  # other CSI sequences
    rb"|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)"  # OSC, DCS, SOS, PM, APC with their strings
    rb"|\x1b(?!\[)[^\[]?"
    rb"|\xc2[\x80-\x9f]"  # the same controls as one UTF-8 character each
    rb"|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f]",
    re.DOTALL,
)


def plain(text: bytes) -> bytes:
    """`text` with nothing that could do more to a terminal than show it in colour; the colour ends with it."""
    kept = _CONTROL.sub(b"", text)
    return kept + b"\x1b[0m" if b"\x1b" in kept else kept


class _Entry(NamedTuple):
    text: bytes
    stderr: bool
    progress: bool
    where: str
    """`host:rank`, whose bar a progress line belongs to; empty for nvrun's own words."""
    host: str
    counted: int
    """Bytes of a rank's line, for the count of what was dropped."""


class Writer:
    """Writes lines from a queue of its own to two descriptors; `offer` never blocks.

    Descriptors, because a buffered file's lock is not to be had at exit while a write to it hangs.
    """

    def __init__(self, names: Sequence[str], out: int, err: int, *, terminal: bool) -> None:
        self._names = names
        self._out, self._err = out, err
        self._terminal = terminal
        self._entries: deque[_Entry] = deque()
        self._waiting_bytes = 0
        self._change = threading.Condition()
        self._batch: list[_Entry] = []
        """What is being written."""
        self._stop = False
        self._moved = time.monotonic()
        self._deaf: set[int] = set()
        """Descriptors that nobody reads any more."""
        self._open_bar = ""
        self._shown: dict[str, float] = {}
        self._dropped: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def offer(self, line: Line) -> None:
        """Takes a rank's line, or drops and counts it."""
        name = self._names[line.host]
        where = f"{name}:{'torchrun' if line.rank is None else line.rank}"
        if line.progress and not self._terminal:
            now = time.monotonic()
            if now - self._shown.get(where, 0.0) < PROGRESS_IN_A_FILE:
                return  # its next state says the same and more
            self._shown[where] = now
        text = f"{where}: ".encode() + plain(line.text)
        with self._change:
            if self._waiting_bytes > QUEUE_BYTES:
                self._dropped[name] += len(line.text)
                return
            self._put(_Entry(text, line.stderr, line.progress, where, name, len(line.text)))

    def say(self, text: str) -> None:
        """nvrun's own words, to stderr; they may quote a rank's."""
        with self._change:
            for line in text.splitlines():
                self._put(_Entry(plain(line.encode(errors="replace")), True, False, "", "", 0))

    def flush(self) -> None:
        """Waits until all is written. What the reader does not take in PATIENCE seconds is dropped and counted."""
        with self._change:
            self._moved = time.monotonic()
            while (self._entries or self._batch) and time.monotonic() - self._moved < PATIENCE:
                self._change.wait(0.1)
            for entry in (*self._batch, *self._entries):
                self._dropped[entry.host] += entry.counted
            self._entries.clear()
            self._batch = []
            self._waiting_bytes = 0

    def close(self) -> None:
        """The last words; nothing is taken after it."""
        self.flush()
        with self._change:
            self._stop = True
            self._change.notify_all()

    @property
    def dropped(self) -> Mapping[str, int]:
        """Bytes per host that were not shown."""
        return {host: count for host, count in self._dropped.items() if count}

    def _put(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._waiting_bytes += len(entry.text)
        self._change.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._change:
                self._batch = []
                self._change.notify_all()
                while not self._entries and not self._stop:
                    self._change.wait()
                if not self._entries:
                    return
                batch = self._batch = self._next_batch()
            self._write(self._err if batch[0].stderr else self._out, b"".join(map(self._shape, batch)))

    def _next_batch(self) -> list[_Entry]:
        """Lines for the same descriptor, few enough that little is under way when the reader stops."""
        batch = [self._entries.popleft()]
        size = len(batch[0].text)
        while self._entries and self._entries[0].stderr == batch[0].stderr and size < 1 << 16:
            batch.append(self._entries.popleft())
            size += len(batch[-1].text)
        self._waiting_bytes -= size
        return batch

    def _shape(self, entry: _Entry) -> bytes:
        """The line as the screen needs it: a bar is replaced by its own next state, and kept above another's line."""
        before = b""
        if self._open_bar:
            before = b"\r\x1b[K" if entry.where == self._open_bar else b"\n"
            self._open_bar = ""
        if not (entry.progress and self._terminal):
            return before + entry.text + b"\n"
        self._open_bar = entry.where
        room = shutil.get_terminal_size().columns - 1  # a longer one would leave its first row on the screen
        return before + entry.text.decode(errors="replace")[:room].encode()

    def _write(self, fd: int, data: bytes) -> None:
        while data and fd not in self._deaf:
            try:
                written = os.write(fd, data)
            except BlockingIOError:  # somebody who shares the terminal made it so
                select.select([], [fd], [], 1.0)
                continue
            except OSError:  # closed pipe, full disk: the files of the run have everything
                self._deaf.add(fd)
                return
            data = data[written:]
            self._moved = time.monotonic()


def standard(names: Sequence[str]) -> Writer:
    """A writer on this process's own standard streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    return Writer(names, sys.stdout.fileno(), sys.stderr.fileno(), terminal=sys.stderr.isatty() and sys.stdout.isatty())
