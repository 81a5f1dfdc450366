"""The facts of one host: what `nvrun.agent.probe` read there, as typed values.

A section that could not be read is None and `missing` says why: unknown is shown as unknown, never as healthy.
Pure: bytes or builtins in, values out. Units stand in the field's name or docstring.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvrun import records


class _Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reading. Unknown keys are ignored, so that an older nvrun reads a newer agent's facts."""


class Software(_Fact, frozen=True, kw_only=True):
    """What would be loaded, read from files and metadata; torch itself is never imported."""

    python: str
    """Version of the job's interpreter, `3.11.7`."""
    executable: str
    prefix: str = ""
    torch: str | None = None
    """Version with its local part, `2.13.0+cpu`; None where torch is not installed."""
    torch_path: str | None = None
    torch_git: str | None = None
    cuda: str | None = None
    """CUDA version torch was built for; None for a CPU build."""
    cudnn: str | None = None
    nccl: str | None = None
    """Version of the libnccl that will be loaded, `2.28.9`."""
    nccl_path: str | None = None
    nccl_from: str | None = None
    """Why that file: `LD_PRELOAD`, `LD_LIBRARY_PATH`, `wheel` or `torch` (torch's RPATH), `ld.so.cache`, `system`,
    `built into torch`."""
    nccl_version_from: str | None = None
    """Where the version stands: `binary` (its own banner), `file name`, `wheel` (its metadata)."""
    nccl_net_plugins: tuple[str, ...] = ()
    """libnccl-net*.so that NCCL would find."""
    driver: str | None = None
    """User-space NVIDIA driver (NVML), `580.95.05`."""
    kernel_module: str | None = None
    """Loaded nvidia kernel module, from /proc/driver/nvidia/version."""
    cuda_driver: str | None = None
    """Newest CUDA the driver can run, `13.0`."""
    numactl: str | None = None
    """Path of the numactl program."""
    py_spy: str | None = None
    """Path of py-spy, which reads the stacks of ranks that hang; `` where there is none, None where nobody looked."""
    nvidia_peermem: bool | None = None
    """nvidia_peermem or nv_peer_mem is loaded; false says nothing about dma-buf, which needs no module."""
    driver_options: Mapping[str, str] | None = None
    """/proc/driver/nvidia/params: `EnableStreamMemOPs`, `RegistryDwords` and others; None where unread."""
    device_nodes: Mapping[str, str] = {}
    """/dev/nvidia*, /dev/gdrdrv, IMEX channels: path -> `ok` or why opening it read-write fails."""
    machine: str = ""
    """`x86_64`, `aarch64`."""
    hypervisor: bool | None = None
    """The CPU says that it is a guest's; None where the architecture does not tell."""
    kernel: str = ""
    distribution: str = ""
    torchrun_flags: tuple[str, ...] = ()
    """Long flags the host's torch.distributed.run accepts, read from its source; empty where unread."""
    mempolicy_allowed: bool | None = None
    """set_mempolicy works in this very chain (container seccomp often forbids it)."""


class GpuProcess(_Fact, frozen=True, kw_only=True):
    pid: int
    memory_bytes: int | None = None
    name: str = ""
    user: str = ""
    graphics: bool = False
    """It draws (a display server) and does not compute."""


class NvLink(_Fact, frozen=True, kw_only=True):
    link: int
    active: bool
    speed_mb_s: int | None = None
    """One direction, in MB/s as NVML gives it."""
    remote_pci: str | None = None
    remote_type: str | None = None
    """`switch`, `gpu`, `npu` or None."""
    crc_errors: int | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None


