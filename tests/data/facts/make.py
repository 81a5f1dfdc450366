"""Writes the recorded machines of this folder: `python tests/data/facts/make.py`.

Each is built from the known layout of its kind; names, addresses and identities are invented. `cpu_host.json` and
`h200x2_vm.json` (a virtual machine with two H200, 2026-11-29) are not made here: `nvrun.agent.probe` recorded them, and
their identities were replaced (see test_fixtures.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from nvrun import facts

GIB = 1 << 30
HERE = Path(__file__).parent
Slot = tuple[str, ...]
"""A PCI path: host bridge, ports and bridges, the device's own address."""


@dataclasses.dataclass(frozen=True)
class Sockets:
    """CPUs numbered as Linux does on servers: all first threads node by node, then all second threads."""

    nodes: int
    cores_per_node: int
    smt: int
    sockets: int
    memory_per_node: int
    model: str

    def node_cpus(self, node: int) -> tuple[int, ...]:
        cores = self.nodes * self.cores_per_node
        first = node * self.cores_per_node
        return tuple(thread * cores + first + core for thread in range(self.smt) for core in range(self.cores_per_node))

    def cpus(self) -> facts.Cpus:
        cores = self.nodes * self.cores_per_node
        online = tuple(
            facts.Cpu(
                cpu=cpu,
                core=tuple(thread * cores + cpu % cores for thread in range(self.smt)),
                package=self._socket(cpu % cores // self.cores_per_node),
                node=cpu % cores // self.cores_per_node,
            )
            for cpu in range(cores * self.smt)
        )
        return facts.Cpus(
            model=self.model,
            online=online,
            allowed=tuple(range(cores * self.smt)),
            allowed_nodes=tuple(range(self.nodes)),
            governor="performance",
            load1=0.4,
        )

    def numa(self, near: int = 12, far: int = 32) -> tuple[facts.NumaNode, ...]:
        """`near`: SLIT distance within a socket; `far`: to the other socket."""
        return tuple(
            facts.NumaNode(
                node=node,
                cpus=self.node_cpus(node),
                memory_total=self.memory_per_node,
                memory_free=self.memory_per_node * 9 // 10,
                distances={
                    other: near if self._socket(other) == self._socket(node) else far
                    for other in range(self.nodes)
                    if other != node
                },
            )
            for node in range(self.nodes)
        )

    def _socket(self, node: int) -> int:
        return node * self.sockets // self.nodes


def uuid(machine: int, gpu: int) -> str:
    return f"GPU-{machine:08x}-0000-4000-8000-{gpu:012x}"


def gpus(
    machine: int,
    name: str,
    slots: Sequence[Slot],
    nodes: Sequence[int | None],
    *,
    memory: int,
    capability: str,
    pcie_gen: int,
    links: int = 0,
    link_speed: int = 0,
    fabric: str = "completed",
    power: float = 700,
    memory_node: int | None = None,
) -> tuple[facts.Gpu, ...]:
    """Healthy GPUs; `links` NVLinks each lead to NVSwitches, none = PCIe only."""
    nvlinks = tuple(
        facts.NvLink(link=link, active=True, speed_mb_s=link_speed, remote_type="switch") for link in range(links)
    )
    return tuple(
        facts.Gpu(
            index=index,
            uuid=uuid(machine, index),
            name=name,
            pci=slot[-1],
            numa_node=nodes[index],
            memory_node=memory_node,
            memory_total=memory,
            memory_used=0,
            compute_capability=capability,
            minor=index,
            nvlinks=nvlinks,
            p2p={uuid(machine, other): "ok" for other in range(len(slots)) if other != index},
            fabric_state=fabric,
            fabric_status="success" if fabric == "completed" else None,
            pcie_gen=pcie_gen,
            pcie_gen_max=pcie_gen,
            pcie_width=16,
            pcie_width_max=16,
            ecc_enabled=True,
            ecc_uncorrected_volatile=0,
            ecc_uncorrected_aggregate=0,
            remap_pending=False,
            remap_failed=False,
            recovery_action="none",
            throttle_reasons=("idle",),
            persistence=True,
            temperature_c=34,
            power_w=power / 7,
            power_limit_w=power,
            power_limit_default_w=power,
            sm_clock_mhz=345,
            sm_clock_max_mhz=1980,
            compute_mode="default",
        )
        for index, slot in enumerate(slots)
    )


GEN = {3: 8.0, 4: 16.0, 5: 32.0}


def pci(slots: Iterable[tuple[Slot, int | None, str, str, str, int, int]]) -> tuple[facts.PciDevice, ...]:
    """Devices given as (path, NUMA node, vendor, device, class, PCIe generation, width), each after its bridges."""
    found: dict[str, facts.PciDevice] = {}
    for path, node, vendor, device, pci_class, gen, width in slots:
        for depth, address in enumerate(path[1:], 2):
            own = address == path[-1]
            found.setdefault(
                address,
                facts.PciDevice(
                    address=address,
                    path=path[:depth],
                    numa_node=node,
                    vendor=vendor if own else "0x1000",
                    device=device if own else "0xc030",
                    pci_class=pci_class if own else "0x060400",
                    link_speed_gt_s=GEN[gen],
                    link_speed_max_gt_s=GEN[gen],
                    link_width=width,
                    link_width_max=width,
                ),
            )
    return tuple(found.values())


def ether(
    name: str, address: str, prefix: int, speed: int, *, mtu: int = 1500, slot: Slot = (), node: int | None = None
) -> facts.Interface:
    return facts.Interface(
        name=name,
        addresses=(facts.Address(address=address, prefix=prefix),),
        up=True,
        mtu=mtu,
        speed_mbit=speed,
        kind="ether",
        pci=slot[-1] if slot else None,
        numa_node=node,
        rx_queues=32,
        rps_cpus="0",
        errors={"rx_errors": 0, "rx_dropped": 0, "tx_errors": 0, "tx_dropped": 0},
    )


LOOPBACK = facts.Interface(
    name="lo",
    addresses=(facts.Address(address="127.0.0.1", prefix=8, scope="host"),),
    up=True,
    mtu=65536,
    kind="loopback",
)


def network(interfaces: Sequence[facts.Interface], gateway: str) -> facts.Network:
    """The first interface carries the default route; each has the route of its subnet."""
    routes = [facts.Route(destination="0.0.0.0/0", interface=interfaces[0].name, gateway=gateway, metric=0)]
    for interface in interfaces:
        for address in interface.addresses:
            octets = address.address.split(".")
            kept = address.prefix // 8
            subnet = ".".join(octets[:kept] + ["0"] * (4 - kept))
            routes.append(facts.Route(destination=f"{subnet}/{address.prefix}", interface=interface.name, metric=0))
    return facts.Network(
        interfaces=(LOOPBACK, *interfaces),
        routes=tuple(routes),
        ephemeral_range=(32768, 60999),
        somaxconn=4096,
        sysctls={
            "net.core.netdev_budget": "300",
            "net.core.netdev_max_backlog": "1000",
            "net.core.rmem_max": "212992",
            "net.core.wmem_max": "212992",
            "net.ipv4.neigh.default.gc_thresh3": "1024",
        },
        softnet_dropped=0,
        softnet_squeezed=0,
    )


HCA = {400: "MT4129", 200: "MT4123", 100: "MT4119"}


def infiniband(device: str, number: int, slot: Slot, node: int, *, rate: float = 400) -> facts.RdmaPort:
    guid = f"0000:00ff:fe00:{number:04x}"
    return facts.RdmaPort(
        device=device,
        port=1,
        link_layer="InfiniBand",
        state="ACTIVE",
        phys_state="LinkUp",
        rate_gbps=rate,
        active_mtu=4096,
        lid=100 + number,
        sm_lid=1,
        gids=(facts.Gid(index=0, gid=f"fe80:0000:0000:0000:{guid}", type="IB/RoCE v1"),),
        pkeys=("0xffff",),
        netdev=f"ib{number}",
        pci=slot[-1],
        numa_node=node,
        firmware="28.39.1002",
        board="MT_0000000838",
        hca_type=HCA[int(rate)],
        node_guid=guid,
        counters={"symbol_error": 0, "link_error_recovery": 0, "link_downed": 0},
        uverbs=f"/dev/infiniband/uverbs{number}",
        uverbs_openable=True,
        is_vf=False,
    )


def roce(
    device: str, number: int, slot: Slot, node: int, netdev: str, address: str, *, rate: float, up: bool = True
) -> facts.RdmaPort:
    a, b, c, d = (int(octet) for octet in address.split("."))
    mapped = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
    local = f"fe80:0000:0000:0000:0000:00ff:fe01:{number:04x}"
    types = ("IB/RoCE v1", "RoCE v2")
    gids = [(local, kind) for kind in types] + ([(mapped, kind) for kind in types] if up else [])
    return facts.RdmaPort(
        device=device,
        port=1,
        link_layer="Ethernet",
        state="ACTIVE" if up else "DOWN",
        phys_state="LinkUp" if up else "Disabled",
        rate_gbps=rate,
        active_mtu=4096 if up else 1024,
        lid=0,
        sm_lid=0,
        gids=tuple(facts.Gid(index=i, gid=gid, type=kind, netdev=netdev) for i, (gid, kind) in enumerate(gids)),
        pkeys=("0xffff",),
        netdev=netdev,
        pci=slot[-1],
        numa_node=node,
        firmware="20.31.1014",
        hca_type=HCA[int(rate)],
        node_guid=f"0000:00ff:fe01:{number:04x}",
        counters={"link_downed": 0},
        uverbs=f"/dev/infiniband/uverbs{number}",
        uverbs_openable=True,
        is_vf=False,
    )


def software(
    driver: str, cuda_driver: str, torch: str, cuda: str, nccl: str, machine: str = "x86_64"
) -> facts.Software:
    site = "/opt/venv/lib/python3.11/site-packages"
    return facts.Software(
        python="3.11.7",
        executable="/opt/venv/bin/python",
        prefix="/opt/venv",
        torch=f"{torch}+cu{cuda.replace('.', '')}",
        torch_path=f"{site}/torch",
        cuda=cuda,
        cudnn="9.10.2.21",
        nccl=nccl,
        nccl_path=f"{site}/nvidia/nccl/lib/libnccl.so.2",
        nccl_from="wheel",
        driver=driver,
        kernel_module=driver,
        cuda_driver=cuda_driver,
        numactl="/usr/bin/numactl",
        nvidia_peermem=True,
        machine=machine,
        hypervisor=False,
        kernel="5.15.0-1032",
        distribution="Ubuntu 22.04.4 LTS",
        torchrun_flags=("--nnodes", "--nproc-per-node", "--rdzv-backend", "--local-addr", "--numa-binding"),
        mempolicy_allowed=True,
    )


def host(
    name: str,
    address: str,
    *,
    soft: facts.Software,
    sockets: Sockets,
    numa: tuple[facts.NumaNode, ...],
    gpu: tuple[facts.Gpu, ...],
    devices: tuple[facts.PciDevice, ...],
    net: facts.Network,
    rdma: tuple[facts.RdmaPort, ...] = (),
) -> facts.HostFacts:
    boot_id = "00000000-0000-4000-8000-" + "".join(f"{ord(letter):02x}" for letter in name)[:12].ljust(12, "0")
    memory = sum(node.memory_total or 0 for node in numa if node.cpus)
    return facts.HostFacts(
        host=name,
        identity=facts.Identity(hostname=name, boot_id=boot_id, nccl_host_hash=name + boot_id),
        software=soft,
        gpus=gpu,
        gpus_on_pci=tuple(g.pci for g in gpu),
        cpus=sockets.cpus(),
        numa=numa,
        pci=devices,
        network=net,
        rdma=rdma,
        names=facts.Names(hostname=name, fqdn=name, resolves_to=(address,), localhost_ok=True),
        limits=facts.Limits(memlock_bytes=-1, nofile=1048576, nofile_hard=1048576, nproc=-1, stack_bytes=8 << 20),
        memory=facts.Memory(total_bytes=memory, available_bytes=memory * 9 // 10, thp="madvise", numa_balancing="0"),
        filesystems=(
            facts.Filesystem(
                path="/dev/shm", type="tmpfs", total_bytes=memory // 2, free_bytes=memory // 2, writable=True
            ),
            facts.Filesystem(
                path="/tmp",
                type="ext4",
                total_bytes=1000 * GIB,
                free_bytes=700 * GIB,
                free_inodes=60_000_000,
                writable=True,
            ),
        ),
        paths=(),
        processes=(),
        listeners=(),
        xids=(),
        env={},
        conf_files={},
    )


def h100x8() -> facts.HostFacts:
    """8x H100 SXM behind NVSwitch, two sockets; per GPU one 400 Gb/s InfiniBand port below the same PCIe switch.

    The device names of the compute ports are not consecutive: mlx5_1, 2, 7 and 8 are storage (one cable each).
    """
    buses = (
        *((0x15, 0x18, 0x1B), (0x37, 0x40, 0x43), (0x48, 0x4F, 0x52), (0x59, 0x5E, 0x61)),
        *((0x97, 0x9A, 0x9D), (0xB7, 0xC0, 0xC3), (0xC7, 0xCE, 0xD1), (0xD7, 0xDC, 0xDF)),
    )

    def below_switch(root: int, bus: int, port: int) -> Slot:
        up, down = f"0000:{root + 1:02x}:00.0", f"0000:{root + 2:02x}:{port:02x}.0"
        return (f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", up, down, f"0000:{bus:02x}:00.0")

    nic_slots = [below_switch(root, nic, 0) for root, nic, _ in buses]
    gpu_slots = [below_switch(root, gpu, 2) for root, _, gpu in buses]
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]
    storage_slots: list[Slot] = [
        (f"pci0000:{bus - 1:02x}", f"0000:{bus - 1:02x}:01.0", f"0000:{bus:02x}:00.{function}")
        for bus in (0x29, 0xAA)
        for function in (0, 1)
    ]
    management: Slot = ("pci0000:80", "0000:80:01.0", "0000:82:00.0")
    compute = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
    rdma = [
        infiniband(device, int(device[5:]), slot, node)
        for device, slot, node in zip(compute, nic_slots, nodes, strict=True)
    ] + [
        roce("mlx5_1", 1, storage_slots[0], 0, "ens1f0", "192.0.2.11", rate=200),
        roce("mlx5_2", 2, storage_slots[1], 0, "ens1f1", "192.0.2.12", rate=200, up=False),
        roce("mlx5_7", 7, storage_slots[2], 1, "ens2f0", "192.0.2.21", rate=200),
        roce("mlx5_8", 8, storage_slots[3], 1, "ens2f1", "192.0.2.22", rate=200, up=False),
    ]
    gpu = gpus(1, "NVIDIA H100 80GB HBM3", gpu_slots, nodes, memory=85_520_809_984, capability="9.0",
               pcie_gen=5, links=18, link_speed=26562)  # fmt: skip
    interfaces = [
        ether("eno1", "10.1.0.11", 16, 10_000, slot=management, node=1),
        ether("ens1f0", "192.0.2.11", 28, 200_000, mtu=9000, slot=storage_slots[0], node=0),
        ether("ens2f0", "192.0.2.21", 28, 200_000, mtu=9000, slot=storage_slots[2], node=1),
    ]
    sockets = Sockets(2, 56, 2, 2, 1024 * GIB, "Intel(R) Xeon(R) Platinum 8480C")
    devices = (
        [(slot, node, "0x10de", "0x2330", "0x030200", 5, 16) for slot, node in zip(gpu_slots, nodes, strict=True)]
        + [(slot, node, "0x15b3", "0x1021", "0x020700", 5, 16) for slot, node in zip(nic_slots, nodes, strict=True)]
        + [(slot, i // 2, "0x15b3", "0x101b", "0x020000", 4, 16) for i, slot in enumerate(storage_slots)]
        + [(management, 1, "0x8086", "0x1563", "0x020000", 3, 4)]
    )
    return host(
        "gpu011",
        "10.1.0.11",
        soft=software("550.90.07", "12.4", "2.7.1", "12.6", "2.26.2"),
        sockets=sockets,
        numa=sockets.numa(far=21),
        gpu=gpu,
        devices=pci(devices),
        net=network(interfaces, "10.1.0.1"),
        rdma=tuple(rdma),
    )


def h200x2() -> facts.HostFacts:
    """A guest with 2 of a host's 8 H200 behind NVSwitch: one NUMA node, no PCIe tree, no RDMA."""
    slots: list[Slot] = [("pci0000:00", "0000:00:06.0"), ("pci0000:00", "0000:00:07.0")]
    gpu = gpus(2, "NVIDIA H200", slots, [0, 0], memory=150_754_820_096, capability="9.0",
               pcie_gen=5, links=18, link_speed=26562)  # fmt: skip
    sockets = Sockets(1, 32, 1, 1, 256 * GIB, "Intel(R) Xeon(R) Platinum 8481C")
    soft = software("580.159.04", "13.0", "2.11.0", "12.8", "2.28.9")
    return host(
        "h200-0",
        "10.2.0.10",
        soft=msgspec.structs.replace(soft, hypervisor=True, nvidia_peermem=False),
        sockets=sockets,
        numa=sockets.numa(),
        gpu=gpu,
        devices=pci((slot, 0, "0x10de", "0x2335", "0x030200", 5, 16) for slot in slots),
        net=network([ether("eth0", "10.2.0.10", 24, -1)], "10.2.0.1"),
    )


def a100x8_nps4() -> facts.HostFacts:
    """8x A100 on two EPYC in NPS4: GPU pairs at nodes 3, 1, 7, 5, each pair with a dual-port 100G RoCE card."""
    nodes = [3, 3, 1, 1, 7, 7, 5, 5]
    roots = (0x00, 0x40, 0x80, 0xC0)

    def below(root: int, leaf: int, bus: int, function: int = 0) -> Slot:
        """Two levels of switch: GPUs and NIC hang on different second-level bridges (PXB)."""
        first, second = f"0000:{root + 1:02x}:00.0", f"0000:{root + 2:02x}:{leaf:02x}.0"
        third = f"0000:{bus - 1:02x}:00.0"
        return (f"pci0000:{root:02x}", f"0000:{root:02x}:01.1", first, second, third, f"0000:{bus:02x}:00.{function}")

    gpu_slots = [below(root, leaf, root + 8 + 4 * leaf) for root in roots for leaf in (0, 1)]
    nic_slots = [below(root, 2, root + 16, function) for root in roots for function in (0, 1)]
    netdevs = [f"ens{10 + i // 2}f{i % 2}np{i % 2}" for i in range(8)]
    addresses = [f"10.30.{i}.7" for i in range(8)]
    rdma = tuple(roce(f"mlx5_{i}", i, nic_slots[i], nodes[i], netdevs[i], addresses[i], rate=100) for i in range(8))
    gpu = gpus(3, "NVIDIA A100-SXM4-80GB", gpu_slots, nodes, memory=85_899_345_920, capability="8.0",
               pcie_gen=4, links=12, link_speed=25000, fabric="not supported", power=400)  # fmt: skip
    interfaces = [
        ether("eno1", "10.3.0.7", 24, 1000),
        *(ether(netdevs[i], addresses[i], 24, 100_000, mtu=9000, slot=nic_slots[i], node=nodes[i]) for i in range(8)),
    ]
    sockets = Sockets(8, 16, 2, 2, 256 * GIB, "AMD EPYC 7742 64-Core Processor")
    devices = [(s, n, "0x10de", "0x20b2", "0x030200", 4, 16) for s, n in zip(gpu_slots, nodes, strict=True)] + [
        (s, n, "0x15b3", "0x101d", "0x020000", 4, 16) for s, n in zip(nic_slots, nodes, strict=True)
    ]
    return host(
        "a100-7",
        "10.3.0.7",
        soft=software("535.161.08", "12.2", "2.5.1", "12.1", "2.21.5"),
        sockets=sockets,
        numa=sockets.numa(),
        gpu=gpu,
        devices=pci(devices),
        net=network(interfaces, "10.3.0.1"),
        rdma=rdma,
    )


def gh200() -> facts.HostFacts:
    """One Grace Hopper: 72 CPUs on node 0; the GPU's memory is node 1, nodes 2 to 8 wait empty for MIG instances."""
    slot: Slot = ("pci0009:00", "0009:00:00.0", "0009:01:00.0")
    nic: Slot = ("pci0000:00", "0000:00:00.0", "0000:01:00.0")
    gpu = gpus(4, "NVIDIA GH200 480GB", [slot], [0], memory=102_625_181_696, capability="9.0",
               pcie_gen=4, fabric="not supported", power=900, memory_node=1)  # fmt: skip
    sockets = Sockets(1, 72, 1, 1, 480 * GIB, "Neoverse-V2")
    memory_nodes = tuple(
        facts.NumaNode(
            node=node,
            memory_total=96 * GIB if node == 1 else 0,
            memory_free=95 * GIB if node == 1 else 0,
            distances={0: 80, **{other: 255 for other in range(1, 9) if other != node}},
        )
        for node in range(1, 9)
    )
    grace = msgspec.structs.replace(sockets.numa()[0], distances=dict.fromkeys(range(1, 9), 80))
    base = host(
        "gh200-3",
        "10.4.0.3",
        soft=software("560.35.03", "12.6", "2.6.0", "12.6", "2.21.5", machine="aarch64"),
        sockets=sockets,
        numa=(grace, *memory_nodes),
        gpu=gpu,
        devices=pci(
            [(slot, 0, "0x10de", "0x2342", "0x030200", 4, 16), (nic, 0, "0x15b3", "0x1021", "0x020700", 5, 16)]
        ),
        net=network([ether("enP2p3s0", "10.4.0.3", 24, 10_000)], "10.4.0.1"),
        rdma=(infiniband("mlx5_0", 0, nic, 0),),
    )
    cpus = msgspec.structs.replace(sockets.cpus(), allowed_nodes=tuple(range(9)))
    return msgspec.structs.replace(base, cpus=cpus)


def l40sx4() -> facts.HostFacts:
    """4x L40S on PCIe without NVLink, two per socket; P2P across sockets is refused; Ethernet only, no RDMA."""
    slots: list[Slot] = [
        (f"pci0000:{bus - 1:02x}", f"0000:{bus - 1:02x}:01.1", f"0000:{bus:02x}:00.0")
        for bus in (0x01, 0x41, 0x81, 0xC1)
    ]
    nodes = [0, 0, 1, 1]
    nic: Slot = ("pci0000:a0", "0000:a0:03.1", "0000:a1:00.0")
    gpu = gpus(5, "NVIDIA L40S", slots, nodes, memory=48_305_799_168, capability="8.9",
               pcie_gen=4, fabric="not supported", power=350)  # fmt: skip
    sockets = Sockets(2, 32, 2, 2, 384 * GIB, "AMD EPYC 9354 32-Core Processor")
    devices = [(slot, node, "0x10de", "0x26b9", "0x030200", 4, 16) for slot, node in zip(slots, nodes, strict=True)]
    soft = software("560.35.03", "12.6", "2.6.0", "12.4", "2.21.5")
    return host(
        "l40s-2",
        "10.5.0.2",
        soft=msgspec.structs.replace(soft, nvidia_peermem=False),
        sockets=sockets,
        numa=sockets.numa(),
        gpu=tuple(
            msgspec.structs.replace(
                g, p2p={u: "ok" if nodes[int(u[-1])] == nodes[g.index] else "topology not supported" for u in g.p2p}
            )
            for g in gpu
        ),
        devices=pci([*devices, (nic, 1, "0x14e4", "0x16d7", "0x020000", 3, 8)]),
        net=network([ether("enp161s0f0np0", "10.5.0.2", 24, 25_000, slot=nic, node=1)], "10.5.0.1"),
    )


def efa_h100x8() -> facts.HostFacts:
    """A cloud guest: 8x H100, 32 EFA devices (four beside each GPU) without a network interface of their own."""
    gpu_buses = [0x53 + 0x11 * i for i in range(8)]
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]

    def slot(gpu: int, bus: int) -> Slot:
        switch = gpu_buses[gpu] - 6
        root, down = f"0000:{switch - 1:02x}:00.0", f"0000:{switch:02x}:{bus - switch:02x}.0"
        return (f"pci0000:{switch - 1:02x}", root, down, f"0000:{bus:02x}:00.0")

    gpu_slots = [slot(i, bus) for i, bus in enumerate(gpu_buses)]
    nic_slots = [slot(i, bus - 4 + k) for i, bus in enumerate(gpu_buses) for k in range(4)]
    rdma = tuple(
        facts.RdmaPort(
            device=f"rdmap{int(s[-1][5:7], 16)}s0",
            port=1,
            link_layer="Unknown",
            state="ACTIVE",
            phys_state="LinkUp",
            rate_gbps=100,
            active_mtu=4096,
            lid=0,
            sm_lid=0,
            gids=(facts.Gid(index=0, gid=f"fe80:0000:0000:0000:0000:00ff:fe02:{i:04x}", type="IB/RoCE v1"),),
            pkeys=("0xffff",),
            pci=s[-1],
            numa_node=nodes[i // 4],
            firmware="0.0.0.0",
            node_guid=f"0000:00ff:fe02:{i:04x}",
            uverbs=f"/dev/infiniband/uverbs{i}",
            uverbs_openable=True,
        )
        for i, s in enumerate(nic_slots)
    )
    gpu = gpus(6, "NVIDIA H100 80GB HBM3", gpu_slots, nodes, memory=85_520_809_984, capability="9.0",
               pcie_gen=5, links=18, link_speed=26562)  # fmt: skip
    sockets = Sockets(2, 48, 2, 2, 1024 * GIB, "AMD EPYC 7R13 Processor")
    devices = [(s, n, "0x10de", "0x2330", "0x030200", 5, 16) for s, n in zip(gpu_slots, nodes, strict=True)] + [
        (s, nodes[i // 4], "0x1d0f", "0xefa2", "0x020000", 4, 16) for i, s in enumerate(nic_slots)
    ]
    soft = software("570.133.20", "12.8", "2.7.1", "12.8", "2.26.2")
    return host(
        "ip-10-6-0-4",
        "10.6.0.4",
        soft=msgspec.structs.replace(
            soft,
            hypervisor=True,
            nvidia_peermem=False,
            nccl_net_plugins=("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so",),
        ),
        sockets=sockets,
        numa=sockets.numa(),
        gpu=gpu,
        devices=pci(devices),
        net=network([ether("ens32", "10.6.0.4", 20, -1, mtu=9001)], "10.6.0.1"),
        rdma=rdma,
    )


MACHINES = {
    "h100x8": h100x8,
    "h200x2": h200x2,
    "a100x8_nps4": a100x8_nps4,
    "gh200": gh200,
    "l40sx4": l40sx4,
    "efa_h100x8": efa_h100x8,
}

if __name__ == "__main__":
    for machine, build in MACHINES.items():
        (HERE / f"{machine}.json").write_bytes(facts.to_json(build()) + b"\n")
