"""Connections that were tried between hosts: from errno and pattern to the one host at fault and the cause.

`ETIMEDOUT` stands for silence. A refusal says something only where the listener is known to be up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nvrun.checks.blame import Blame, Edge, blame, most_telling
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
WRONG_HOST = declare(
    "address-answered-by-other",
    FATAL,
    "another machine answers at a host's address",
    read="the number that the agent behind the address gives",
    why="ranks would connect to a machine that is not in the job, or to another one of it",
    remedy="ip neigh show ADDRESS on the other hosts: two machines have the address, or a proxy stands before it",
    source="RFC 5227",
)
_CAUSE = {
    "ETIMEDOUT": (DROPPED, "no answer: a firewall drops the packets"),
    "ECONNREFUSED": (REJECTED, "refused although the listener is up: a firewall rejects it"),
    "EPERM": (REJECTED, "forbidden by the sending host's own firewall"),
    "EACCES": (REJECTED, "forbidden by the sending host's own firewall"),
    "EHOSTUNREACH": (NO_ROUTE, "no route to host: no such neighbour, or a firewall that rejects as unreachable"),
    "ENETUNREACH": (NO_ROUTE, "network unreachable: no route there"),
    "WRONGHOST": (WRONG_HOST, "another machine answers there"),
    "ROUTED": (NO_ROUTE, "no answer from another subnet: no gateway leads there, or a firewall on the way drops it"),
    "SILENT": (FAILED, "connected, but nothing comes: the host is overloaded, or a proxy or firewall stands between"),
    "ECONNRESET": (FAILED, "connected, then reset: a proxy or firewall stands between"),
    "EADDRNOTAVAIL": (NO_ROUTE, "the source address is not there, or its ports are used up"),
}


def by_subnet(answer: str, source: str | None, target: str | None) -> str:
    """Silence from a host of another subnet has causes of its own; subnets are None or "" where they are not known."""
    return "ROUTED" if answer == "ETIMEDOUT" and source and target and source != target else answer


def rendezvous(
    results: Mapping[str, str], *, server: str, address: str, port: int, listening: bool | None
) -> list[Finding]:
    """What connecting from each host to the rendezvous says.

    `results`: connecting host -> "" or errno's name. `listening`: whether the server's own kernel shows a listener;
    None = not known, and then a refusal is told as either.
    """
    edges = {(source, server): answer for source, answer in results.items() if source != server}
    where = {server: f"{address}:{port}"}
    return [
        _finding(each, where, listening, subject=f"port {port}", port=str(port), remedy=None) for each in blame(edges)
    ]


def closed_everywhere(answers: Iterable[str], *, hosts: Sequence[str], port: int) -> Finding:
    """Of `hosts` each was tried as the one that listens, and reached by no other: none of them is at fault, and no
    further one would fare better."""
    code, cause = _cause(most_telling(answers), True)
    return code.found(
        f"no host reaches port {port} of another, tried on {' and '.join(hosts)}: {cause}",
        subject=f"port {port}",
        observed=most_telling(answers),
        remedy=code.remedy.replace("PORT", str(port)),
    )


def mesh(results: Mapping[Edge, str], *, targets: Mapping[str, str], ports: str) -> list[Finding]:
    """What connecting between all hosts says; `targets`: host -> where its listeners are, known to be up.

    `ports`: what they all lie in, `32768-60999`.
    """
    edges = {(source, target): answer for (source, target), answer in results.items() if source != target}
    remedy = _OPEN_RANGE.replace("PORTS", ports)
    return [_finding(each, targets, True, subject=f"ports {ports}", port=ports, remedy=remedy) for each in blame(edges)]


_OPEN_RANGE = (
    "open ports PORTS, on which NCCL, Gloo and torch listen, between the hosts: firewall-cmd --add-port=PORTS/tcp,"
    " ufw allow PORTS/tcp, the cloud's security group"
)


def _finding(
    found: Blame, where: Mapping[str, str], listening: bool | None, *, subject: str, port: str, remedy: str | None
) -> Finding:
    code, cause = _cause(found.answer, listening)
    target = found.targets[0]
    at = f" at {where[target]}" if target in where else ""
    what = {
        "both": "no connection to it or from it",
        "in": f"is reached by no other host{at}",
        "out": f"cannot reach {target}{at}" if len(found.edges) == 1 else "cannot reach any other host",
        "pair": _pair(found, at),
        "all": "no host reaches any other",
    }[found.kind]
    if remedy is None or code not in (DROPPED, REJECTED):
        remedy = code.remedy.replace("PORT", port)
    # A refusal comes from the host that is asked; silence may be anybody's.
    host = target if found.kind == "pair" and found.answer == "ECONNREFUSED" else found.host
    return code.found(
        f"{what}: {cause}",
        host=host,
        subject=subject,
        observed=found.answer,
        remedy=remedy,
        between=() if host else found.between,
    )


def _pair(found: Blame, at: str) -> str:
    if len(found.targets) == 2:
        return f"{found.sources[0]} and {found.sources[1]} cannot reach each other"
    return f"{fold(found.sources)} cannot reach {found.targets[0]}{at}"


def _cause(answer: str, listening: bool | None) -> tuple[Code, str]:
    if answer == "ECONNREFUSED" and listening is False:
        return NOBODY, "refused: nothing listens there"
    if answer == "ECONNREFUSED" and listening is None:
        return REJECTED, "refused: a firewall rejects it, or nothing listens there"
    return _CAUSE.get(answer, (FAILED, answer))
