"""NCCL's RAS: what the communicators of a job say of themselves, asked over its own text protocol.

Since NCCL 2.24 each process has a thread for it, and the first on a host listens on NCCL_RAS_ADDR (user guide, RAS).
"""

from __future__ import annotations

import socket
from typing import List

SECONDS = 10.0
_LEG_SECONDS = 5
_LIMIT_BYTES = 256 << 10


def ask(address: str) -> str:
    """The answer to `verbose status`; empty where nobody answers: no NCCL, an older one, or RAS switched off."""
    host, _, port = address.rpartition(":")
    parts: List[bytes] = []
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS) as sock:
            file = sock.makefile("rb")
            for line in ("client protocol 2", "timeout %d" % _LEG_SECONDS):
                sock.sendall(line.encode() + b"\n")
                file.readline(256)
            sock.sendall(b"verbose status\n")
            while len(parts) * 4096 < _LIMIT_BYTES and (data := file.read1(4096)):
                parts.append(data)
    except (OSError, ValueError):
        pass  # what came before is all there is
    return b"".join(parts).decode("utf-8", "replace")