class Gpu(_Fact, frozen=True, kw_only=True):
    index: int
    """NVML index, that is PCI order."""
    uuid: str
    """Empty where the source does not give it (a pasted matrix)."""
    name: str
    pci: str
    """`0000:1b:00.0`, lower case, domain of four digits where it fits."""
    numa_node: int | None = None
    """None: the kernel says -1 or nothing."""
    memory_node: int | None = None
    """NUMA node that the GPU's own memory is (Grace Hopper); None elsewhere."""
    memory_total: int | None = None
    """Bytes."""
    memory_used: int | None = None
    """Bytes in use by processes; what the driver keeps for itself is not in it where NVML tells them apart."""
    processes: tuple[GpuProcess, ...] = ()
    compute_capability: str | None = None
    mig: tuple[str, ...] | None = None
    """UUIDs of MIG instances; () = MIG on without instances; None = MIG off."""
    minor: int | None = None
    """N of /dev/nvidiaN."""
    nvlinks: tuple[NvLink, ...] = ()
    p2p: Mapping[str, str] = {}
    """UUID of another GPU -> `ok` or NVML's reason."""
    fabric_state: str | None = None
    """`completed`, `in progress`, `not started`, `not supported`."""
    fabric_status: str | None = None
    fabric_health: Mapping[str, str] = {}
    fabric_clique: str | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: str | None = None
    """`none`, `reset`, `reboot`, `drain p2p`, `drain and reset`."""
    throttle_reasons: tuple[str, ...] = ()
    """What holds the clocks down, `idle` too. () also where it was not read: `unread` then names the field."""
    persistence: bool | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    vbios: str | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    compute_mode: str | None = None
    unread: Mapping[str, str] = {}
    """Field -> NVML's reason where it could not be read."""

    @property
    def reached(self) -> bool:
        """False of one that NVML counts and gives no handle of: it fell off the bus, or waits for a reset."""
        return "handle" not in self.unread


class Cpu(_Fact, frozen=True, kw_only=True):
    cpu: int
    core: tuple[int, ...] = ()
    """SMT siblings, this CPU included, sorted."""
    package: int | None = None
    node: int | None = None


class NumaNode(_Fact, frozen=True, kw_only=True):
    node: int
    cpus: tuple[int, ...] = ()
    memory_total: int | None = None
    memory_free: int | None = None
    distances: Mapping[int, int] = {}
    """Other online node -> SLIT distance."""


class Cpus(_Fact, frozen=True, kw_only=True):
    model: str = ""
    online: tuple[Cpu, ...] = ()
    allowed: tuple[int, ...] = ()
    """CPUs this very process chain may use (cpuset and affinity)."""
    allowed_nodes: tuple[int, ...] = ()
    """Memory nodes allowed (Mems_allowed_list)."""
    governor: str | None = None
    load1: float | None = None
    runnable: int | None = None
    """Processes that ran or wanted a CPU at that moment; `load1` also counts those that wait for a disk."""
    quota: float | None = None
    """CPUs' worth of time that the cgroup grants (cpu.max); None = no limit or unknown."""


class PciDevice(_Fact, frozen=True, kw_only=True):
    address: str
    path: tuple[str, ...] = ()
    """From the host bridge down to the device itself: `pci0000:15`, `0000:15:01.0`, ..., its own address.

    Two devices hang below one PCIe switch where they share more than the host bridge and the root port."""
    numa_node: int | None = None
    vendor: str = ""
    device: str = ""
    pci_class: str = ""
    link_speed_gt_s: float | None = None
    link_speed_max_gt_s: float | None = None
    link_width: int | None = None
    link_width_max: int | None = None


class Address(_Fact, frozen=True, kw_only=True):
    address: str
    prefix: int
    scope: str = "global"
    """`global`, `link` or `host`."""


class Interface(_Fact, frozen=True, kw_only=True):
    name: str
    addresses: tuple[Address, ...] = ()
    up: bool = False
    """Administratively up and carrier present."""
    mtu: int | None = None
    speed_mbit: int | None = None
    kind: str = ""
    """`ether`, `infiniband`, `loopback`, `bridge`, `veth`, `bond`, `vlan`, `tun` ... as far as sysfs tells."""
    pci: str | None = None
    numa_node: int | None = None
    mac: str = ""
    master: str | None = None
    rdma_device: str | None = None
    rx_queues: int | None = None
    rps_cpus: str | None = None
    errors: Mapping[str, int] = {}
    """rx_errors, rx_dropped, tx_errors, tx_dropped ... from sysfs statistics."""
    carrier_changes: int | None = None
    """How often the link went up or down since the interface exists."""
    pfc_priorities: tuple[int, ...] | None = None
    """Priorities with priority flow control, of interfaces with an RDMA device; None = the driver does not tell."""
    dscp_priorities: Mapping[int, int] | None = None
    """DSCP -> priority where the interface has rules for it."""
    ecn_priorities: tuple[int, ...] | None = None
    """Priorities on which RoCE congestion is notified and reacted to (MLNX_OFED); None = not told."""
    global_pause: bool | None = None
    """Pauses for all traffic of the link are sent or obeyed (IEEE 802.3x); None = the driver does not tell."""


