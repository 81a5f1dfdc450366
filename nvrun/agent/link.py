"""This host's end of the connection to the launcher, for which nobody ever waits: messages in, a queue of bytes out."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, Optional

from . import wire
from .loop import READ, WRITE, Loop

BEAT_SECONDS = 2.0
CONSOLE_BYTES = 4 << 20
"""What may wait for the link before console lines are dropped (and counted)."""
_TURN_BYTES = 1 << 20
_UNNAMED = 0xFFFF

Message = Dict[str, Any]


class Link:
    """`ended` is called when the input ends, nobody reads the output, or nothing came for too long: then with True."""

    def __init__(
        self, loop: Loop, into: int, out: int, take: Callable[[Message], None], ended: Callable[[bool], None]
    ) -> None:
        self.host = _UNNAMED
        """Whose frames these are."""
        self.lost_after: Optional[float] = None
        """Seconds without a byte after which the launcher is given up; None: never."""
        self.dropped_bytes = 0
        """Of console lines."""
        self._loop, self._into, self._out = loop, into, out
        self._take, self._ended = take, ended
        self._input = b""
        self._queue: Deque[bytes] = deque()
        self._queued_bytes = 0
        self._source: Optional[Iterator[bytes]] = None
        self._heard = time.monotonic()
        self.closed = False
        os.set_blocking(into, False)
        os.set_blocking(out, False)

    def open(self) -> None:
        self._put(b"\n")  # ends whatever a banner left on the line
        self._loop.watch(self._into, READ, self._read)
        self._loop.every(BEAT_SECONDS, self._beat)

    def close(self) -> None:
        """What is still queued is lost, and whatever is sent from now on."""
        self.closed = True
        self._loop.unwatch(self._into)
        self._loop.unwatch(self._out)

    def send(self, body: Message) -> None:
        """Queues a message; it is never dropped."""
        self._put(wire.message(self.host, body))

    def console(self, stream: bytes, rank: int, line: bytes, progress: bool) -> None:
        """Queues a console line, or counts it as dropped while the link does not keep up."""
        if self._queued_bytes > CONSOLE_BYTES or self.closed:
            self.dropped_bytes += len(line)
            return
        head = b"%08x%s" % (rank & 0xFFFFFFFF, b"~" if progress else b" ")
        self._put(b"".join(wire.frames(self.host, stream, head + line)))

    def send_all(self, source: Iterator[bytes]) -> None:
        """Frames that are made as the link takes them."""
        self._source = source
        self._flush()

    def _put(self, data: bytes) -> None:
        if self.closed:
            return
        self._queue.append(data)
        self._queued_bytes += len(data)
        self._flush()

    def _flush(self) -> None:
        """Writes what the link takes, but not for longer than a turn: it may take the logs of a whole run."""
        turn = _TURN_BYTES
        while self._queue or self._take_from_source():
            if turn <= 0:
                self._loop.watch(self._out, WRITE, self._flush)
                return
            data = self._queue[0]
            try:
                sent = os.write(self._out, data)
            except BlockingIOError:
                self._loop.watch(self._out, WRITE, self._flush)
                return
            except OSError:  # nobody reads any more
                self._ended(False)
                return
            turn -= sent
            self._queued_bytes -= sent
            if sent == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[sent:]
        self._loop.unwatch(self._out)

    def _take_from_source(self) -> bool:
        """The next frame of what is made as the link takes it, where there is one."""
        more = next(self._source, None) if self._source else None
        if more is None:
            self._source = None
            return False
        self._queue.append(more)
        self._queued_bytes += len(more)
        return True

    def _beat(self) -> None:
        if self._queued_bytes < 4096:
            self._put(b"".join(wire.frames(self.host, wire.BEAT, b"")))
        silent = time.monotonic() - self._heard
        if self.lost_after is not None and silent > self.lost_after and not self.closed:
            self._ended(True)

    def _read(self) -> None:
        try:
            data = os.read(self._into, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended(False)
            return
        self._heard = time.monotonic()
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if line:
                self._take(json.loads(line))
