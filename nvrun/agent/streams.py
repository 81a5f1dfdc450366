"""Output of one process: the file first, then the console what the link takes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import Callable, Iterator, List, Optional, Tuple

LINE_BYTES = 1 << 16
"""A longer line is cut on the console; the file has all of it."""
PROGRESS_SECONDS = 0.5
"""A progress bar (text between carriage returns) reaches the console at most this often."""
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ from Python 3.10
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_TAIL_BYTES = 4096


class Lines:
    """Bytes in, whole lines out, the way a terminal would show them: of `a\\rb\\rc\\n` only `c` stays."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest = b""
        self._skip = False
        self._shown = 0.0
        self._clock = clock
        self.cut_bytes = 0

    def feed(self, data: bytes) -> Iterator[Tuple[bytes, bool]]:
        """(line, whether it is progress that the next line of this stream replaces)."""
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            if self._skip:
                self.cut_bytes += len(line)
                self._skip = False
                continue
            yield self._cut(_visible(line)), False
        if self._skip:
            self.cut_bytes += len(rest)
            rest = b""
        elif len(rest) > LINE_BYTES:
            rest = rest[max(0, rest.rfind(b"\r", 0, len(rest) - 1)) :]  # a progress bar that runs for hours
            if len(rest) > LINE_BYTES:
                yield self._cut(rest), False
                rest, self._skip = b"", True
        elif b"\r" in rest and self._clock() - self._shown >= PROGRESS_SECONDS:
            text = _visible(rest)
            if text.strip():
                self._shown = self._clock()
                yield text, True
        self._rest = rest

    def end(self) -> Iterator[Tuple[bytes, bool]]:
        if self._rest and not self._skip:
            yield _visible(self._rest), False
        self._rest = b""

    def _cut(self, line: bytes) -> bytes:
        self.cut_bytes += max(0, len(line) - LINE_BYTES)
        return line[:LINE_BYTES]


def _visible(line: bytes) -> bytes:
    parts = [part for part in line.rstrip(b"\r").split(b"\r") if part.strip()]
    return parts[-1] if parts else b""


def append(path: str) -> int:
    """A descriptor that writes at the file's end; a link in its place is not followed."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


class Stream:
    """One pipe of one process: read when ready, written to its file, then cut into lines for the console."""

    def __init__(self, path: str, show: Callable[[bytes, bool], None], copy: Optional[str] = None) -> None:
        """`copy`: a second file, torchrun's own, that gets the same bytes."""
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(OSError):  # over the user's limit of pipe pages
            fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, _PIPE_BYTES)  # fewer switches on a flood of output
        self.path = path
        self._lines = Lines()
        self._show = show
        self.closed = False
        self.read_bytes = 0
        self._last = b""
        self.first_at = 0.0
        """When the first byte was read, seconds since the epoch; 0 before."""
        self.lost_bytes = 0
        self.trouble = ""
        """Why bytes were lost, by errno's name."""
        self._files = [self._opened(each) for each in (path, copy) if each is not None]

    def pump(self) -> bool:
        """Reads once, if there is anything; False at the end of the stream."""
        try:
            data = os.read(self.read_end, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._write(data)
        for line, progress in self._lines.feed(data):
            self._show(line, progress)
        return True

    def drain(self) -> None:
        """Reads what is in the pipe now; not for ever, where a child of the rank that outlives it goes on writing."""
        before, limit = -1, self.read_bytes + 2 * _PIPE_BYTES
        while not self.closed and before != self.read_bytes < limit:
            before = self.read_bytes
            self.pump()

    def close_write_end(self) -> None:
        os.close(self.write_end)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for line, progress in self._lines.end():
            self._show(line, progress)
        os.close(self.read_end)
        for file in self._files:
            if file is not None:
                os.close(file)

    def tail(self, lines: int = 20) -> List[str]:
        """The last lines that were read, whatever became of the file."""
        found = self._last.split(b"\n")
        if not found[-1]:
            found.pop()
        return [_visible(line).decode("utf-8", "replace") for line in found[-lines:]]

    @property
    def cut_bytes(self) -> int:
        return self._lines.cut_bytes

    def _write(self, data: bytes) -> None:
        """All of `data` to the file. A full disk costs the bytes that do not fit, never the rank's time."""
        self.first_at = self.first_at or time.time()
        self.read_bytes += len(data)
        self._last = (self._last + data)[-_TAIL_BYTES:] if len(data) < _TAIL_BYTES else data[-_TAIL_BYTES:]
        for file in self._files:
            view = memoryview(data)
            if file is None:
                self.lost_bytes += len(view)
                continue
            while view:
                try:
                    view = view[os.write(file, view) :]
                except OSError as error:
                    self.lost_bytes += len(view)
                    self.trouble = _name(error)
                    break

    def _opened(self, path: str) -> Optional[int]:
        """None where it cannot be opened (a full disk, a folder that was removed): it costs the bytes, not the run."""
        try:
            return append(path)
        except OSError as error:
            if error.errno == errno.ELOOP:  # somebody put a link in its place: that is no accident
                raise
            self.trouble = _name(error)
            return None


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))
