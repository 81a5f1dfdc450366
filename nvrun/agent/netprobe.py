"""The connecting side of the tests between hosts: ports, a push of bytes, the path's MTU; latency; bandwidth.

Nothing is left behind: connections are reset rather than closed, so that no port waits in TIME_WAIT.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import selectors
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional, Set, Union

from .netserve import COUNT, DATAGRAM, DONE, ECHO, HEAD, KNOCK, PUSH, SINK, WHO, family_of

IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_PROBE = 10, 23, 3
"""ip(7), ipv6(7), linux/in.h: DF is set, and what the kernel believes of the path is ignored."""
IP_BIND_ADDRESS_NO_PORT = 24
"""ip(7): an address is bound and no port reserved, which every connection would take away from the others."""
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""IP and UDP headers, bytes."""
_LADDER = (9000, 8192, 4096, 2048, 1500, 1492, 1476, 1450, 1400, 1300, 1280, 1000, 576)
"""IP packet sizes that are tried where the largest does not come through; 576 is one that every host takes."""
_AGAIN = (0.0, 0.15, 0.4)
"""Seconds after which datagrams that were not answered are sent (again)."""
_MOST_PATIENT = 6.0
"""Times `silence` that a busy host is waited for at most."""
SILENT, STALLED, WRONG_HOST, NO_ROOM = "SILENT", "STALLED", "WRONGHOST", "NEIGHBOURSFULL"
"""Answers beside errno's names: connected and not greeted, bytes that nobody acknowledges, another host's number, no
room in the kernel's neighbour table for the address."""


def probe(request: Dict[str, Any]) -> Dict[str, Any]:
    """Tries all targets at once: host -> `ports` (port -> "" or why not), `push` and `mtu` where they were asked for.

    `silence`: seconds without progress after which a connection counts as silent. Where a process at the other end must
    answer, it is that many times longer as processes want each CPU here: busy hosts answer late.
    """
    secret = bytes.fromhex(request["secret"])
    selector = selectors.DefaultSelector()
    calls: List[Union[_Call, _Sounding]] = []
    results: Dict[str, Any] = {}
    reached: Set[int] = set()
    for target in request["targets"]:
        results[str(target["host"])] = {"ports": {}}
        for number, port in enumerate(target["ports"]):
            push = target["push"] if number == 0 else 0
            calls.append(_Call(target, port, secret, request["source"], push, reached))
        if target["mtu"]:
            calls.append(_Sounding(target, secret, request["source"], reached))
    full = overflows()
    for call in calls:
        call.begin(selector)
    waiting = {call for call in calls if not call.over}
    patient = request["silence"] * min(_MOST_PATIENT, max(1.0, (_runnable() or 0) / (os.cpu_count() or 1)))
    while waiting:
        for key, _ in selector.select(0.02):
            key.data.ready(selector)
        now = time.monotonic()
        for call in waiting:
            call.look(now, request["silence"], patient, selector)
        waiting = {call for call in waiting if not call.over}
    neighbours = _neighbours()
    overflown = overflows() > full
    for call in calls:
        call.tell(results[str(call.target["host"])], neighbours, overflown)
    return results


def _name(code: int) -> str:
    return errno.errorcode.get(code, os.strerror(code))


def _bound(kind: socket.SocketKind, source: str) -> socket.socket:
    sock = socket.socket(family_of(source), kind)
    sock.setblocking(False)
    if kind == socket.SOCK_STREAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):  # kernels before 4.2
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((source, 0))
    return sock


