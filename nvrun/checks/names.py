"""Names as the hosts themselves resolve them: their own, localhost, and their peers'."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.checks.busy import excused
from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, INFO, WARNING, declare, unread
from nvrun.checks.compare import listed
from nvrun.checks.job import Job
from nvrun.endpoint import is_loopback
from nvrun.facts import HostFacts, Names, Network
from nvrun.model import Skipped
from nvrun.topology.interface import ip_address

_LABEL = 63
"""Letters between two dots of a name (RFC 1035, 2.3.4); Linux allows 64 in a hostname (hostname(7))."""
_READ = "getaddrinfo on the host, as torchrun, Gloo and NCCL call it"

LOOPBACK = declare(
    "own-name-loopback",
    ERROR,
    "the host's own name resolves to a loopback address",
    read=_READ,
    why="Gloo and the c10d rendezvous bind to their own name's address: peers are told 127.0.x.1 and get no answer",
    remedy="take NAME out of the 127.0.x.1 line of /etc/hosts there, or map it to the host's real address",
    source="https://github.com/pytorch/pytorch/issues/150532; Debian reference, 5.1.1: 127.0.1.1",
    depends="judged for a job over several hosts only",
)
MALFORMED = declare(
    "own-name-malformed",
    ERROR,
    "the host's own name is none that can be looked up",
    read="hostname(1) there",
    why="a label of more than 63 letters, or an empty one: Python looks no such name up, and torchrun ends with"
    " `UnicodeError: label too long` before any rank starts",
    remedy="hostnamectl set-hostname NAME there, or a shorter --hostname of the container: labels of 1 to 63 letters",
    source="RFC 1035, 2.3.4; Python, encodings.idna, by way of socket.getfqdn",
)
NOWHERE = declare(
    "own-name-unknown",
    ERROR,
    "the host cannot resolve its own name",
    read=_READ,
    why="Gloo falls back to loopback or fails, socket.getfqdn stalls for the resolver's timeout at every start",
    remedy="add the name with the host's real address to /etc/hosts there, or to DNS",
    source="https://github.com/pytorch/pytorch/issues/73656",
    depends="judged for a job over several hosts only",
)
FOREIGN = declare(
    "own-name-foreign",
    ERROR,
    "the host's own name resolves to an address that it does not have",
    read=f"{_READ}, against the addresses of its interfaces",
    why="binding to that address fails with `Cannot assign requested address`",
    remedy="correct the name's entry in /etc/hosts there or in DNS (a stale lease?)",
    source="bind(2): EADDRNOTAVAIL",
    depends="judged for a job over several hosts only",
)
LOCALHOST = declare(
    "localhost-broken",
    ERROR,
    "localhost does not resolve to a loopback address",
    read=_READ,
    why="torchrun's own store and many libraries connect to localhost",
    remedy="put '127.0.0.1 localhost' into /etc/hosts there",
    source="RFC 6761, 6.3",
)
PEER_UNKNOWN = declare(
    "peer-name-unknown",
    ERROR,
    "a host cannot resolve the name of another",
    read=_READ,
    why="nvrun hands out addresses, but programs that use the node list or a hostname as MASTER_ADDR fail there",
    remedy="add the name to /etc/hosts there or to DNS; or list the hosts by address",
    source="https://github.com/pytorch/pytorch/issues/69197",
    depends="information where no host knows the name (an alias of ssh_config)",
)
PEER_LOOPBACK = declare(
    "peer-name-loopback",
    ERROR,
    "the name of another host resolves to this host itself",
    read=_READ,
    why="whoever connects by that name talks to itself",
    remedy="correct the name's line in /etc/hosts there",
    source="hosts(5)",
)
PEER_WRONG = declare(
    "peer-name-wrong",
    ERROR,
    "the name of another host resolves to an address that it does not have",
    read=f"{_READ}, against the addresses of the other host's interfaces",
    why="whoever connects by that name reaches another machine or none",
    remedy="correct the name's entry in /etc/hosts there or in DNS",
    source="https://github.com/pytorch/pytorch/issues/105782",
    depends="error where other hosts resolve it rightly; warning where none does (address translation?)",
)


ENDPOINT_UNKNOWN = declare(
    "endpoint-unknown",
    WARNING,
    "the name of the rendezvous endpoint has no address on this node",
    read=_READ,
    why="torchrun asks for the name again and again, and gives up after minutes",
    remedy="getent hosts NAME there; add it to DNS or /etc/hosts, or give a numeric address",
    source="torch/distributed/elastic/rendezvous: TCPStore's timeout, 900 s (static), 60 s (c10d)",
    depends="a warning only: a pod's name may be known once that pod is up",
)
ENDPOINT_LOOPBACK = declare(
    "endpoint-loopback",
    WARNING,
    "several nodes are to meet at an address that is this host alone",
    read="--master-addr, --rdzv-endpoint and their variables, or torchrun's default, 127.0.0.1",
    why="each host waits there for the others, until torchrun gives up after minutes",
    remedy="--master-addr HOST, alike on all nodes, and each its --node-rank; or --hosts LIST once, without them",
    source="torchrun --help: --master-addr",
    depends="a warning only: nodes may all be on one host",
)


@check(MALFORMED, LOOPBACK, NOWHERE)
def own_name(names: Names, facts: HostFacts, job: Job) -> Results:
    """The host's own name can be looked up, and resolves to an address that peers can use."""
    labels = names.hostname.removesuffix(".").split(".")
    if names.hostname and not all(0 < len(label) <= _LABEL for label in labels):
        yield MALFORMED.found(
            f"its own name {names.hostname} cannot be looked up: a label of {max(map(len, labels))} letters"
            if all(labels)
            else f"its own name {names.hostname} cannot be looked up: an empty label",
            subject=names.hostname,
        )
        return
    if len(job.hosts) < 2:
        return
    if excuse := excused(names.resolve_error, facts):
        yield unread(excuse)
        return
    if not names.resolves_to:
        yield NOWHERE.found(f"its own name {names.hostname} has no address: {names.resolve_error or 'unknown'}")
    elif all(is_loopback(address) for address in names.resolves_to):
        addresses = listed(names.resolves_to)
        yield LOOPBACK.found(
            f"its own name {names.hostname} resolves to {addresses}",
            subject=names.hostname,
            observed=addresses,
            remedy=LOOPBACK.remedy.replace("NAME", names.hostname),
        )


