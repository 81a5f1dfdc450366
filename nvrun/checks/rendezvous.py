"""Connections that were tried between hosts: from errno and pattern to the one host at fault and the cause.

`ETIMEDOUT` stands for silence. A refusal says something only where the listener is known to be up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nvrun.checks.code import FATAL, Code, declare
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding

_READ = "a TCP connection from each host to the other's listener, which an agent watches; errno and time"
_WHY = "torchrun waits for the missing nodes until its rendezvous times out (600 s), then fails everywhere"

DROPPED = declare(
    "port-dropped",
    FATAL,
    "packets to a port vanish: a firewall drops them",
    read=_READ,
    why=_WHY,
    remedy="open the port between the hosts: firewall-cmd --add-port=PORT/tcp, ufw allow PORT/tcp, the cloud's security"
    " group; or --port-range to one that is open",
    source="connect(2): ETIMEDOUT; nft(8): drop",
)
REJECTED = declare(
    "port-rejected",
    FATAL,
    "a firewall rejects connections to a port",
    read=_READ,
    why=_WHY,
    remedy="open the port between the hosts: firewall-cmd --add-port=PORT/tcp, ufw allow PORT/tcp; or --port-range to"
    " one that is open",
    source="connect(2): ECONNREFUSED while the listener is up; nft(8): reject",
)
NO_ROUTE = declare(
    "no-route",
    FATAL,
    "no route leads to the other host",
    read=_READ,
    why=_WHY,
    remedy="ip route get ADDRESS on the host named: wrong subnet, VLAN or gateway; or the address is nobody's",
    source="connect(2): EHOSTUNREACH, ENETUNREACH",
)
NOBODY = declare(
    "port-nobody",
    FATAL,
    "nothing listens on the rendezvous port",
    read=f"{_READ}; /proc/net/tcp of the rendezvous host",
    why=_WHY,
    remedy="look at torchrun's own lines of the rendezvous host: it did not come up, or listens on another address",
    source="connect(2): ECONNREFUSED while no listener is up",
)
FAILED = declare(
    "connection-fails",
    FATAL,
    "a connection between two hosts fails",
    read=_READ,
    why=_WHY,
    remedy="try it by hand: python3 -c 'import socket; socket.create_connection((ADDRESS, PORT))'",
    source="connect(2)",
)

_CAUSE = {
    "ETIMEDOUT": (DROPPED, "no answer: a firewall drops the packets"),
    "ECONNREFUSED": (REJECTED, "refused although the listener is up: a firewall rejects it"),
    "EPERM": (REJECTED, "forbidden by the sending host's own firewall"),
    "EACCES": (REJECTED, "forbidden by the sending host's own firewall"),
    "EHOSTUNREACH": (NO_ROUTE, "no route to host: no such neighbour, or a firewall that rejects as unreachable"),
    "ENETUNREACH": (NO_ROUTE, "network unreachable: no route there"),
    "EADDRNOTAVAIL": (NO_ROUTE, "the source address is not there, or its ports are used up"),
}


def rendezvous(
    results: Mapping[str, str], *, server: str, address: str, port: int, listening: bool | None
) -> list[Finding]:
    """What connecting from each host to the rendezvous says.

    `results`: connecting host -> "" or errno's name. `listening`: whether the server's own kernel shows a listener;
    None = not known, and then a refusal is told as either.
    """
    edges = {(source, server): answer for source, answer in results.items() if source != server}
    return list(_blame(edges, {server: (f"{address}:{port}", listening)}, port))


def mesh(
    results: Mapping[tuple[str, str], str], *, targets: Mapping[str, str], port: int | None = None
) -> list[Finding]:
    """What connecting between all hosts says; `targets`: host -> `address:port` of its listener, known to be up."""
    edges = {(source, target): answer for (source, target), answer in results.items() if source != target}
    return list(_blame(edges, {host: (where, True) for host, where in targets.items()}, port))


def _blame(
    edges: Mapping[tuple[str, str], str], targets: Mapping[str, tuple[str, bool | None]], port: int | None
) -> Iterator[Finding]:
    """One finding for a host whose connections of one direction all fail alike; pairs only for what is left."""
    left = {pair: answer for pair, answer in edges.items() if answer}
    for target in dict.fromkeys(target for _, target in edges):
        arriving = {source: answer for (source, to), answer in edges.items() if to == target}
        if len(arriving) > 1 and all((source, target) in left for source in arriving) and _alike(arriving.values()):
            yield _finding(next(iter(arriving.values())), targets[target], port, target, "is reached by no other host")
            left = {pair: answer for pair, answer in left.items() if pair[1] != target}
    for source in dict.fromkeys(source for source, _ in edges):
        leaving = {to: answer for (who, to), answer in edges.items() if who == source}
        others = {who for who, to in edges if who != source and to in leaving}
        failed = {to: answer for to, answer in leaving.items() if (source, to) in left}
        if others and failed and len(failed) == len(leaving) and _alike(failed.values()):
            reached = next(iter(failed)) if len(failed) == 1 else "any other host"
            where = targets[next(iter(failed))] if len(failed) == 1 else ("", True)
            yield _finding(next(iter(failed.values())), where, port, source, f"cannot reach {reached}")
            left = {pair: answer for pair, answer in left.items() if pair[0] != source}
    pairs: dict[tuple[str, str], list[str]] = {}
    for (source, target), answer in left.items():
        pairs.setdefault((target, answer), []).append(source)
    for (target, answer), sources in pairs.items():
        yield _finding(answer, targets[target], port, None, f"{fold(sources)} cannot reach {target}")


def _alike(answers: Iterable[str]) -> bool:
    return len(set(answers)) == 1


def _finding(answer: str, where: tuple[str, bool | None], port: int | None, host: str | None, what: str) -> Finding:
    target, listening = where
    code, cause = _cause(answer, listening)
    return code.found(
        f"{what}{' at ' + target if target else ''}: {cause}",
        host=host,
        subject=f"port {port}" if port else target,
        observed=answer,
        remedy=code.remedy.replace("PORT", str(port)) if port else None,
    )


def _cause(answer: str, listening: bool | None) -> tuple[Code, str]:
    if answer == "ECONNREFUSED" and listening is False:
        return NOBODY, "refused: nothing listens there"
    if answer == "ECONNREFUSED" and listening is None:
        return REJECTED, "refused: a firewall rejects it, or nothing listens there"
    return _CAUSE.get(answer, (FAILED, answer))
