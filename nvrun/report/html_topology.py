"""Hosts as boxes: NUMA nodes, in them PCIe switches, in these GPUs and NICs, and on a GPU its rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvrun import topology
from nvrun.hosts.nodeset import fold
from nvrun.plan import HostPlan, RankPlan
from nvrun.report.markup import Markup, join, tag
from nvrun.report.recorded import Recorded
from nvrun.topology.cpus import format_cpulist
from nvrun.topology.draw import node_of, nvlink_lines
from nvrun.topology.model import GpuPlace, NicPlace, Topology
from nvrun.topology.nics import compute_nics, port_name

MOST_KINDS = 8
"""Kinds of host that are drawn; hosts alike are drawn once."""


def pictures(run: Recorded) -> Iterator[Markup]:
    """One picture a kind of host."""
    groups: dict[str, list[HostPlan]] = {}
    drawn: dict[str, Markup] = {}
    for host in run.plan.hosts:
        facts = run.facts.get(host.host.name)
        if facts is None:
            continue
        # Alike are hosts whose pictures differ in the ranks' numbers only.
        first = host.ranks[0].rank if host.ranks else 0
        key: str = _host(topology.from_facts(facts), host, first)
        groups.setdefault(key, []).append(host)
        drawn.setdefault(key, _host(topology.from_facts(facts), host, 0))
    for key, hosts in list(groups.items())[:MOST_KINDS]:
        names = fold([host.host.name for host in hosts])
        alike = f", {len(hosts)} hosts alike; ranks are those of {hosts[0].host.name}" if len(hosts) > 1 else ""
        yield tag("figure", tag("figcaption", tag("b", names), alike), drawn[key], class_="host")
    if len(groups) > MOST_KINDS:
        yield tag("p", f"and {len(groups) - MOST_KINDS} more kinds of host", class_="quiet")


def _host(found: Topology, host: HostPlan, minus: int) -> Markup:
    places: dict[str, GpuPlace | NicPlace] = {nic.name: nic for nic in found.nics}
    places |= {gpu.name: gpu for gpu in found.gpus}
    places = {name: places[name] for name in sorted(places, key=lambda name: not name.startswith("GPU"))}
    nodes: dict[int | None, list[str]] = {numa.node: [] for numa in found.numa}
    for name, place in places.items():
        nodes.setdefault(node_of(found, place), []).append(name)
    cpus = {numa.node: numa.cpus for numa in found.numa}
    by_gpu: dict[int, list[RankPlan]] = {}
    loose: dict[int | None, list[RankPlan]] = {}
    for rank in host.ranks:
        if rank.binding and rank.binding.gpu_index is not None:
            by_gpu.setdefault(rank.binding.gpu_index, []).append(rank)
        else:
            loose.setdefault(rank.binding.memory_node if rank.binding else None, []).append(rank)
    boxes = []
    for node, members in nodes.items():
        title = "NUMA node not known" if node is None else f"NUMA node {node}"
        own = cpus.get(node) if node is not None else None
        head = tag("div", tag("b", title), f" CPUs {format_cpulist(own)}" if own else "", class_="label")
        chips = [_rank(rank, minus) for rank in loose.pop(node, [])] if node is not None else []
        boxes.append(tag("div", head, *chips, *_groups(found, places, members, by_gpu, minus), class_="numa"))
    rest = [_rank(rank, minus) for ranks in loose.values() for rank in ranks]
    lines = [tag("p", line.strip(), class_="nvlink") for line in nvlink_lines(found)]
    lines += [tag("p", f"not known: {note}", class_="quiet") for note in found.notes]
    unbound = [tag("p", tag("span", "not bound to a node: ", class_="quiet"), *rest)] if rest else []
    return join([tag("div", *boxes, class_="nodes"), *lines, *unbound])


def _groups(
    found: Topology,
    places: Mapping[str, GpuPlace | NicPlace],
    members: Sequence[str],
    by_gpu: Mapping[int, Sequence[RankPlan]],
    minus: int,
) -> Iterator[Markup]:
    """Devices on one PCIe switch together, then the others."""
    left = dict.fromkeys(members)
    unused = compute_nics(found).left_out
    for group in found.switches():
        inside = [name for name in group if name in left]
        if inside:
            boxes = [_device(found, places[name], by_gpu, unused, minus) for name in inside]
            yield tag("div", tag("div", "PCIe switch", class_="label"), *boxes, class_="switch")
            for name in inside:
                del left[name]
    yield from (_device(found, places[name], by_gpu, unused, minus) for name in left)


def _device(
    found: Topology,
    place: GpuPlace | NicPlace,
    by_gpu: Mapping[int, Sequence[RankPlan]],
    unused: Mapping[str, str],
    minus: int,
) -> Markup:
    if isinstance(place, GpuPlace):
        chips = [_rank(rank, minus) for rank in by_gpu.get(place.index, ())]
        model = place.model.removeprefix("NVIDIA ")
        return tag("div", tag("b", f"GPU {place.index}"), " ", model, *chips, class_="gpu", title=place.pci)
    said = []
    for port in (nic for nic in found.nics if nic.name == place.name):
        why = unused.get(port_name(port))
        rate = f"{port.rate_gbps:g} Gb/s" if port.rate_gbps else ""
        said.append(" ".join(filter(None, (rate, port.link_layer or "", f"(not for NCCL: {why})" if why else ""))))
    dead = all(nic.active is False for nic in found.nics if nic.name == place.name)
    where = " ".join(filter(None, (place.pci, place.netdev)))
    return tag("div", tag("b", place.name), " ", "; ".join(said), class_="nic dead" if dead else "nic", title=where)


def _rank(rank: RankPlan, minus: int) -> Markup:
    binding = rank.binding
    cpus = f"CPUs {format_cpulist(binding.cpus)}" if binding and binding.cpus else "all CPUs"
    why = binding.why if binding else ""
    return tag("span", f"rank {rank.rank - minus}", tag("small", cpus), class_="rank", title=why or None)
