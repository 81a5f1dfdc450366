"""Where each rank is put: its GPU, its CPUs, its memory node. Pure; `nvrun.numactl` writes the command."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from nvrun.bindfile import Row
from nvrun.facts import HostFacts
from nvrun.meanings import found, means
from nvrun.model import Binding, Finding, Frozen, Severity
from nvrun.topology.cpus import CpuLayout, format_cpulist, layout, share, spare_nodes
from nvrun.topology.devices import Device, visible
from nvrun.topology.from_facts import from_facts
from nvrun.topology.model import Topology
from nvrun.topology.nics import nearest_nics
from nvrun.topology.nvlink import ranks_without_nvlink

Mode: TypeAlias = Literal["none", "node", "socket", "exclusive"]
"""node: the CPUs of the GPU's NUMA node, shared out among its ranks. exclusive: the same, and an error where a rank
would get no core of its own. socket: all CPUs of the GPU's socket, which its ranks have in common. none: not bound."""
Memory: TypeAlias = Literal["preferred", "strict", "local"]
"""numactl's --preferred (falls back to other nodes when full), --membind (does not), --localalloc."""

_CPUS = "the kernel's NUMA nodes, the cpuset and each GPU's node (sysfs)"
_NUMA = "numa(7), cpuset(7); sysfs-bus-pci, numa_node"
NODE_WITHOUT_CPUS = means(
    "gpu-node-without-cpus",
    "no CPU beside a GPU may be used",
    read=_CPUS,
    why="its rank runs on another NUMA node: every copy to the GPU crosses the CPUs' interconnect",
    remedy="ask for CPUs beside the GPUs (Slurm: --gres-flags=enforce-binding), or widen the cpuset",
    source=_NUMA,
)
NODE_UNKNOWN = means(
    "gpu-node-unknown",
    "the kernel does not say which NUMA node a GPU is on",
    read=_CPUS,
    why="its rank is not bound: a guess would be wrong half of the time",
    remedy="expose the NUMA topology to the virtual machine, or give the CPUs with --bind FILE",
    source=_NUMA,
)
MORE_RANKS = means(
    "more-ranks-than-gpus",
    "more ranks on a host than GPUs are visible there",
    read="the plan, and the GPUs that CUDA_VISIBLE_DEVICES leaves",
    why="cuda:LOCAL_RANK does not exist for the last of them",
    remedy="--nproc-per-node N; --waive more-ranks-than-gpus if ranks share GPUs on purpose or use none",
    source="torch.cuda.set_device",
)
TOO_FEW_CORES = means(
    "too-few-cores",
    "--bind exclusive: fewer cores than ranks",
    read=_CPUS,
    why="ranks would take turns on a core",
    remedy="--bind node lets ranks share cores; or ask the scheduler for more CPUs a task",
    source=_NUMA,
)
MEMORY_REFUSED = means(
    "memory-node-refused",
    "a strict memory policy names a NUMA node whose memory the job may not use",
    read="Mems_allowed of the cpuset",
    why="the rank would be killed at its first allocation",
    remedy="--bind-memory preferred, or widen the cpuset's memory nodes",
    source="set_mempolicy(2), cpuset(7)",
)
FILE_WRONG = means(
    "bind-file-wrong",
    "a binding file does not fit the host",
    read="--bind FILE and the cpuset",
    why="ranks without a line, or with CPUs that are not theirs, would run anywhere",
    remedy="correct the file, or use --bind node",
    source="nvrun/bindfile.py",
)

_FEWEST_CORES = 2
"""Cores that a rank needs of its own: NCCL's proxy threads inherit the rank's mask (NCCL init.cc), and on one core
they take turns with Python. Ranks that would get less share their node's CPUs instead."""


class Bound(Frozen, frozen=True, kw_only=True):
    """The bindings of one host's ranks, in the order of local ranks, and what is to be said about them."""

    bindings: tuple[Binding, ...]
    findings: tuple[Finding, ...] = ()
    gpus: int = 0
    """GPUs that the ranks can see."""


