"""What hosts measured between each other: ports, bytes pushed, path MTU, latency, bandwidth. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from nvrun.checks import rendezvous
from nvrun.checks.blame import Blame, Edge, blame, most_telling, usual
from nvrun.checks.code import ERROR, FATAL, WARNING, declare
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding, Frozen

BARE_METAL_US = 50.0
"""Median round trip, in microseconds, above which operators of bare-metal clusters look for a fault."""
_EXCESS_US = 50.0
"""By how much a pair's quick round trips must exceed the others' to be named. Less may be a longer cable, one switch
more, or the cores on which both ends happen to run: 27 µs were seen between healthy hosts of one machine."""
_OWN = "EMSGSIZE"
"""The sender's own kernel refuses the size (ip(7))."""
_FULL = "NEIGHBOURSFULL"
"""The kernel had no room for the address of the other host (nvrun/agent/netprobe.py)."""
_SINGLE_STREAM_GBPS = 10.0
"""What one TCP connection surely fills; of a faster interface no more than this is asked."""

STALLS = declare(
    "connection-stalls",
    FATAL,
    "a connection opens, but the bytes of it do not arrive",
    read="256 KiB pushed over a connection to the other host's agent, which acknowledges them",
    why="the rendezvous succeeds, and the first collective hangs until its watchdog ends the job (10 to 30 minutes)",
    remedy="equal MTU on hosts and switch ports (ip link set dev IFACE mtu N), ICMP `fragmentation needed` let through",
    source="RFC 2923, 2.1",
)
BLACK_HOLE = declare(
    "mtu-black-hole",
    ERROR,
    "large packets vanish on the way between hosts",
    read="UDP with DF set, from the interface's MTU downwards, echoed by the other host's agent",
    why="TCP through it hangs as soon as it sends full packets; RoCE and everything over UDP fails",
    remedy="raise the MTU of the switch port or tunnel on the way, or lower the hosts': ip link set dev IFACE mtu N",
    source="RFC 2923, 2.1; ip(7): IP_PMTUDISC_PROBE",
    depends="warning where TCP gets through all the same",
)
OUTLIER = declare(
    "latency-outlier",
    WARNING,
    "the latency to one host is much higher than between the others",
    read="the quickest tenth of 100 round trips of 8 bytes over TCP, which waited for no CPU; few pairs at a time",
    why="small collectives wait for the slowest host at every step",
    remedy="on that host: another route or interface than its peers (ip route get), C-states, interrupt coalescing"
    " (ethtool -c)",
    source="NVIDIA, Performance tuning for Mellanox adapters; cpupower-idle-set(1)",
)
HIGH = declare(
    "latency-high",
    ERROR,
    "the latency between hosts is higher than on bare metal",
    read="median of 100 round trips of 8 bytes over TCP, few pairs at a time",
    why="small collectives wait for it at every step",
    remedy="C-states (cpupower idle-set -D 10), interrupt coalescing (ethtool -C IFACE adaptive-rx off), a routed path",
    source="operators' practice on bare-metal clusters: 50 microseconds",
    depends="judged with --latency bare-metal only; not on hosts whose CPUs are all busy",
)
BANDWIDTH = declare(
    "bandwidth-low",
    WARNING,
    "a TCP connection between two hosts is much slower than the others, or than the interface",
    read="bytes that arrive over one connection in half a second",
    why="the slowest link sets the pace of every collective over sockets",
    remedy="ethtool IFACE (speed, errors), ethtool -S IFACE on both hosts; another route than the peers': ip route get",
    source="below half of what is usual between the hosts, or of the interface's rate up to 10 Gb/s",
    depends="with --check deep; not judged on hosts whose CPUs are all busy",
)

SILENT = declare(
    "host-falls-silent",
    FATAL,
    "a host was reached, and then nothing more was heard of it",
    read="heartbeats of its agent, and datagrams of several sizes that another host sends it",
    why="large packets that vanish on the way stop every connection; a host that hangs stops the job",
    remedy="look at its console (memory, disks); the MTU on the way to it: tracepath HOST",
    source="RFC 2923, 2.1; tracepath(8)",
)

NO_ROOM = declare(
    "neighbour-table-full",
    FATAL,
    "a host's neighbour table has no room for the other hosts",
    read="table_fulls of /proc/net/stat/arp_cache before and after connections that got no answer",
    why="the kernel lets packets fall without a word: connections to hosts that come late fail, others at random",
    remedy="sysctl -w net.ipv4.neigh.default.gc_thresh3=N on all hosts (and gc_thresh2), at least twice hosts x"
    " interfaces",
    source="arp(7): gc_thresh3",
    real=False,
)


class Tried(Frozen, frozen=True, kw_only=True):
    """What one host saw of another."""

    ports: Mapping[str, str] = {}
    """Port -> "" or why it was not reached."""
    push: tuple[str, float] | None = None
    """"" or how pushing bytes failed, and its seconds; None: not tried, or not connected."""
    mtu: tuple[int, int, str] | None = None
    """IP packet size that was to arrive, the largest that did (0: none), and errno's name of a refusal."""


