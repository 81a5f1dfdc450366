"""The connections of a gathering: the first node's side and the others'. Threads of their own; what happens is told as
events in one queue. No message is interpreted here beyond the proof."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from nvrun.gather import proof, wire
from nvrun.gather.step import Step
from nvrun.model import Frozen

CARD_BYTES = 4 << 20
"""A host with 16 GPUs and 32 ports comes to about 100 KB."""
ANSWER_BYTES = 64 << 20
"""It lists all nodes, 65536 at most."""
END_BYTES = 4096
_HANDSHAKE_BYTES = 4096
"""munge's credentials have about 300."""
_HANDSHAKE_SECONDS = 5.0
_SEND_SECONDS = 20.0
_STRANGERS = 64
"""Connections without a proof at a time; further ones wait in the kernel."""
_AGAIN_SECONDS = 0.1
# A node that lost its power says nothing: the kernel asks after 10 s of silence, four times.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


class Event(NamedTuple):
    """Something came from a node."""

    node: int
    kind: Literal["card", "answer", "end", "gone", "cannot"]
    """`cannot`: this node has not got through to the first, `data` says why, and it goes on trying."""
    data: bytes = b""


class _Greeting(Frozen, frozen=True, kw_only=True):
    step: str
    nonce: str
    ways: tuple[str, ...]


class _Claim(Frozen, frozen=True, kw_only=True):
    node: int
    nonce: str
    way: str
    proof: str


class Side:
    """What both sides have."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._open: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def tell(self, data: bytes, but: int | None = None) -> None:
        """To every node that is connected, but for one."""
        with self._lock:
            for node, sock in self._open.items():
                if node != but:
                    self._send(sock, data)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            for sock in self._open.values():
                _shut(sock)

    def _send(self, sock: socket.socket, data: bytes) -> None:
        try:
            wire.send(sock, data, _SEND_SECONDS)
        except wire.Strange:
            return  # whoever reads from it sees its end

    def _follow(self, node: int, sock: socket.socket) -> None:
        """Ends, until the connection's own."""
        try:
            while data := wire.receive(sock, END_BYTES, None):
                self.events.put(Event(node, "end", data))
        except wire.Strange:
            pass
        with self._lock:
            del self._open[node]
            sock.close()
        if not self._closing.is_set():
            self.events.put(Event(node, "gone"))


class First(Side):
    """The first node's: listens, and takes one card of each other node. OSError where all ports are taken."""

    def __init__(self, step: Step, ways: Sequence[proof.Way]) -> None:
        super().__init__()
        self._step, self._ways = step, {way.name: way for way in ways}
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._answer: bytes | None = None
        self._listener = _listener(step.ports)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def answer(self, data: bytes) -> None:
        """To all nodes, those too that come later."""
        with self._lock:
            self._answer = data
        self.tell(data)

    def close(self) -> None:
        super().close()
        _shut(self._listener)

    def _accept(self) -> None:
        with self._listener:
            while not self._closing.is_set():
                self._strangers.acquire()
                try:
                    sock, _ = self._listener.accept()
                except OSError:  # closing, out of descriptors, or the other side was quick to leave
                    self._strangers.release()
                    self._closing.wait(_AGAIN_SECONDS)
                    continue
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            try:
                node = self._meet(sock)
            finally:
                self._strangers.release()
            card = wire.receive(sock, CARD_BYTES, _SEND_SECONDS)
            with self._lock:
                if not card or node in self._open or self._closing.is_set():
                    raise wire.Strange("a second connection of a node")
                self._open[node] = sock
                if self._answer is not None:
                    self._send(sock, self._answer)
        except (wire.Strange, msgspec.DecodeError):
            sock.close()
            return
        self.events.put(Event(node, "card", card))
        self._follow(node, sock)

    def _meet(self, sock: socket.socket) -> int:
        _keep_alive(sock)
        mine = proof.nonce()
        greeting = _Greeting(step=self._step.key, nonce=mine, ways=tuple(self._ways))
        wire.send(sock, msgspec.json.encode(greeting), _HANDSHAKE_SECONDS)
        claim = msgspec.json.decode(wire.receive(sock, _HANDSHAKE_BYTES, _HANDSHAKE_SECONDS), type=_Claim)
        way = self._ways.get(claim.way)
        wanted, own = proof.texts(self._step.key, claim.node, mine, claim.nonce)
        if way is None or not 0 < claim.node < len(self._step.names) or not way.holds(wanted, claim.proof):
            raise wire.Strange("no proof")
        wire.send(sock, way.prove(own).encode(), _HANDSHAKE_SECONDS)
        return claim.node


