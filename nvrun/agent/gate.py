"""The gate: each rank's shim says hello here and waits, so that nothing of the user runs before it is let go."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, Callable, Dict, List, Optional

from . import oom
from .loop import READ, Loop
from .streams import Stream

_SO_PEERCRED = struct.Struct("3i")
"""pid, uid, gid (unix(7))."""


def read_rank_source() -> bytes:
    """rank.py as this agent has it, in memory or from the file."""
    import importlib.util

    spec = importlib.util.find_spec(__package__ + ".rank")
    assert spec is not None
    assert spec.loader is not None
    source: str = spec.loader.get_source(spec.name)  # type: ignore[attr-defined]  # FromMemory and Python's own have it
    return source.encode()


class Rank:
    """One rank of this host, from its shim's hello to its end."""

    def __init__(self, hello: Dict[str, Any], sock: socket.socket) -> None:
        env = hello["env"]
        self.pid: int = hello["pid"]
        self.rank = int(env["RANK"])
        self.attempt = int(env["TORCHELASTIC_RESTART_COUNT"] or 0)
        # LOCAL_RANK is 0 for all under --virtual-local-rank; torchrun's error file says .../attempt_0/<local rank>/.
        error_file = env["TORCHELASTIC_ERROR_FILE"]
        self.torchruns_folder = os.path.dirname(error_file)
        holder = os.path.basename(self.torchruns_folder)
        self.local_rank = int(holder if holder.isdigit() else env["LOCAL_RANK"])
        self.sock: Optional[socket.socket] = sock
        self.pidfd = os.pidfd_open(self.pid)
        self.streams: List[Stream] = []
        self.begun: Optional[float] = None
        """When it was let go, seconds since the epoch."""
        self.oom: Optional[oom.Counted] = None
        """What the kernel's OOM killer had done by then."""


class Starts:
    """torchrun's starts of its ranks here: all anew after a failure, or where nodes come or go. A start is not told by
    who still runs: one of its ranks may have ended before another has greeted."""

    def __init__(self) -> None:
        self._attempt = -1
        self._last: Dict[int, Rank] = {}

    def add(self, rank: Rank) -> bool:
        """A rank that has greeted; whether a start begins with it."""
        anew = rank.attempt != self._attempt or rank.local_rank in self._last
        if anew:
            self._attempt, self._last = rank.attempt, {}
        self._last[rank.local_rank] = rank
        return anew

    def is_of_last(self, rank: Rank) -> bool:
        """Whether it is a rank of the last start."""
        return self._last.get(rank.local_rank) is rank


class Gate:
    """An abstract unix socket: no file, and gone with this process."""

    def __init__(self, loop: Loop, greet: Callable[[Rank], None]) -> None:
        """`greet` is called with each rank that has said hello; its `sock` waits for the plan."""
        self._loop, self._greet = loop, greet
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def open(self, name: str) -> None:
        """From now on shims can connect. OSError where the name is taken."""
        try:
            self._listener.bind("\0" + name)
        except OSError as error:
            raise OSError("the socket @%s: %s" % (name, error.strerror)) from None
        self._listener.listen(256)
        self._loop.watch(self._listener.fileno(), READ, self._accept)

    def close(self) -> None:
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        _, uid, _ = _SO_PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED.size))
        if uid != os.getuid():
            sock.close()
            return
        source = read_rank_source()
        try:
            sock.sendall(b"%08x" % len(source) + source)
        except OSError:  # it died at once: torchrun says so
            sock.close()
            return
        sock.setblocking(False)
        buffer = bytearray()

        def read() -> None:
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            buffer.extend(data)
            if data and b"\n" not in buffer:
                return
            self._loop.unwatch(sock.fileno())
            if not data:
                sock.close()
                return
            sock.setblocking(True)
            try:
                rank = Rank(json.loads(bytes(buffer)), sock)
            except (OSError, LookupError, TypeError, ValueError):
                # torchrun has ended it and taken its status, or somebody of this user's who is no shim came by.
                sock.close()
                return
            self._greet(rank)

        self._loop.watch(sock.fileno(), READ, read)