class Latency(Frozen, frozen=True, kw_only=True):
    """Round trips of one pair, microseconds."""

    pair: Edge
    p10: float
    p50: float
    p99: float


class Rate(Frozen, frozen=True, kw_only=True):
    """One TCP connection of one pair."""

    pair: Edge
    gbps: float


def ports(
    tried: Mapping[Edge, Tried],
    addresses: Mapping[str, str],
    ephemeral: Mapping[str, tuple[int, int]],
    subnets: Mapping[str, str] = MappingProxyType({}),
) -> list[Finding]:
    """Ports of the ephemeral range that a host does not reach; a host is named once however many ports fail.

    Host -> its address, its ephemeral range, and its subnet where that is known.
    """
    edges: dict[Edge, str] = {}
    closed: dict[str, set[str]] = {}
    tested: dict[str, set[str]] = {}
    for edge, seen in tried.items():
        answers = [answer for answer in seen.ports.values() if answer]
        worst = most_telling(answers) if answers else ""
        edges[edge] = _answer(worst, subnets.get(edge[0]), subnets.get(edge[1]))
        closed.setdefault(edge[1], set()).update(port for port, answer in seen.ports.items() if answer)
        tested.setdefault(edge[1], set()).update(seen.ports)
    crowded = {source for (source, _), answer in edges.items() if answer == _FULL}
    told = {edge: answer for edge, answer in edges.items() if not _for_want_of_room(edge, answer, crowded)}
    where = {host: _where(addresses[host], closed[host], tested[host]) for host in tested}
    ranges = {ephemeral[host] for host in tested if host in ephemeral}
    low, high = min((low for low, _ in ranges), default=0), max((high for _, high in ranges), default=0)
    full = [_no_room(host, edges) for host in sorted(crowded)]
    return [*full, *rendezvous.mesh(told, targets=where, ports=f"{low}-{high}")]


def _answer(answer: str, source: str | None, target: str | None) -> str:
    """An address of another subnet is never in a neighbour table: that it is not there says nothing."""
    routed = source and target and source != target
    return rendezvous.by_subnet("ETIMEDOUT" if answer == _FULL and routed else answer, source, target)


def _for_want_of_room(edge: Edge, answer: str, crowded: Set[str]) -> bool:
    """What a crowded host should answer is lost like what it sends; so is what a gateway should take from it."""
    silent = answer == "ETIMEDOUT" and edge[1] in crowded
    return answer == _FULL or silent or (answer == "ROUTED" and not crowded.isdisjoint(edge))


def _no_room(host: str, edges: Mapping[Edge, str]) -> Finding:
    lost = [target for (source, target), answer in edges.items() if source == host and answer == _FULL]
    return NO_ROOM.found(f"its neighbour table overflows: no answer from {fold(lost)}", host=host)


def _where(address: str, closed: set[str], tested: set[str]) -> str:
    if closed == tested:
        return f"{address}, on any of its ports {', '.join(sorted(tested, key=int))}"
    return f"{address}, port {', '.join(sorted(closed, key=int))} (of {', '.join(sorted(tested, key=int))})"


def stalls(tried: Mapping[Edge, Tried]) -> Iterator[Finding]:
    """Connections through which bytes do not come."""
    edges = {edge: seen.push[0] for edge, seen in tried.items() if seen.push}
    for found in blame(edges):
        sizes = [seen.mtu[1] for edge in found.edges if (seen := tried[edge]).mtu and 0 < seen.mtu[1] < seen.mtu[0]]
        cause = f": packets over {max(sizes)} bytes vanish on the way" if sizes else ""
        yield STALLS.found(
            f"{_between(found, 'connections open, but 256 KiB do not arrive')}{cause}",
            host=found.host,
            subject="path",
            observed=found.answer,
            between=found.between,
        )


def fallen_silent(host: str, seconds: float, sounded: Mapping[str, tuple[int, int]]) -> Finding:
    """`sounded`: who sent datagrams to it -> the largest packet size tried, and the largest that the host was seen to
    take (0: none)."""
    holes = {who: arrived for who, (tried, arrived) in sounded.items() if 0 < arrived < tried}
    if holes:
        who, arrived = next(iter(holes.items()))
        cause = f"packets over {arrived} bytes vanish on the way to it (seen from {who})"
        return STALLS.found(f"it spoke, then nothing for {seconds:g} s: {cause}", host=host, subject="path")
    answers = any(arrived for _, arrived in sounded.values())
    cause = "its kernel answers, its processes do not" if answers else "it hangs, or its network does"
    return SILENT.found(f"it spoke, then nothing for {seconds:g} s: {cause}", host=host)


def path_mtu(tried: Mapping[Edge, Tried]) -> Iterator[Finding]:
    """Paths on which packets of the interfaces' own size are lost."""
    edges = {edge: _lost(seen) for edge, seen in tried.items() if seen.mtu and (seen.mtu[1] or seen.mtu[2] == _OWN)}
    for found in blame(edges):
        stalled = [edge for edge in found.edges if (push := tried[edge].push) and push[0]]
        if len(stalled) == len(found.edges):
            continue  # `stalls` says it, with the size
        wanted = max(mtu[0] for edge in found.edges if (mtu := tried[edge].mtu))
        yield BLACK_HOLE.found(
            _between(found, f"{found.answer} (MTU {wanted})"),
            host=found.host,
            severity=ERROR if stalled else WARNING,
            subject="MTU",
            observed=found.answer,
            expected=f"{wanted} bytes",
            between=found.between,
        )


