"""What of the plan a check must know: its findings are as bad as what the job does with the thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nvrun.endpoint import Endpoint
from nvrun.facts import Gpu, HostFacts, Interface, Network, RdmaPort
from nvrun.model import Frozen
from nvrun.nccl.parse import device_list, strtoll
from nvrun.topology.interface import Peers, addresses, socket_interface
from nvrun.topology.nics import link_layer
from nvrun.torchrun import TorchrunArgs


class Job(Frozen, frozen=True, kw_only=True):
    """The job as far as it is decided. What is left out is taken from the facts (`complete`)."""

    hosts: tuple[str, ...] = ()
    """In node order."""
    ranks: Mapping[str, int] = {}
    """Host -> ranks on it."""
    gpus: Mapping[str, tuple[str, ...]] = {}
    """Host -> UUIDs (of GPUs or MIG instances) in use; a host that is not in it uses all of its GPUs."""
    rdma: Mapping[str, tuple[str, ...]] | None = None
    """Host -> RDMA ports in use, `mlx5_0:1`; {} = the job does not use RDMA."""
    interfaces: Mapping[str, str] = {}
    """Host -> interface of NCCL's and Gloo's sockets, where the plan sets it."""
    cpus: Mapping[str, tuple[int, ...]] = {}
    """Host -> CPUs that the bindings of its ranks need."""
    binds_memory: bool = False
    """A rank's memory policy is set (--preferred or --membind)."""
    script: str | None = None
    """As the host will see it: absolute, or relative to `cwd`."""
    cwd: str | None = None
    ends_hangs: bool = False
    """--hang-timeout is set."""
    require_path: tuple[str, ...] = ()
    require_same: tuple[str, ...] = ()
    textfile: str | None = None
    """Folder of --monitor-textfile."""
    rendezvous_host: str | None = None
    """None: the first host."""
    port: int | None = None
    """Of the rendezvous."""
    endpoint: Endpoint | None = None
    """Where this host, one node of a job that something else starts, meets the others."""
    run_id: str = ""
    """Of this attempt: what marks of processes begin with."""
    torchrun: TorchrunArgs | None = None
    env: Mapping[str, Mapping[str, str]] = {}
    """Host -> the variables that its ranks will have, from wherever they come; a host that is not in it has those of
    its facts."""
    set_everywhere: frozenset[str] = frozenset()
    """Variables that the plan sets alike on all hosts: what a host's own environment says of them does not count."""

    @property
    def world(self) -> int:
        return sum(self.ranks.values())

    @property
    def first(self) -> str | None:
        """The host of the rendezvous."""
        return self.rendezvous_host or next(iter(self.hosts), None)

    def pids(self, facts: HostFacts) -> set[int]:
        """This run's own processes on a host."""
        return {p.pid for p in facts.processes or () if self.run_id and (p.run_mark or "").startswith(self.run_id)}

    def uses_rdma(self, host: str) -> bool:
        return bool((self.rdma or {}).get(host))

    def gpus_of(self, host: str, gpus: Iterable[Gpu]) -> list[Gpu]:
        """Those in use on this host, also where only MIG instances of theirs are."""
        chosen = self.gpus.get(host)
        if chosen is None:
            return list(gpus)
        return [gpu for gpu in gpus if gpu.uuid in chosen or any(uuid in chosen for uuid in gpu.mig or ())]

    def ports_of(self, host: str, rdma: Iterable[RdmaPort]) -> list[RdmaPort]:
        """RDMA ports in use on this host, whatever their state."""
        chosen = (self.rdma or {}).get(host, ())
        return [port for port in rdma if name_of(port) in chosen]

    def interface_of(self, host: str, network: Network) -> Interface | None:
        """The interface of the sockets; None where the job needs none or none is known."""
        name = self.interfaces.get(host)
        return next((interface for interface in network.interfaces if interface.name == name), None)


def name_of(port: RdmaPort) -> str:
    """`mlx5_0:1`."""
    return f"{port.device}:{port.port}"


def complete(job: Job, fleet: Mapping[str, HostFacts], groups: Sequence[Sequence[str]]) -> Job:
    """The job with what its plan left open filled in as nvrun would plan it."""
    hosts = job.hosts or tuple(fleet)
    ranks = {host: job.ranks.get(host, len(job.gpus_of(host, facts.gpus or ())) or 1) for host, facts in fleet.items()}
    several = len(hosts) > 1
    rdma = job.rdma
    if rdma is None:
        rdma = _rdma(fleet, groups) if several else {}
    interfaces = {**_interfaces(fleet), **job.interfaces} if several else {}
    return msgspec.structs.replace(job, hosts=hosts, ranks=ranks, rdma=rdma, interfaces=interfaces)