class _Call:
    """One connection to one port: knock, or push bytes. A host that takes it is `reached`."""

    def __init__(
        self, target: Dict[str, Any], port: int, secret: bytes, source: str, push: int, reached: Set[int]
    ) -> None:
        self.target, self.over = target, False
        self._reached = reached
        self._port, self._source, self._size = port, source, push
        self._head = HEAD.pack(secret, PUSH if push else KNOCK, push)
        self._left = push
        self._answer = ""
        self._push: Optional[List[Any]] = None
        self._connected = self._greeted = False
        self._sock: Optional[socket.socket] = None
        self._began = self._last = time.monotonic()

    def begin(self, selector: selectors.BaseSelector) -> None:
        try:
            self._sock = _bound(socket.SOCK_STREAM, self._source)
            code = self._sock.connect_ex((self.target["address"], self._port))
        except OSError as error:
            code = error.errno or errno.EINVAL
        if code in (0, errno.EINPROGRESS) and self._sock:
            selector.register(self._sock, selectors.EVENT_WRITE, self)
        else:
            self._end(_name(code), selector)

    def ready(self, selector: selectors.BaseSelector) -> None:
        assert self._sock
        self._last = time.monotonic()
        try:
            if not self._connected:
                code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._end(_name(code), selector)
                    return
                self._connected = True
                self._reached.add(self.target["host"])
                self._sock.send(self._head)
                selector.modify(self._sock, selectors.EVENT_READ, self)
            elif not self._greeted:
                self._greet(self._sock.recv(WHO.size), selector)
            elif self._left > 0:
                self._left -= self._sock.send(bytes(min(self._left, 1 << 16)))
                if self._left <= 0:
                    selector.modify(self._sock, selectors.EVENT_READ, self)
            else:
                done = self._sock.recv(1) == DONE
                self._push = ["" if done else STALLED, time.monotonic() - self._began]
                self._end("", selector)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(_name(error.errno or errno.EIO), selector)

    def _greet(self, who: bytes, selector: selectors.BaseSelector) -> None:
        if len(who) < WHO.size or WHO.unpack(who)[0] != self.target["host"]:
            self._end(WRONG_HOST, selector)
            return
        self._greeted = True
        self._began = time.monotonic()
        if self._size and self._sock:
            selector.modify(self._sock, selectors.EVENT_WRITE, self)
        else:
            self._end("", selector)

    def look(self, now: float, silence: float, patient: float, selector: selectors.BaseSelector) -> None:
        if not self.over and now - self._last > (patient if self._connected else silence):
            self._fail("ETIMEDOUT" if not self._connected else STALLED if self._greeted else SILENT, selector)

    def _fail(self, answer: str, selector: selectors.BaseSelector) -> None:
        """A push that fails leaves a port that was reached."""
        if self._greeted:
            self._push, answer = [answer, time.monotonic() - self._began], ""
        self._end(answer, selector)

    def _end(self, answer: str, selector: selectors.BaseSelector) -> None:
        self._answer, self.over = answer, True
        if self._sock:
            if self._sock in selector.get_map():
                selector.unregister(self._sock)
            self._sock.close()

    def tell(self, result: Dict[str, Any], neighbours: Dict[str, bool], overflown: bool) -> None:
        answer = self._answer
        if answer == "ETIMEDOUT" and neighbours.get(self.target["address"]) is False:
            answer = "EHOSTUNREACH"  # the kernel still asks who has the address; in a second it would say so itself
        elif answer == "ETIMEDOUT" and overflown and self.target["address"] not in neighbours:
            answer = NO_ROOM  # the kernel lets the packet fall without a word (neighbour.c: ENOBUFS)
        result["ports"][str(self._port)] = answer
        if self._push:
            result["push"] = self._push


class _Sounding:
    """The largest packet that reaches the target whole. Its process gets time to answer only where its kernel took a
    connection: a host that is not there has no path to be measured."""

    def __init__(self, target: Dict[str, Any], secret: bytes, source: str, reached: Set[int]) -> None:
        self.target, self.over = target, False
        self._reached = reached
        self._secret, self._source = secret, source
        self._headers = _HEADERS[family_of(source)]
        wanted = target["mtu"]
        self._sizes = [wanted, *(size for size in _LADDER if size < wanted)]
        self._arrived: Dict[int, bool] = {}
        self._trouble = ""
        self._tries = 0
        self._sock: Optional[socket.socket] = None
        self._began = time.monotonic()

    def begin(self, selector: selectors.BaseSelector) -> None:
        try:
            self._sock = _bound(socket.SOCK_DGRAM, self._source)
            if self._sock.family == socket.AF_INET6:
                self._sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            else:
                self._sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
            self._sock.connect((self.target["address"], self.target["udp"]))
        except OSError as error:
            self._trouble, self.over = _name(error.errno or errno.EINVAL), True
            return
        selector.register(self._sock, selectors.EVENT_READ, self)
        self._send()

    def _send(self) -> None:
        """First the largest and the smallest; then all between that may still be the answer."""
        assert self._sock
        sizes = self._sizes if self._tries else [self._sizes[0], self._sizes[-1]]
        self._tries += 1
        for size in sizes:
            if size <= max(self._arrived, default=0):
                continue
            head = DATAGRAM.pack(self._secret, size, 0)
            try:
                self._sock.send(head + bytes(max(0, size - self._headers - len(head))))
            except OSError as error:
                if size == self._sizes[0]:
                    self._trouble = _name(error.errno or errno.EIO)

    def ready(self, selector: selectors.BaseSelector) -> None:
        assert self._sock
        try:
            data = self._sock.recv(64)
        except OSError as error:
            self._trouble = _name(error.errno or errno.EIO)
            return
        if len(data) == DATAGRAM.size and data[:16] == self._secret:
            self._arrived[DATAGRAM.unpack(data)[1]] = True
            if self._sizes[0] in self._arrived:
                self._end(selector)

    def look(self, now: float, silence: float, patient: float, selector: selectors.BaseSelector) -> None:
        if self.over:
            return
        passed = now - self._began
        if self._tries < len(_AGAIN) and passed > _AGAIN[self._tries]:
            self._send()
        elif passed > (patient if self.target["host"] in self._reached else silence):
            self._end(selector)

    def _end(self, selector: selectors.BaseSelector) -> None:
        assert self._sock
        self.over = True
        selector.unregister(self._sock)
        self._sock.close()

    def tell(self, result: Dict[str, Any], neighbours: Dict[str, bool], overflown: bool) -> None:
        arrived = max(self._arrived, default=0)
        result["mtu"] = [self._sizes[0], arrived, "" if arrived == self._sizes[0] else self._trouble]