def bind(
    facts: HostFacts,
    *,
    local_ranks: int,
    env: Mapping[str, str] | None = None,
    mode: Mode = "node",
    memory: Memory = "preferred",
    table: Mapping[int, Row] | None = None,
    virtual_local_rank: bool = False,
    topology: Topology | None = None,
) -> Bound:
    """Bindings of the ranks 0 to `local_ranks` - 1 of one host.

    `env` is the environment that the ranks will have there (default: that of the facts). `table` is a binding file
    (`bindfile.read_table`) and takes the place of `mode`. `topology`: where it was read from something else than these
    facts.
    """
    env = (facts.env or {}) if env is None else env
    seen = visible(facts.gpus or (), env, host=facts.host, one_per_rank=virtual_local_rank)
    findings = list(seen.findings)
    devices = [seen.devices[rank] if rank < len(seen.devices) else None for rank in range(local_ranks)]
    if seen.devices and local_ranks > len(seen.devices):
        findings.append(_more_ranks_than_gpus(facts.host, local_ranks, len(seen.devices)))
    cpus = layout(facts)
    if table is not None:
        places, said = _from_table(facts.host, table, local_ranks, cpus)
    elif mode == "none":
        places, said = [_Place(why="--bind none")] * local_ranks, []
    elif cpus is None:
        why = facts.missing.get("cpus") or facts.missing.get("numa") or "CPUs, cpuset or NUMA nodes could not be read"
        places, said = [_Place(why=f"not bound: {why}")] * local_ranks, []
    elif facts.gpus is None and facts.gpus_on_pci != ():
        why = facts.missing.get("gpus", "the GPUs could not be read")
        places, said = [_Place(why=f"not bound: {why}")] * local_ranks, []
    elif not seen.devices:
        places, said = _spread(cpus, local_ranks), []
    else:
        places, said = _beside_gpus(facts, cpus, devices, mode)
    findings += said
    if cpus is not None:
        places, said = _with_memory(facts.host, places, cpus, memory)
        findings += said
    topology = topology or from_facts(facts)
    nics = nearest_nics(topology)
    if len(seen.devices) >= local_ranks:
        order = [device.gpu.index for device in seen.devices[:local_ranks] if device.gpu]
        findings += ranks_without_nvlink(topology, order, facts.host)
    bindings = []
    for rank, (device, place) in enumerate(zip(devices, places, strict=True)):
        gpu = device.gpu if device else None
        bindings.append(
            Binding(
                local_rank=rank,
                gpu=(device.uuid or None) if device else None,
                gpu_index=gpu.index if gpu else None,
                cpus=place.cpus,
                memory_node=place.memory_node,
                memory=memory if place.memory_node is not None or (place.cpus and memory == "local") else "",
                nics=nics.get(f"GPU{gpu.index}", ()) if gpu else (),
                why=place.why,
            )
        )
    return Bound(bindings=tuple(bindings), findings=tuple(findings), gpus=len(seen.devices))


def omp_threads(binding: Binding, facts: HostFacts) -> int | None:
    """Threads for OMP_NUM_THREADS (`--omp auto`): one for each physical core of the rank; None for an unbound rank."""
    if facts.cpus is None or not binding.cpus:
        return None
    core_of = {cpu.cpu: cpu.core for cpu in facts.cpus.online}
    return len({core_of.get(cpu) or (cpu,) for cpu in binding.cpus})


class _Place(Frozen, frozen=True, kw_only=True):
    cpus: tuple[int, ...] = ()
    memory_node: int | None = None
    why: str


class _Home(Frozen, frozen=True, kw_only=True):
    """The node whose CPUs a rank gets: that of its GPU, or one of the nearest that have some."""

    node: int
    gpu_node: int
    why: str
    near: tuple[int, ...] = ()
    """Nodes that are equally near, where the GPU's own has no CPU."""


def _beside_gpus(
    facts: HostFacts, cpus: CpuLayout, devices: Sequence[Device | None], mode: Mode
) -> tuple[list[_Place], list[Finding]]:
    homes: dict[int, _Home] = {}
    places: dict[int, _Place] = {}
    findings: list[Finding] = []
    for rank, device in enumerate(devices):
        home = _home(device, cpus)
        if isinstance(home, str):
            places[rank] = _Place(why=f"not bound: {home}")
        else:
            homes[rank] = home
    homes = _evenly(homes, cpus)
    for nodes, ranks in _groups(facts, cpus, homes, mode).items():
        cores = cpus.interleaved(nodes)
        if mode == "exclusive" and len(cores) < len(ranks):
            findings.append(_too_few_cores(facts.host, nodes, len(cores), len(ranks)))
        enough = len(cores) // len(ranks) >= (1 if mode == "exclusive" else _FEWEST_CORES)
        apart = len(ranks) > 1 and mode != "socket" and enough
        shares = share(cores, len(ranks)) if apart else [cpus.cpus(nodes)] * len(ranks)
        how = tuple(_how(nodes, len(ranks), len(cores), apart, mode))
        for rank, part in zip(ranks, shares, strict=True):
            places[rank] = _Place(cpus=part, memory_node=homes[rank].node, why="; ".join([homes[rank].why, *how]))
    return [places[rank] for rank in range(len(devices))], findings + list(_remarks(facts, cpus, devices, homes))