def _rdma(fleet: Mapping[str, HostFacts], groups: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Ports that NCCL would use if all were well: a port that is down here, or whose device file is closed, but that
    half of the like hosts can use counts. Where no port's file opens, none was left out on purpose.

    Like hosts have a port at the same name or, where drivers name them in other ways, in the same slot."""
    planned: dict[str, tuple[str, ...]] = {}
    for group in groups:
        candidates = {host: _candidates(fleet[host]) for host in group}
        some_open = any(port.uverbs_openable for ports in candidates.values() for port in ports)
        usable_on: Counter[str] = Counter()
        for ports in candidates.values():
            for port in ports:
                if port.state == "ACTIVE" and not (some_open and port.uverbs_openable is False):
                    usable_on.update(_places(port))
        for host, ports in candidates.items():
            names = tuple(
                name_of(port) for port in ports if 2 * max(usable_on[place] for place in _places(port)) >= len(group)
            )
            if names:
                planned[host] = names
    return planned


def _places(port: RdmaPort) -> set[str]:
    """What a port is known by: its name, and its card's address."""
    return {name_of(port)} | ({f"{port.pci}/{port.port}"} if port.pci else set())


def _candidates(facts: HostFacts) -> list[RdmaPort]:
    env = facts.env or {}
    if not (facts.gpus or facts.gpus_on_pci) or env.get("NCCL_NET", "IB").lower() == "socket":
        return []
    if efa := _of_a_plugin(facts):
        return efa
    if strtoll(env.get("NCCL_IB_DISABLE", "")):
        return []
    ports = [port for port in facts.rdma or () if port.link_layer in VERBS]
    # Beside ports of physical functions that can be used virtual ones are for guests; a pod may have nothing else.
    if any(p.state == "ACTIVE" and p.uverbs_openable is not False and not p.is_vf for p in ports):
        ports = [port for port in ports if not port.is_vf]
    if wanted := env.get("NCCL_IB_HCA"):
        return [port for port in ports if device_list(wanted).takes(port.device, port.port)]
    # A compute port hangs below the root port of a GPU; where none does, nothing tells it from storage.
    paths = {device.address: device.path[:2] for device in facts.pci or () if len(device.path) > 2}
    cards = {gpu.pci for gpu in facts.gpus or ()} | set(facts.gpus_on_pci or ())  # NVML may lack one that is broken
    roots = {paths[address] for address in cards if address in paths}
    near = [port for port in ports if port.pci and paths.get(port.pci) in roots]
    if near:  # one whose place is not told is what it is on the other hosts
        ports = [port for port in ports if port in near or port.pci is None]
    active = ((port.link_layer, port.rate_gbps) for port in ports if port.state == "ACTIVE")
    layer = link_layer(active, certain=bool(near))
    return [port for port in ports if layer in (None, port.link_layer)]


VERBS = ("InfiniBand", "Ethernet")
"""Link layers that NCCL's own transport drives; EFA says neither."""


def _of_a_plugin(facts: HostFacts) -> list[RdmaPort]:
    """Ports that only a network plugin can use (EFA), unless NCCL would find none: all, and no NCCL_IB_* counts."""
    none_found = facts.software is not None and not facts.software.nccl_net_plugins
    if none_found or (facts.env or {}).get("NCCL_NET_PLUGIN", "").lower() == "none":
        return []
    return [port for port in facts.rdma or () if port.link_layer not in VERBS]


def _interfaces(fleet: Mapping[str, HostFacts]) -> dict[str, str]:
    """Host -> the interface that its own GLOO_SOCKET_IFNAME names first, else the one that nvrun would choose."""
    peers = Peers({host: addresses(facts) for host, facts in fleet.items()})
    chosen = {
        host: (facts.env or {}).get("GLOO_SOCKET_IFNAME", "").partition(",")[0] or socket_interface(facts, peers).name
        for host, facts in fleet.items()
    }
    return {host: name for host, name in chosen.items() if name}


_NOT_TO_PEERS = ("docker", "virbr", "cni", "flannel", "cali", "lxc", "br-")
"""Bridges of container engines: the same subnet on every host, and no way to another."""


def usable(interface: Interface) -> bool:
    """Up, and no loopback, part of a bond or bridge of a container engine."""
    return (
        interface.up
        and interface.kind != "loopback"
        and interface.master is None
        and not interface.name.startswith(_NOT_TO_PEERS)
    )


def subnet(address: str, prefix: int) -> str:
    """`10.1.2.3`, 16 -> `10.1.0.0/16`; what is no address stands for itself."""
    import ipaddress

    try:
        return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))
    except ValueError:
        return f"{address}/{prefix}"
