"""Ranks' lines on the user's terminal: `host:rank` before each, whole lines, one writer, and nobody waits for it."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import IO

from nvrun.fleet.session import Console as Line

QUEUE_BYTES = 8 << 20
"""What may wait for a terminal that does not read; beyond that lines are dropped and counted."""

# Colours (CSI ... m) pass; what moves the cursor, sets titles or answers queries does not: it comes from a host.
_CONTROL = re.compile(
    rb"\x1b\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]?"  # other CSI sequences
    rb"|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)"  # OSC, DCS, SOS, PM, APC with their strings
    rb"|\x1b(?!\[)[^\[]?"
    rb"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)


def plain(text: bytes) -> bytes:
    """`text` with nothing that could do more to a terminal than show it in colour."""
    return _CONTROL.sub(b"", text)


class Writer:
    """Writes lines from a queue of its own; `offer` never blocks."""

    def __init__(self, names: Sequence[str], out: IO[bytes], err: IO[bytes], *, terminal: bool) -> None:
        self._names = names
        self._out, self._err = out, err
        self._terminal = terminal
        self._lines: deque[tuple[bool, bool, object, bytes]] = deque()
        self._waiting_bytes = 0
        self._change = threading.Condition()
        self._stop = False
        self._open_progress: object = None
        self._dropped: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def offer(self, line: Line) -> None:
        """Takes a rank's line, or drops and counts it."""
        name = self._names[line.host]
        where = f"{name}:{'torchrun' if line.rank is None else line.rank}"
        text = f"{where}: ".encode() + plain(line.text)
        with self._change:
            if self._waiting_bytes > QUEUE_BYTES:
                self._dropped[name] += len(line.text)
                return
            self._put(line.stderr, line.progress, where, text)

    def say(self, text: str) -> None:
        """nvrun's own words, to stderr; never dropped."""
        with self._change:
            for line in text.splitlines():
                self._put(True, False, None, line.encode(errors="replace"))

    def close(self, timeout: float = 5.0) -> None:
        """Everything that was taken is written, if somebody reads within `timeout` seconds."""
        with self._change:
            self._stop = True
            self._change.notify()
        self._thread.join(timeout)

    @property
    def dropped(self) -> Mapping[str, int]:
        return dict(self._dropped)

    def _put(self, stderr: bool, progress: bool, key: object, text: bytes) -> None:
        self._lines.append((stderr, progress, key, text))
        self._waiting_bytes += len(text)
        self._change.notify()

    def _write_all(self) -> None:
        while True:
            with self._change:
                while not self._lines and not self._stop:
                    self._change.wait()
                if not self._lines:
                    return
                batch = list(self._lines)
                self._lines.clear()
                self._waiting_bytes = 0
            try:
                self._write(batch)
            except (BrokenPipeError, ValueError):
                return  # nobody reads any more: the files have everything

    def _write(self, batch: Sequence[tuple[bool, bool, object, bytes]]) -> None:
        for stderr, progress, key, text in batch:
            stream = self._err if stderr else self._out
            if self._open_progress is not None:
                # The bar that is on the screen is replaced by its own next state, and kept above another's line.
                stream.write(b"\r\x1b[K" if key == self._open_progress else b"\n")
                self._open_progress = None
            stream.write(text)
            if progress and self._terminal:
                self._open_progress = key
                stream.flush()
            else:
                stream.write(b"\n")
        self._out.flush()
        self._err.flush()


def standard(names: Sequence[str]) -> Writer:
    """A writer on this process's own standard streams."""
    return Writer(names, sys.stdout.buffer, sys.stderr.buffer, terminal=sys.stderr.isatty() and sys.stdout.isatty())