def _home(device: Device | None, cpus: CpuLayout) -> _Home | str:
    """Where a rank belongs, or why that is not known."""
    if device is None:
        return "no GPU is left for this rank"
    if device.gpu is None:
        return device.why
    name = f"GPU {device.gpu.index}{f' ({device.uuid})' if device.is_mig else ''}"
    node = device.gpu.numa_node
    if node is None:
        return f"the NUMA node of {name} is not known"
    if cpus.cores.get(node):
        return _Home(node=node, gpu_node=node, why=f"{name} is on NUMA node {node}")
    lacking = "has no CPU that this job may use" if node in cpus.cores else "is not online"
    nearest = cpus.nearest(node)
    if not nearest:
        return f"{name} is on NUMA node {node}, which {lacking}, and no distance to another is known"
    return _Home(node=nearest[0], gpu_node=node, why=f"{name} is on NUMA node {node}, which {lacking}", near=nearest)


def _evenly(homes: Mapping[int, _Home], cpus: CpuLayout) -> dict[int, _Home]:
    """Ranks whose GPU has no CPU beside it: each on that of the nearest nodes with most cores for one rank more."""
    ranks = Counter(home.node for home in homes.values() if not home.near)
    placed: dict[int, _Home] = {}
    for rank, home in homes.items():
        if home.near:
            node = max(home.near, key=lambda node: (len(cpus.cores[node]) / (ranks[node] + 1), -node))
            ranks[node] += 1
            why = f"{home.why}: nearest node {node} instead"
            home = _Home(node=node, gpu_node=home.gpu_node, why=why)
        placed[rank] = home
    return placed


def _groups(
    facts: HostFacts, cpus: CpuLayout, homes: Mapping[int, _Home], mode: Mode
) -> Mapping[tuple[int, ...], list[int]]:
    """The nodes that ranks share -> those ranks. No two groups have a node in common."""
    ranks = Counter(home.node for home in homes.values())
    taken = {gpu.numa_node for gpu in facts.gpus or () if gpu.numa_node is not None}
    spare = {} if mode == "socket" else spare_nodes(cpus, ranks, taken)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, home in homes.items():
        nodes = cpus.socket(home.node) if mode == "socket" else (home.node, *spare.get(home.node, ()))
        groups[nodes].append(rank)
    return groups


def _how(nodes: Sequence[int], ranks: int, cores: int, apart: bool, mode: Mode) -> Iterator[str]:
    """How the CPUs of these nodes come to a rank, in words."""
    if mode == "socket":
        yield f"all CPUs of its socket (NUMA node {format_cpulist(nodes)})"
    elif len(nodes) > 1:
        yield f"widened to node {format_cpulist(nodes[1:])} of the same socket, which has no GPU"
    if apart:
        yield f"{cores} cores shared out among {ranks} ranks"
    elif ranks > 1 and mode != "socket":
        yield f"{cores} cores are too few for {_FEWEST_CORES} a rank: {ranks} ranks have them in common"


def _spread(cpus: CpuLayout, ranks: int) -> list[_Place]:
    """Ranks without GPUs: over the NUMA nodes, so that each keeps its memory near; not at all on one node."""
    if len(cpus.nodes) < 2:
        return [_Place(why="not bound: no GPU, and the CPUs are all on one NUMA node")] * ranks
    if ranks < 2:
        return [_Place(why="not bound: no GPU, and the only rank may use all CPUs")] * ranks
    cores = [core for node in cpus.nodes for core in cpus.cores[node]]
    if len(cores) < ranks:
        return [_Place(why=f"not bound: no GPU, and {ranks} ranks have only {len(cores)} cores")] * ranks
    node_of = {cpu: node for node in cpus.nodes for core in cpus.cores[node] for cpu in core}
    places = []
    for part in share(cores, ranks):
        nodes = sorted({node_of[cpu] for cpu in part})
        why = f"no GPU; {len(cores)} cores of {len(cpus.nodes)} NUMA nodes are shared out among {ranks} ranks"
        places.append(_Place(cpus=part, memory_node=nodes[0] if len(nodes) == 1 else None, why=why))
    return places


