"""The wire between launcher and agents: small frames up, JSON lines down.

Up, an agent writes frames: one line of at most 1000 bytes each, because srun merges the standard output of its tasks
and keeps only lines up to 1024 bytes whole (measured on Slurm 22.05). A frame is

    STX  host (4 hex digits)  stream (1 byte)  '+' or '.'  payload  LF

'+' says that the next frame of this host and stream continues the payload. Whatever does not begin with STX is noise
(login banners, warnings of srun) and kept apart. Down, the launcher writes one JSON object a line, read by all agents.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Optional, Tuple

FRAME_BYTES = 1000
STX = b"\x02"

MESSAGE = b"j"
"""A JSON object."""
BEAT = b"b"
"""Heartbeat, no payload."""
STDOUT = b"o"
"""A console line: rank (8 hex digits, all ones for torchrun itself), `~` for progress or a space, the bytes."""
STDERR = b"e"
FILE = b"f"
"""Bytes of the file that the last `file` message announced."""

_PART_BYTES = 100  # what Python needs for a part, however short
_HEADER = 7  # STX, four digits, stream, mark
_PAYLOAD = FRAME_BYTES - _HEADER - 1

# LF would end the frame; NUL and STX are kept out for the sake of what lies between (terminals, srun, kubectl).
_ESCAPES = ((b"\x1b", b"\x1b["), (b"\n", b"\x1bn"), (b"\0", b"\x1b0"), (STX, b"\x1b2"))


def escape(data: bytes) -> bytes:
    for raw, safe in _ESCAPES:
        data = data.replace(raw, safe)
    return data


def unescape(data: bytes) -> bytes:
    if b"\x1b" not in data:
        return data
    for raw, safe in reversed(_ESCAPES):
        data = data.replace(safe, raw)
    return data


def frames(host: int, stream: bytes, payload: bytes) -> Iterator[bytes]:
    """The frames that carry `payload`; an empty payload is one frame."""
    head = STX + b"%04x" % host + stream
    safe = escape(payload)
    while len(safe) > _PAYLOAD:
        cut = _PAYLOAD
        if safe[cut - 1 : cut] == b"\x1b":  # an escape stays whole, so that every frame reads by itself
            cut -= 1
        yield head + b"+" + safe[:cut] + b"\n"
        safe = safe[cut:]
    yield head + b"." + safe + b"\n"


def message(host: int, body: Dict[str, Any]) -> bytes:
    """A whole message as bytes for the wire."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return b"".join(frames(host, MESSAGE, text.encode("utf-8", "replace")))  # a file's name need not be text


class Reader:
    """Bytes of one link in, (host, stream, payload) out; noise is kept, bounded.

    `limit` bounds what is being put together, in bytes: a host that sends more is cut off with ValueError.
    """

    def __init__(self, limit: int = 64 << 20) -> None:
        self._rest = b""
        self._parts: Dict[Tuple[int, bytes], List[bytes]] = {}
        self._size = 0
        self._limit = limit
        self.noise = b""

    def feed(self, data: bytes) -> Iterator[Tuple[int, bytes, bytes]]:
        """Yields host, stream and payload; the chunks of a file one by one, everything else whole."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > FRAME_BYTES:  # no frame is that long
            self._note(self._rest)
            self._rest = b""
        for line in lines:
            if not line.startswith(STX):
                self._note(line + b"\n")
                continue
            head = _parse_head(line)
            if head is None:
                self._note(line + b"\n")
                continue
            host, stream, more = head
            payload = unescape(line[_HEADER:])
            if stream == FILE:
                yield host, stream, payload
                continue
            key = (host, stream)
            parts = self._parts.setdefault(key, [])
            parts.append(payload)
            self._size += len(payload) + _PART_BYTES
            if self._size > self._limit:
                raise ValueError("messages of more than %d bytes" % self._limit)
            if not more:
                del self._parts[key]
                self._size -= sum(len(part) + _PART_BYTES for part in parts)
                yield host, stream, b"".join(parts)

    def _note(self, data: bytes) -> None:
        self.noise = (self.noise + data)[-16384:]


def _parse_head(line: bytes) -> Optional[Tuple[int, bytes, bool]]:
    if len(line) < _HEADER or line[6:7] not in (b"+", b".") or not line[1:5].isalnum():
        return None
    try:
        return int(line[1:5], 16), line[5:6], line[6:7] == b"+"
    except ValueError:
        return None
