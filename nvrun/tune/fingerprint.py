"""The hardware that a setting was found for, as a name. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nvrun.facts import Gpu, HostFacts
from nvrun.preset_fit import network
from nvrun.topology.from_facts import from_facts
from nvrun.topology.nics import compute_nics

PREFIX = "tuned-"


def description(hosts: Sequence[HostFacts]) -> str:
    """`2 hosts: 8x NVIDIA H100 80GB HBM3, 18 NVLinks to a switch, PCIe gen 5 x16; roce 8x 400 Gb/s`: what decides how
    fast collectives are. Not in it: names, addresses, serial numbers, versions, what is busy or hot just now."""
    shapes = Counter(_host(facts, several=len(hosts) > 1) for facts in hosts)
    return "; ".join(f"{count} host{'s'[: count > 1]}: {shape}" for shape, count in sorted(shapes.items()))


def fingerprint(hosts: Sequence[HostFacts]) -> str:
    """Twelve hexadecimal digits of the description."""
    import hashlib  # most runs never ask; it loads OpenSSL

    return hashlib.sha256(description(hosts).encode()).hexdigest()[:12]


def preset_name(hosts: Sequence[HostFacts]) -> str:
    return PREFIX + fingerprint(hosts)


def _host(facts: HostFacts, *, several: bool) -> str:
    gpus = "GPUs not read" if facts.gpus is None else _counted(_gpu(gpu) for gpu in facts.gpus) or "no GPU"
    return f"{gpus}; {_network(facts)}" if several else gpus


def _gpu(gpu: Gpu) -> str:
    links = Counter(link.remote_type or "unknown" for link in gpu.nvlinks if link.active)
    ways = [f"{count} NVLinks to a {kind}" for kind, count in sorted(links.items())]
    pcie = f"PCIe gen {gpu.pcie_gen_max or '?'} x{gpu.pcie_width or '?'}"
    return ", ".join([gpu.name, *(["MIG"] if gpu.mig is not None else []), *ways, pcie])


def _network(facts: HostFacts) -> str:
    nics = compute_nics(from_facts(facts)).chosen if facts.rdma else ()
    rates = _counted(f"{nic.rate_gbps or 0:g} Gb/s" for nic in nics)
    return f"{network(facts) or 'network not read'} {rates}".strip()


def _counted(words: Iterable[str]) -> str:
    return " + ".join(f"{count}x {word}" for word, count in sorted(Counter(words).items()))