def _with_memory(
    host: str, places: Sequence[_Place], cpus: CpuLayout, memory: Memory
) -> tuple[list[_Place], list[Finding]]:
    """Places whose memory node is one that the job may allocate on."""
    result = []
    refused: set[int] = set()
    for place in places:
        node = place.memory_node
        if memory == "local" or (node is not None and node not in cpus.memory):
            why = place.why if memory == "local" else f"{place.why}; no memory of node {node} may be used"
            refused |= {node} if node is not None and memory == "strict" else set()
            place = _Place(cpus=place.cpus, why=why)
        result.append(place)
    return result, [_memory_refused(host, node) for node in sorted(refused)]


def _from_table(
    host: str, table: Mapping[int, Row], ranks: int, cpus: CpuLayout | None
) -> tuple[list[_Place], list[Finding]]:
    places: list[_Place] = []
    findings: list[Finding] = []
    for rank in range(ranks):
        row = table.get(rank)
        if row is None:
            findings.append(_table_error(host, rank, f"the binding file has no line for local rank {rank}"))
            places.append(_Place(why="not bound: no line in the binding file"))
            continue
        outside = set(row.cpus) - set(cpus.cpus(cpus.nodes)) if cpus else set()
        if outside:
            message = f"line {row.line} of the binding file gives CPUs {format_cpulist(outside)}, not allowed here"
            findings.append(_table_error(host, rank, message))
        places.append(_Place(cpus=row.cpus, memory_node=row.memory_node, why=f"binding file, line {row.line}"))
    return places, findings


def _remarks(
    facts: HostFacts,
    cpus: CpuLayout,
    devices: Sequence[Device | None],
    homes: Mapping[int, _Home],
) -> Iterator[Finding]:
    unknown = [d.gpu for d in devices if d is not None and d.gpu is not None and d.gpu.numa_node is None]
    if unknown and len(cpus.nodes) > 1:
        yield found(
            NODE_UNKNOWN,
            Severity.WARNING,
            "the kernel does not say which NUMA node these GPUs are on: their ranks are not bound",
            host=facts.host,
            subject=f"GPU {format_cpulist(gpu.index for gpu in unknown)}",
            observed="numa_node -1",
        )
    for node in sorted({home.gpu_node for home in homes.values() if home.gpu_node != home.node}):
        yield found(
            NODE_WITHOUT_CPUS,
            Severity.WARNING,
            f"no CPU beside the GPUs of NUMA node {node} may be used: their ranks run on another node",
            host=facts.host,
            subject=f"NUMA node {node}",
            observed=f"CPUs {format_cpulist(cpus.cpus(cpus.nodes))} allowed",
        )


def _more_ranks_than_gpus(host: str, ranks: int, gpus: int) -> Finding:
    return found(
        MORE_RANKS,
        Severity.ERROR,
        f"{ranks} ranks, but cuda:{gpus} does not exist: {gpus} GPU{'s are' if gpus > 1 else ' is'} visible",
        host=host,
        subject=f"local rank {format_cpulist(range(gpus, ranks))}",
        observed=f"{ranks} ranks",
        expected=f"at most {gpus}, the GPUs visible there",
        remedy=f"--nproc-per-node {gpus}; if ranks share GPUs on purpose or use none, --waive {MORE_RANKS}",
    )


def _too_few_cores(host: str, nodes: Sequence[int], cores: int, ranks: int) -> Finding:
    return found(
        TOO_FEW_CORES,
        Severity.ERROR,
        f"--bind exclusive: {ranks} ranks want a core each, NUMA node {format_cpulist(nodes)} has {cores}",
        host=host,
        subject=f"NUMA node {format_cpulist(nodes)}",
        observed=f"{cores} cores",
        expected=f"{ranks}, one for each rank",
    )


def _memory_refused(host: str, node: int) -> Finding:
    message = f"--bind-memory strict: NUMA node {node} has no memory that this job may use"
    return found(MEMORY_REFUSED, Severity.ERROR, message, host=host, subject=f"NUMA node {node}")


def _table_error(host: str, rank: int, message: str) -> Finding:
    return found(FILE_WRONG, Severity.ERROR, message, host=host, subject=f"local rank {rank}")