class Other(Side):
    """Another node's: brings its card to the first and waits for the answer."""

    def __init__(self, step: Step, ways: Sequence[proof.Way], card: bytes) -> None:
        super().__init__()
        self._step, self._ways, self._card = step, ways, card
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        said = ""
        while not self._closing.is_set():
            sock, trouble = self._connect()
            if sock:
                break
            if trouble != said:
                self.events.put(Event(0, "cannot", trouble.encode()))
                said = trouble
            time.sleep(_AGAIN_SECONDS)
        else:
            return
        with self._lock:
            self._open[0] = sock
        try:
            wire.send(sock, self._card, _SEND_SECONDS)
            answer = wire.receive(sock, ANSWER_BYTES, None)
        except wire.Strange:
            answer = b""
        if answer:
            self.events.put(Event(0, "answer", answer))
        self._follow(0, sock)

    def _connect(self) -> tuple[socket.socket | None, str]:
        """The first node's nvrun among what listens there, or why it was not found."""
        troubles: dict[str, None] = {}
        for port in self._step.ports:
            try:
                sock = socket.create_connection((self._step.names[0], port), timeout=_HANDSHAKE_SECONDS)
            except OSError as error:
                troubles[error.strerror or str(error)] = None
                if not isinstance(error, ConnectionRefusedError):
                    break  # silence or no route: the other ports would be no better
                continue
            try:
                self._meet(sock)
                return sock, ""
            except wire.Strange as strange:
                troubles[f"port {port}: {strange}"] = None
            except msgspec.DecodeError:
                troubles[f"port {port}: somebody else listens there"] = None
            sock.close()
        return None, "; ".join(troubles)

    def _meet(self, sock: socket.socket) -> None:
        _keep_alive(sock)
        greeting = msgspec.json.decode(wire.receive(sock, _HANDSHAKE_BYTES, _HANDSHAKE_SECONDS), type=_Greeting)
        if greeting.step != self._step.key:
            raise wire.Strange(f"nvrun of step {greeting.step[:40]}")
        way = next((way for way in self._ways if way.name in greeting.ways), None)
        if way is None:
            raise wire.Strange("no proof that both sides have")
        nonce = proof.nonce()
        own, wanted = proof.texts(self._step.key, self._step.node, greeting.nonce, nonce)
        claim = _Claim(node=self._step.node, nonce=nonce, way=way.name, proof=way.prove(own))
        wire.send(sock, msgspec.json.encode(claim), _HANDSHAKE_SECONDS)
        answer = wire.receive(sock, _HANDSHAKE_BYTES, 2 * _HANDSHAKE_SECONDS)
        if not answer or not way.holds(wanted, answer.decode(errors="replace")):
            raise wire.Strange(
                f"the proof by {way.name} was refused" if not answer else f"its proof by {way.name} fails"
            )


def _listener(ports: Iterable[int]) -> socket.socket:
    trouble: OSError | None = None
    for port in ports:
        try:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=256)
        except OSError as error:
            trouble = error
    assert trouble is not None
    raise trouble


def _shut(sock: socket.socket) -> None:
    """Wakes the thread that waits on it, which then closes it: a port stays taken while somebody waits there."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