@check(FOREIGN)
def own_name_here(names: Names, network: Network, job: Job) -> Results:
    """The host has the address that its own name resolves to."""
    own = {address.address for interface in network.interfaces for address in interface.addresses}
    there = [address for address in names.resolves_to if not is_loopback(address)]
    if len(job.hosts) > 1 and own and there and not own & set(there):
        yield FOREIGN.found(
            f"its own name {names.hostname} resolves to {listed(there)}, which is not an address of this host",
            subject=names.hostname,
            observed=listed(there),
        )


@check(LOCALHOST)
def localhost(names: Names) -> Results:
    """localhost is a loopback address."""
    if names.localhost_ok is None:
        yield unread("localhost: the resolver did not answer in time")
    elif not names.localhost_ok:
        yield LOCALHOST.found("localhost does not resolve to 127.0.0.1 or ::1")


@check(ENDPOINT_UNKNOWN, ENDPOINT_LOOPBACK)
def endpoint_known(names: Names, facts: HostFacts, job: Job) -> Results:
    """The rendezvous endpoint has an address here, and one that other nodes can use."""
    where = job.endpoint
    if where is None or not (where.listens or where.nodes > 1):
        return
    flag = "MASTER_ADDR" if where.flag == "nvrun" else where.flag
    said = flag or "neither --master-addr nor --rdzv-endpoint is given"
    if where.nodes > 1 and where.is_loopback:
        yield ENDPOINT_LOOPBACK.found(
            f"{where.nodes} nodes are to meet at {where.host} ({said}), where only this host is", subject=where.host
        )
    elif where.is_name and not names.peers.get(where.host):
        reason = names.peer_errors.get(where.host)
        if excuse := excused(reason, facts):
            yield unread(excuse)
        else:
            yield ENDPOINT_UNKNOWN.found(
                f"{flag} {where.host} has no address: {reason or 'unknown'}",
                subject=where.host,
                remedy=ENDPOINT_UNKNOWN.remedy.replace("NAME", where.host),
            )


@fleet_check(PEER_UNKNOWN, PEER_LOOPBACK, PEER_WRONG)
def peer_names(names: Mapping[str, Names], fleet: Mapping[str, HostFacts]) -> Results:
    """Every host resolves every other host's name to an address of that host."""
    addresses = {host: _addresses(facts.network) for host, facts in fleet.items()}
    numeric = {peer for peer in {peer for known in names.values() for peer in known.peers} if ip_address(peer)}
    right: set[str] = set()
    bad: dict[tuple[str, str], list[str]] = {}
    for host, known in names.items():  # a thousand hosts have a million pairs: the usual case must be quick
        for peer, found in known.peers.items():
            there = addresses.get(peer)
            if there and not there.isdisjoint(found):
                right.add(peer)
            elif peer != host and peer not in numeric:
                verdict = _wrong(found, bool(there))
                if verdict:
                    bad.setdefault((host, verdict), []).append(peer)
                else:
                    right.add(peer)
    for (host, verdict), peers in bad.items():
        if verdict == "unknown":
            real = [peer for peer in peers if peer in right or (peer in fleet and peer in _own_names(fleet[peer]))]
            reasons = names[host].peer_errors
            excuses = [excused(reasons.get(peer), fleet[host]) for peer in peers]
            if all(excuses):
                yield Skipped(code="", host=host, reason=excuses[0])
            elif real:
                yield PEER_UNKNOWN.found(
                    f"cannot resolve {listed(real)}: {reasons.get(real[0], 'no address')}",
                    host=host,
                    subject=listed(real),
                )
            elif peers:
                yield PEER_UNKNOWN.found(
                    f"knows no host {listed(peers)}: an alias of ssh?", host=host, severity=INFO, subject=listed(peers)
                )
        elif verdict == "loopback":
            yield PEER_LOOPBACK.found(
                f"resolves {listed(peers)} to a loopback address", host=host, subject=listed(peers)
            )
        else:
            wrong = [f"{peer} to {listed(names[host].peers[peer])}" for peer in peers]
            yield PEER_WRONG.found(
                f"resolves {listed(wrong, 3)}, which is no address of that host",
                host=host,
                severity=ERROR if right & set(peers) else WARNING,
                subject=listed(peers),
            )


def _wrong(found: tuple[str, ...], known: bool) -> str:
    """What is wrong with addresses that are not among the peer's; empty where the peer's own are not known."""
    if not found:
        return "unknown"
    if all(is_loopback(address) for address in found):
        return "loopback"
    return "wrong" if known else ""


def _addresses(network: Network | None) -> set[str]:
    """Without loopback ones, which every host has."""
    interfaces = network.interfaces if network else ()
    own = {address.address for interface in interfaces for address in interface.addresses}
    return {address for address in own if not is_loopback(address)}


def _own_names(facts: HostFacts) -> set[str]:
    names = facts.names
    return {names.hostname, names.hostname.partition(".")[0], names.fqdn or ""} if names else set()
