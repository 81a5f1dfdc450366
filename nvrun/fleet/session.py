"""All hosts of a run behind one object: messages down, events up, a heartbeat both ways."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nvrun.agent import wire
from nvrun.fleet import replies
from nvrun.fleet.bundle import bundle
from nvrun.fleet.link import Link, Unreachable, no_room
from nvrun.fleet.replies import Body as Body
from nvrun.fleet.start import STAGE
from nvrun.fleet.trouble import GARBLED

BEAT_SECONDS = 2.0
_CONNECTING = 64
"""Hosts that are connected to at the same time; the others wait. Chosen: so many were measured, at 8 ms of CPU each."""
_NO_THREAD = "can't start new thread"
"""CPython's words where pthread_create(3) fails, in the threads of paramiko too."""


class Route(NamedTuple):
    """How some hosts are reached: one each by ssh, all at once by srun."""

    hosts: tuple[int, ...]
    """Ids of the hosts: their node ranks."""
    connect: Callable[[], Link]
    """Blocks until the command runs; raises Unreachable."""
    names: Mapping[str, int] = {}
    """Slurm's node name -> id, where one stream of input goes to several hosts."""
    first: bytes = b""
    """What the far command reads before the agent's bundle."""

    def which(self, node: str) -> Collection[int]:
        """The host that calls itself by this name of Slurm's; where there is but one, it needs no name."""
        return [self.names[node]] if node in self.names else self.hosts if len(self.hosts) == 1 else []


class Event(NamedTuple):
    """Something happened. `host` is -1 where it concerns the launcher itself."""

    host: int
    kind: str
    """`message`, `chunk` (a file's bytes), `unreachable` (an Unreachable), `stage` (how far its start came), `refused`
    ((message, last words): its shell or Python cannot run the agent), `closed` (last words), `signal` (number)."""
    body: Any


class Console(NamedTuple):
    """A line for the console."""

    host: int
    rank: int | None
    """None: torchrun itself."""
    stderr: bool
    progress: bool
    text: bytes


class Session:
    """Opened at once; `events` tells how it goes."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        lost_after: float,
        show: Callable[[Console], None],
    ) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.heard: dict[int, float] = {}
        """Host -> when it was last heard, by time.monotonic()."""
        self._show = show
        self.lost_after = lost_after
        self._outboxes: list[tuple[Route, queue.SimpleQueue[bytes | None]]] = []
        self._links: dict[int, Link] = {}
        self._closing = threading.Event()
        self._slots = threading.BoundedSemaphore(_CONNECTING)
        for route in routes:
            outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            self._outboxes.append((route, outbox))
        threading.Thread(target=self._beat, daemon=True).start()
        for route, outbox in self._outboxes:
            self._start(route, self._serve, route, outbox)

    def send(self, body: Body, to: Collection[int] | None = None) -> None:
        """Sends a message to the hosts `to`, or to all."""
        for route, outbox in self._outboxes:
            mine = route.hosts if to is None else [host for host in route.hosts if host in to]
            if not mine:
                continue
            addressed = body if len(mine) == len(route.hosts) else {**body, "to": list(mine)}
            outbox.put(json.dumps(addressed, separators=(",", ":")).encode() + b"\n")

    def end_input(self) -> None:
        """The agents see the end of their input, and end what still runs."""
        self._closing.set()
        for _, outbox in self._outboxes:
            outbox.put(None)

    def close(self) -> None:
        """Drops all links."""
        self.end_input()
        for link in set(self._links.values()):
            link.close()

    def said(self, host: int) -> str:
        """What came from a host, or from the program that reaches it, on standard error."""
        return self._links[host].said() if host in self._links else ""

    # -- threads ----------------------------------------------------------------------------------------------------

    def _serve(self, route: Route, outbox: queue.SimpleQueue[bytes | None]) -> None:
        """One link's life: connect, greet, read to the end."""
        try:
            with self._slots:
                link = route.connect()
        except Unreachable as trouble:
            self._tell_all(route.hosts, "unreachable", trouble)
            return
        except Exception as fault:  # ours; its traceback is printed, and nobody waits for this host
            if isinstance(fault, BlockingIOError) or _NO_THREAD in str(fault):
                self._tell_all(route.hosts, "unreachable", no_room(str(fault)))
                return
            self._tell_all(
                route.hosts, "unreachable", Unreachable(f"nvrun's fault: {fault!r}", code="host-no-transport")
            )
            raise
        self._links.update(dict.fromkeys(route.hosts, link))
        if self._closing.is_set():
            link.close()
            return
        self._tell_all(route.hosts, "stage", "step" if route.names else "connected")
        you: Body = {"t": "you", "lost_after": self.lost_after if self.lost_after != float("inf") else None}
        you |= {"ids": dict(route.names)} if route.names else {"id": route.hosts[0]}
        first = route.first + bundle() + json.dumps(you).encode() + b"\n"
        if not self._start(route, self._write, link, first, outbox):
            link.close()
            return
        reader = wire.Reader()
        try:
            while data := link.read():
                for host, stream, payload in reader.feed(data):
                    self._take(route, link, host, stream, payload)
        except OSError as error:
            words = str(error)
        except (ValueError, RecursionError, MemoryError) as error:
            words = f"{GARBLED}: {error}"
            link.close()
        else:
            words = ""
        noise = reader.noise.decode(errors="replace").strip()
        self._tell_all(route.hosts, "closed", "\n".join(part for part in (words, noise, link.last_words()) if part))

    def _start(self, route: Route, work: Callable[..., None], *arguments: object) -> bool:
        """In a thread of its own, if this machine has one left."""
        try:
            threading.Thread(target=work, args=arguments, daemon=True).start()
        except RuntimeError as error:
            self._tell_all(route.hosts, "unreachable", no_room(str(error)))
            return False
        return True

    def _write(self, link: Link, first: bytes, outbox: queue.SimpleQueue[bytes | None]) -> None:
        data: bytes | None = first
        try:
            while data is not None:
                link.write(data)
                data = outbox.get()
            link.close_write()
        except (OSError, ValueError):
            return  # the reader sees the link's end and tells it

    def _take(self, route: Route, link: Link, host: int, stream: bytes, payload: bytes) -> None:
        if host not in route.hosts:
            self._take_early(route, link, stream, payload)
            return
        self.heard[host] = time.monotonic()
        if stream == wire.MESSAGE:
            self.events.put(Event(host, "message", replies.read(payload)))
        elif stream == wire.FILE:
            self.events.put(Event(host, "chunk", payload))
        elif stream in (wire.STDOUT, wire.STDERR):
            rank = int(payload[:8], 16)
            self._show(
                Console(
                    host=host,
                    rank=None if rank == 0xFFFFFFFF else rank,
                    stderr=stream == wire.STDERR,
                    progress=payload[8:9] == b"~",
                    text=payload[9:],
                )
            )

    def _take_early(self, route: Route, link: Link, stream: bytes, payload: bytes) -> None:
        """From a host that does not know its number yet."""
        if stream == STAGE:
            stage, _, node = payload.decode(errors="replace").partition(" ")
            self._tell_all(route.which(node), "stage", stage)
        elif stream == wire.MESSAGE:
            body = json.loads(payload)
            if isinstance(body, dict) and body.get("t") == "refused" and isinstance(body.get("why"), str):
                self._tell_all(route.which(body.get("node", "")), "refused", (body, link.last_words()))

    def _tell_all(self, hosts: Iterable[int], kind: str, body: Any) -> None:
        for host in hosts:
            self.events.put(Event(host, kind, body))

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_SECONDS):
            self.send({"t": "beat"})