def _neighbours() -> Dict[str, bool]:
    """IPv4 addresses on the wire -> whether somebody has answered for it (/proc/net/arp: flags 0 where nobody has)."""
    try:
        with open("/proc/net/arp") as file:
            rows = [line.split() for line in list(file)[1:]]
    except OSError:
        return {}
    return {row[0]: row[2] != "0x0" for row in rows if len(row) > 2}


def overflows(path: str = "/proc/net/stat/arp_cache") -> int:
    """How often the kernel's IPv4 neighbour table had no room since boot (`neighbour table overflow`), of all CPUs; 0
    where that is not told, as in a network namespace other than the first, or before Linux 4.4."""
    try:
        with open(path) as file:
            head, *rows = [line.split() for line in file]
        at = head.index("table_fulls")
        return sum(int(row[at], 16) for row in rows)
    except (OSError, ValueError, IndexError):
        return 0


def sound(request: Dict[str, Any]) -> int:
    """The largest IP packet, up to `mtu`, that a host is seen to take without any help of its own: its kernel refuses
    a datagram to a port where nobody listens (ICMP port unreachable). 0 where it never does.
    """
    address = request["address"]
    family = family_of(address)
    for size in [request["mtu"], *(size for size in _LADDER if size < request["mtu"])]:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            else:
                sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
            sock.settimeout(0.25)
            try:
                sock.connect((address, 33434 + random.randrange(1000)))
                sock.send(bytes(size - _HEADERS[family]))
                sock.recv(1)
            except ConnectionRefusedError:
                return int(size)
            except OSError:  # too large for the own interface, or silence
                continue
    return 0


# -- one pair at a time ---------------------------------------------------------------------------------------------


def _connect(request: Dict[str, Any], wanted: bytes) -> socket.socket:
    """Connected, greeted by the right host. Raises OSError."""
    sock = _bound(socket.SOCK_STREAM, request["source"])
    sock.settimeout(request["silence"])
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect((request["address"], request["port"]))
    sock.sendall(HEAD.pack(bytes.fromhex(request["secret"]), wanted, 0))
    if sock.recv(WHO.size, socket.MSG_WAITALL) != WHO.pack(request["host"]):
        raise OSError(errno.EPROTO, "another host answers")
    return sock


def latency(request: Dict[str, Any]) -> Dict[str, Any]:
    """Round trips of 8 bytes, in microseconds: 10th percentile, median and 99th of up to `count` within `seconds`.

    `runnable` (None where it cannot be read) and `cpus` tell how busy this host was meanwhile, besides this process
    itself.
    """
    before = _runnable()
    with _connect(request, ECHO) as sock:
        for _ in range(request["count"] // 4):
            sock.send(b"12345678")
            sock.recv(8)
        times: List[float] = []
        end = time.perf_counter() + request["seconds"]
        while len(times) < request["count"]:
            begun = time.perf_counter()
            sock.send(b"12345678")
            if len(sock.recv(8)) < 8:
                raise OSError(errno.EPROTO, "an answer in parts")
            now = time.perf_counter()
            times.append(now - begun)
            if now > end:
                break
    times.sort()
    low, half, high = (round(1e6 * times[int(share * (len(times) - 1))], 1) for share in (0.1, 0.5, 0.99))
    return {"p10": low, "p50": half, "p99": high, "samples": len(times),
            "runnable": None if before is None else max(before, _runnable() or 0),
            "cpus": os.cpu_count() or 1}  # fmt: skip


def _runnable() -> Optional[int]:
    """Processes of this host that run or want to, without this one (/proc/loadavg); None where that cannot be read."""
    try:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[0]) - 1
    except OSError:
        return None


def bandwidth(request: Dict[str, Any]) -> Dict[str, Any]:
    """Bytes that arrived over one connection in about `seconds`, and how long that really took."""
    block = bytes(1 << 20)
    with _connect(request, SINK) as sock:
        begun = time.perf_counter()
        while time.perf_counter() - begun < request["seconds"]:
            sock.sendall(block)
        sock.shutdown(socket.SHUT_WR)
        count = COUNT.unpack(sock.recv(COUNT.size, socket.MSG_WAITALL))[0]
        return {"bytes": count, "seconds": time.perf_counter() - begun}


def or_why_not(work: Callable[[Dict[str, Any]], Dict[str, Any]], request: Dict[str, Any]) -> Dict[str, Any]:
    """What `latency` or `bandwidth` gives, or `error` with the error's name."""
    try:
        return work(request)
    except socket.timeout:
        return {"error": "ETIMEDOUT"}
    except OSError as error:
        return {"error": _name(error.errno or errno.EIO)}
