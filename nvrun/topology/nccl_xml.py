"""Topology from the XML that NCCL reads and writes (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE).

`system` holds a `cpu` for each NUMA node, those hold `pci` elements (a switch is one element), these a `gpu` or a `nic`
with its `net`s. Host bridges are not in it: what hangs on one `cpu` is PHB apart, as NCCL counts it (topo.cc, xml.cc).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NoReturn
from xml.parsers import expat

from nvrun.errors import UsageError
from nvrun.topology.model import GpuPlace, NicPlace, NumaPlace, Topology, both_ways

_DEEPEST = 64
"""Elements within elements; NCCL's own files have less than ten."""
_NVSWITCH_CLASS = "0x0680"
"""PCI class of a bridge of another kind, as which NVSwitches appear (xml.cc)."""


@dataclasses.dataclass
class _Element:
    tag: str
    attributes: Mapping[str, str]
    line: int
    parents: tuple[_Element, ...]
    """Outermost first."""
    children: list[_Element] = dataclasses.field(default_factory=list)

    def all(self, tag: str) -> Iterator[_Element]:
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)


def from_nccl_xml(text: str, source: str = "NCCL XML") -> Topology:
    """The topology in NCCL's XML. UsageError names `source`, the line and what was expected; entities are refused."""
    system = _parse(text, source)
    cpus = tuple(system.all("cpu"))
    gpus = {_gpu_name(element, source): element for element in system.all("gpu")}
    nets = [element for element in system.all("net") if _pci(element)]  # sockets of virtual interfaces have none
    if not cpus or not gpus:
        lacking = "gpu" if cpus else "cpu"
        raise UsageError(f"{source}:{system.line}: expected at least one `{lacking}` element within `system`")
    numa = {_number(cpu, "numaid", source): _mask(cpu, source) for cpu in cpus}
    places = tuple(_gpu(name, element, numa, source) for name, element in gpus.items())
    devices = gpus | {_required(net, "name", source): net for net in nets}
    ways = {pair: _way(devices[pair[0]], devices[pair[1]]) for pair in combinations(devices, 2)}
    for one, other in combinations(gpus, 2):
        if links := _nvlinks(gpus[one], gpus[other], source):
            ways[one, other] = f"NV{links}"
    return Topology(
        source="NCCL XML",
        gpus=tuple(sorted(places, key=lambda gpu: gpu.index)),
        nics=tuple(_nic(net, source) for net in nets),
        numa=tuple(NumaPlace(node=node, cpus=mask or None) for node, mask in sorted(numa.items()) if node >= 0),
        paths=both_ways({pair: way for pair, way in ways.items() if way}),
    )


def _parse(text: str, source: str) -> _Element:
    """The `system` element."""
    open_elements: list[_Element] = []
    roots: list[_Element] = []
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_elements) >= _DEEPEST:
            raise UsageError(f"{source}:{parser.CurrentLineNumber}: elements are nested more than {_DEEPEST} deep")
        element = _Element(tag, attributes, parser.CurrentLineNumber, tuple(open_elements))
        (open_elements[-1].children if open_elements else roots).append(element)
        open_elements.append(element)

    def end(_tag: str) -> None:
        open_elements.pop()

    def refuse(*_declaration: object) -> NoReturn:
        raise UsageError(f"{source}:{parser.CurrentLineNumber}: expected no DOCTYPE and no entities: NCCL writes none")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode(errors="replace"), True)
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, "not XML")
        raise UsageError(f"{source}:{error.lineno}: expected the XML of NCCL_TOPO_DUMP_FILE: {reason}") from None
    except (LookupError, ValueError) as error:  # an encoding that Python does not have
        raise UsageError(f"{source}:1: expected the XML of NCCL_TOPO_DUMP_FILE: {error}") from None
    if roots[0].tag != "system":
        hint = "the file of NCCL_GRAPH_DUMP_FILE has `graphs`, it describes rings and trees"
        raise UsageError(f"{source}:{roots[0].line}: expected a `system` element, not `{roots[0].tag}`", hint=hint)
    return roots[0]