class Gid(_Fact, frozen=True, kw_only=True):
    index: int
    gid: str
    type: str = ""
    """`IB/RoCE v1` or `RoCE v2` as sysfs has it."""
    netdev: str | None = None


class RdmaPort(_Fact, frozen=True, kw_only=True):
    device: str
    port: int
    link_layer: str
    """`InfiniBand` or `Ethernet`."""
    state: str
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`."""
    phys_state: str = ""
    rate_gbps: float | None = None
    active_mtu: int | None = None
    """Bytes."""
    lid: int | None = None
    sm_lid: int | None = None
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[str, ...] = ()
    """By their place in the table; `0x0000` = none there."""
    netdev: str | None = None
    pci: str | None = None
    numa_node: int | None = None
    firmware: str | None = None
    board: str | None = None
    hca_type: str | None = None
    node_guid: str | None = None
    counters: Mapping[str, int] = {}
    uverbs: str | None = None
    """/dev/infiniband/uverbsN of the device."""
    uverbs_openable: bool | None = None
    is_vf: bool | None = None
    traffic_class: int | None = None
    """The port's forced RoCE traffic class (MLNX_OFED's tc/N/traffic_class); None = not forced."""


class Route(_Fact, frozen=True, kw_only=True):
    destination: str
    """CIDR; `0.0.0.0/0` for the default."""
    interface: str
    gateway: str | None = None
    metric: int | None = None


class Network(_Fact, frozen=True, kw_only=True):
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[Route, ...] = ()
    ephemeral_range: tuple[int, int] | None = None
    somaxconn: int | None = None
    sysctls: Mapping[str, str] = {}
    """net.core.* and net.ipv4.* that a check reads."""
    softnet_dropped: int | None = None
    softnet_squeezed: int | None = None
    neighbours: Mapping[str, str] = {}
    """Address -> link-layer address and state as /proc/net/arp has it."""


class Names(_Fact, frozen=True, kw_only=True):
    hostname: str
    fqdn: str | None = None
    resolves_to: tuple[str, ...] = ()
    """Addresses that the host's own name resolves to there; () with a reason in resolve_error."""
    resolve_error: str | None = None
    peers: Mapping[str, tuple[str, ...]] = {}
    """Name of another host of the job -> addresses it resolves to there; () = does not resolve."""
    peer_errors: Mapping[str, str] = {}
    """Name -> why it has no address there: the resolver's words, or `no answer in 3 s`."""
    sources: Mapping[str, str] = {}
    """Name of another host -> own address from which the kernel would send to it (routes and rules, no packet sent)."""
    localhost_ok: bool | None = None


class Identity(_Fact, frozen=True, kw_only=True):
    hostname: str
    boot_id: str | None = None
    machine_id: str | None = None
    net_namespace: str | None = None
    nccl_host_hash: str | None = None
    """What NCCL's getHostHash would read: hostname + boot_id, or NCCL_HOSTID."""


class Limits(_Fact, frozen=True, kw_only=True):
    """Soft limits of the very chain that will run the job; -1 = unlimited, None = unknown."""

    memlock_bytes: int | None = None
    nofile: int | None = None
    nofile_hard: int | None = None
    nproc: int | None = None
    stack_bytes: int | None = None
    core_bytes: int | None = None
    tasks_left: int | None = None
    """Processes and threads that the cgroup still grants; None = no such limit, or unknown."""


class Filesystem(_Fact, frozen=True, kw_only=True):
    path: str
    type: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None
    noexec: bool = False
    readonly: bool = False
    writable: bool | None = None
    error: str | None = None
    """Why it could not be read, `no answer in 2 s` for a hung mount."""


class Memory(_Fact, frozen=True, kw_only=True):
    total_bytes: int
    available_bytes: int
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    thp: str | None = None
    numa_balancing: str | None = None
    cgroup_limit_bytes: int | None = None


class PathFact(_Fact, frozen=True, kw_only=True):
    path: str
    exists: bool
    kind: str = ""
    """`file`, `directory`, `other`."""
    size: int | None = None
    sha256: str | None = None
    """Of a file up to 64 MiB."""
    readable: bool | None = None
    filesystem: str | None = None
    error: str | None = None


class Process(_Fact, frozen=True, kw_only=True):
    pid: int
    command: str
    state: str = ""
    user: str = ""
    run_mark: str | None = None
    """NVRUN_MARK where its environment carries one and could be read."""


class Xid(_Fact, frozen=True, kw_only=True):
    code: int
    pci: str | None
    at: float | None = None
    """Seconds since the epoch, from the kernel log."""
    text: str = ""
    nvswitch: bool = False
    """An SXid: the device is an NVSwitch, and the code one of theirs."""


class Listener(_Fact, frozen=True, kw_only=True):
    port: int
    pid: int | None = None
    command: str = ""
    user: str = ""


class HostFacts(_Fact, frozen=True, kw_only=True):
    """All that was read on one host. `version` grows when a field changes its meaning."""

    version: int = 1
    host: str
    identity: Identity | None = None
    software: Software | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpus_on_pci: tuple[str, ...] | None = None
    """PCI addresses of NVIDIA display-class devices, whatever the driver says."""
    cpus: Cpus | None = None
    numa: tuple[NumaNode, ...] | None = None
    pci: tuple[PciDevice, ...] | None = None
    """GPUs, NICs and NVMe, and the bridges on the way to them (class 0x0604...)."""
    network: Network | None = None
    rdma: tuple[RdmaPort, ...] | None = None
    names: Names | None = None
    limits: Limits | None = None
    memory: Memory | None = None
    filesystems: tuple[Filesystem, ...] | None = None
    """/dev/shm, /tmp, the working directory, caches."""
    paths: tuple[PathFact, ...] | None = None
    """Script, working directory and what else was asked for."""
    processes: tuple[Process, ...] | None = None
    """D-state processes and those with an nvrun mark."""
    listeners: tuple[Listener, ...] | None = None
    xids: tuple[Xid, ...] | None = None
    env: Mapping[str, str] | None = None
    """NCCL_*, TORCH_*, CUDA_* and the like as the job will have them there."""
    own_env: Mapping[str, str] | None = None
    """The same as the host itself has them, before the launcher adds its own."""
    conf_files: Mapping[str, str] | None = None
    """/etc/nccl.conf, ~/.nccl.conf and NCCL_CONF_FILE: path -> text (up to 64 KiB); absent files are absent."""
    clock_offset_s: float | None = None
    """Host minus launcher."""
    clock_error_s: float | None = None
    """Half the round trip: the offset's uncertainty."""
    missing: Mapping[str, str] = {}
    """Section -> why it is None."""
    seconds: Mapping[str, float] = {}
    """Section -> how long reading took."""


SECTIONS = tuple(
    name
    for name in HostFacts.__struct_fields__
    if name not in ("version", "host", "missing", "seconds", "clock_offset_s", "clock_error_s")
)
"""What an agent reads."""


def decode(reply: object) -> HostFacts:
    """Facts from the builtins that an agent sent; raises msgspec.ValidationError where a field has another type."""
    return msgspec.convert(reply, HostFacts, strict=False)


def to_json(facts: HostFacts | tuple[HostFacts, ...] | list[HostFacts]) -> bytes:
    """Indented JSON of one host's facts or of several."""
    return records.to_json(facts)


def from_json(data: bytes) -> tuple[HostFacts, ...]:
    """Facts of one host or of a list of hosts; raises msgspec.DecodeError or ValidationError."""
    raw = records.from_json(data, object)
    return tuple(decode(item) for item in (raw if isinstance(raw, list) else [raw]))