def _lost(seen: Tried) -> str:
    assert seen.mtu
    wanted, arrived, error = seen.mtu
    if arrived >= wanted:
        return ""
    if error == _OWN:
        return f"packets over {arrived} bytes are refused by the sender's own kernel"
    return f"packets over {arrived} bytes vanish on the way"


def without_udp(tried: Mapping[Edge, Tried]) -> list[Edge]:
    """Pairs whose path MTU cannot be told: no datagram comes through, while TCP may."""
    return [edge for edge, seen in tried.items() if seen.mtu and not seen.mtu[1] and seen.mtu[2] != _OWN]


def _between(found: Blame, what: str) -> str:
    """`to it from every other host: packets over 1400 bytes vanish on the way`."""
    if found.kind == "pair":
        both = len(found.targets) == 2
        who = f"between {found.sources[0]} and {found.sources[1]}" if both else _way(found)
    else:
        who = {"in": "to it", "out": "from it", "both": "to it and from it", "all": "between all hosts"}[found.kind]
    return f"{who}: {what}"


def _way(found: Blame) -> str:
    return f"from {fold(found.sources)} to {found.targets[0]}"


def latency(measured: Sequence[Latency], busy: Mapping[str, str], *, bare_metal: bool) -> Iterator[Finding]:
    """Outliers always, by the quickest tenth of the round trips: a slow path, interrupts that are held back and CPUs
    that sleep too deeply slow that too, and a busy CPU does not. While torchrun imported torch for 8 hosts that shared
    two cores it took 25 to 48 µs, the median up to 183 µs (measured). The very quickest one may have been lucky: it met
    a CPU that something else had just woken.

    With `bare_metal` all pairs whose median is above the field's limit, but for those of `busy` hosts."""
    judged = {each.pair: each.p10 for each in measured}
    middle, spread = usual(judged, min)
    limit = middle + max(5 * spread, 0.5 * middle, _EXCESS_US)
    edges = {way: _slow(value, limit) for pair, value in judged.items() for way in (pair, pair[::-1])}
    for found in blame(edges) if len(judged) > 2 else []:
        slow = [value for pair, value in judged.items() if pair in found.edges or pair[::-1] in found.edges]
        yield OUTLIER.found(
            _between(found, f"{_us(min(slow))} to {_us(max(slow))} round trip, {_us(middle)} between the others"),
            host=found.host,
            subject="latency",
            observed=_us(max(slow)),
            expected=f"up to {_us(limit)}",
        )
    quiet = {each.pair: each.p50 for each in measured if not set(each.pair) & set(busy)}
    above = {pair: value for pair, value in quiet.items() if value > BARE_METAL_US}
    if bare_metal and above:
        edges = {way: "high" if pair in above else "" for pair in quiet for way in (pair, pair[::-1])}
        for found in blame(edges):
            slow = [value for pair, value in above.items() if pair in found.edges or pair[::-1] in found.edges]
            yield HIGH.found(
                _between(found, f"{_us(max(slow))} round trip, {_us(BARE_METAL_US)} are allowed"),
                host=found.host,
                subject="latency",
                observed=_us(max(slow)),
                expected=_us(BARE_METAL_US),
                between=found.between,
            )


def _slow(value: float, limit: float) -> str:
    return "slow" if value > limit else ""


def _us(value: float) -> str:
    return f"{value:.0f} µs"


def bandwidth(measured: Sequence[Rate], busy: Mapping[str, str], speeds: Mapping[str, float]) -> Iterator[Finding]:
    """Pairs below half of the median, or of what their interfaces promise. `speeds`: host -> Gb/s where known."""
    judged = {each.pair: each.gbps for each in measured if not set(each.pair) & set(busy)}
    middle = usual(judged, max)[0] if len(judged) > 2 else 0.0
    edges = {}
    for pair, gbps in judged.items():
        promised = min([*(speeds[host] for host in pair if host in speeds), _SINGLE_STREAM_GBPS])
        known = all(host in speeds for host in pair)
        slow = gbps < 0.5 * middle or (known and gbps < 0.5 * promised)
        edges[pair] = "slow" if slow else ""
    for found in blame(edges):
        rates = [judged[edge] for edge in found.edges]
        expected = f", {middle:.2g} Gb/s is usual here" if middle else ""
        yield BANDWIDTH.found(
            _between(found, f"{min(rates):.2g} Gb/s over one TCP connection{expected}"),
            host=found.host,
            subject="bandwidth",
            observed=f"{min(rates):.3g} Gb/s",
        )


def of_hosts(edges: Iterable[Edge]) -> str:
    """`a, b` of all hosts in these pairs."""
    return fold(dict.fromkeys(host for edge in edges for host in edge))