def _required(element: _Element, name: str, source: str) -> str:
    value = element.attributes.get(name, "")
    if not value:
        raise UsageError(f"{source}:{element.line}: expected `{name}` in `{element.tag}`")
    return value


def _number(element: _Element, name: str, source: str) -> int:
    value = _required(element, name, source)
    if not re.fullmatch(r"-?\d{1,9}", value, re.ASCII):
        raise UsageError(f"{source}:{element.line}: expected a number in {name}={value!r} of `{element.tag}`")
    return int(value)


def _mask(cpu: _Element, source: str) -> tuple[int, ...]:
    """CPUs of `affinity="ffffffff,00000000"`: words of 32 bits, the highest CPUs first."""
    text = cpu.attributes.get("affinity", "")
    words = text.split(",") if text else []
    if len(words) > 1024 or not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words):
        raise UsageError(f"{source}:{cpu.line}: expected words of up to 8 hex digits in affinity={text[:40]!r}")
    bits = sum(int(word, 16) << 32 * at for at, word in enumerate(reversed(words)))
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def _gpu_name(gpu: _Element, source: str) -> str:
    return f"GPU{_number(gpu, 'dev', source)}"


def _pci(element: _Element) -> _Element | None:
    return next((parent for parent in reversed(element.parents) if parent.tag == "pci"), None)


def _numa(element: _Element, source: str) -> int | None:
    cpu = next((parent for parent in element.parents if parent.tag == "cpu"), None)
    node = _number(cpu, "numaid", source) if cpu is not None else -1
    return node if node >= 0 else None


def _gpu(name: str, gpu: _Element, numa: Mapping[int, tuple[int, ...]], source: str) -> GpuPlace:
    pci, node = _pci(gpu), _numa(gpu, source)
    return GpuPlace(
        name=name,
        index=int(name[3:]),
        pci=pci.attributes.get("busid") if pci else None,
        numa_node=node,
        cpus=numa.get(node, ()) if node is not None else (),
    )


def _nic(net: _Element, source: str) -> NicPlace:
    pci = _pci(net)
    return NicPlace(
        name=_required(net, "name", source),
        port=_number(net, "port", source) if "port" in net.attributes else None,
        pci=pci.attributes.get("busid") if pci else None,
        numa_node=_numa(net, source),
        active=True,  # NCCL lists active ports only
        rate_gbps=_number(net, "speed", source) / 1000 if "speed" in net.attributes else None,
    )


def _way(one: _Element, other: _Element) -> str | None:
    """Kind of way between two devices: by the innermost element that both are within."""
    above = [parent for parent in one.parents if any(parent is mine for mine in other.parents)]
    if above[-1].tag == "system":
        return "SYS"
    if above[-1].tag != "pci":
        return "PHB" if above[-1].tag == "cpu" else "PIX"  # two nets of one `nic`
    bridges = max(sum(1 for p in e.parents if p.tag == "pci") for e in (one, other))
    shared = sum(1 for parent in above if parent.tag == "pci")
    return "PIX" if bridges - shared <= 1 else "PXB"


def _nvlinks(one: _Element, other: _Element, source: str) -> int:
    """NVLinks between two GPUs: those that end at the other, else those of both that end at NVSwitches."""
    target = _pci(other)
    bus = target.attributes.get("busid") if target else None
    direct = sum(_number(link, "count", source) for link in one.all("nvlink") if link.attributes.get("target") == bus)
    to_switches = (
        sum(
            _number(link, "count", source)
            for link in gpu.all("nvlink")
            if link.attributes.get("tclass", "").startswith(_NVSWITCH_CLASS)
        )
        for gpu in (one, other)
    )
    return max(direct, 0) or max(min(to_switches), 0)
