"""Failing cases for GPUs in depth, RDMA, the network and the system; see cases.py."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.checks import Job
from nvrun.facts import Filesystem, Gid, HostFacts, Interface, Listener, Process, Xid
from tests.checks.cases import ERROR, FATAL, INFO, WARNING, Case, both, every, one
from tests.checks.fleets import Change, gpu, machine, port, section, with_

H100 = machine("h100x8")
GPUS = H100.gpus or ()
MAIN = "eno1"


def links(index: int, **changes: object) -> Change:
    """Changes link 5 of a GPU."""
    nvlinks = tuple(with_(link, **changes) if link.link == 5 else link for link in GPUS[index].nvlinks)
    return gpu(index, nvlinks=nvlinks)


def no_p2p(known: HostFacts) -> HostFacts:
    first, second = (known.gpus or ())[:2]
    return gpu(0, p2p={**first.p2p, second.uuid: "disabled by registry key"})(known)


def interface(name: str, **changes: object) -> Change:
    def change(known: HostFacts) -> HostFacts:
        assert known.network
        there = tuple(with_(i, **changes) if i.name == name else i for i in known.network.interfaces)
        return section("network", interfaces=there)(known)

    return change


def first_interface(known: HostFacts) -> Interface:
    assert known.network
    return next(i for i in known.network.interfaces if i.kind != "loopback" and i.up)


def sysctl(**changes: str) -> Change:
    values: Mapping[str, str] = {name.replace("__", "."): value for name, value in changes.items()}
    return lambda known: section("network", sysctls={**known.network.sysctls, **values})(known)  # type: ignore[union-attr]


def disk(path: str = "/tmp", **changes: object) -> Change:
    def change(known: HostFacts) -> HostFacts:
        kept = tuple(place for place in known.filesystems or () if place.path != path)
        place = Filesystem(path=path, type="ext4", total_bytes=1 << 40, free_bytes=1 << 39, writable=True)
        found: HostFacts = with_(known, filesystems=(*kept, with_(place, **changes)))
        return found

    return change


def nic_pci(**changes: object) -> Change:
    """Changes the PCI link of mlx5_0."""
    address = next(p.pci for p in H100.rdma or () if p.device == "mlx5_0")
    return lambda known: with_(
        known, pci=tuple(with_(d, **changes) if d.address == address else d for d in known.pci or ())
    )


def all_ports(**changes: object) -> Change:
    return lambda known: with_(known, rdma=tuple(with_(p, **changes) for p in known.rdma or ()))


def roce(device: str, **changes: object) -> Change:
    """Changes the Ethernet interface of an RDMA device."""

    def change(known: HostFacts) -> HostFacts:
        netdev = next(p.netdev for p in known.rdma or () if p.device == device)
        return interface(netdev or "", rdma_device=device, **changes)(known)

    return change


def moved(known: HostFacts) -> HostFacts:
    """Another mask on the interface of the plan."""
    there = first_interface(known)
    narrow = tuple(with_(a, prefix=28) if "." in a.address else a for a in there.addresses if a.scope == "global")
    return interface(there.name, addresses=narrow)(known)


def same_address(known: HostFacts) -> HostFacts:
    """The address of n01, which the names on all hosts still know as n01's."""
    there = first_interface(known)
    extra = with_(there.addresses[0], address=there.addresses[0].address.rpartition(".")[0] + ".101")
    return interface(there.name, addresses=(*there.addresses, extra))(known)


def second_interface(known: HostFacts) -> HostFacts:
    assert known.network
    there = first_interface(known)
    near = with_(there.addresses[0], address=there.addresses[0].address.rpartition(".")[0] + ".250")
    other = with_(there, name="eth9", addresses=(near,))
    return section("network", interfaces=(*known.network.interfaces, other))(known)


def process(**fields: object) -> Change:
    return lambda known: with_(known, processes=(Process(**{"pid": 7, "command": "x", **fields}),))  # type: ignore[arg-type]


def xid(code: int, text: str = "GPU has fallen off the bus") -> Change:
    line = f"NVRM: Xid (PCI:{GPUS[3].pci}): {code}, {text}"
    return lambda known: with_(known, xids=(Xid(code=code, pci=GPUS[3].pci, at=1.0, text=line),))


def sxid(how: str) -> Change:
    line = f"nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 20034, {how}, Link 30 LTSSM Fault Up"
    return lambda known: with_(known, xids=(Xid(code=20034, pci="0000:c3:00.0", at=1.0, text=line, nvswitch=True),))


DSCP = {dscp: dscp >> 3 for dscp in range(64)}
LOSSLESS = both(*(roce(f"mlx5_{n}", pfc_priorities=(3,), dscp_priorities=DSCP, ecn_priorities=(3,)) for n in range(8)))
OVER_MAIN = Job(interfaces={f"n0{n}": MAIN for n in (1, 2, 3)})
ROUTABLE = (Gid(index=3, gid="0000:0000:0000:0000:0000:ffff:0a01:000b", type="RoCE v2"),)
TCP = Job(rdma={})
PORT = Job(port=29500, run_id="run1")

CASES = [
    # gpu_health
    Case("gpu-ecc-errors", ERROR, "h100x8", one(gpu(3, ecc_uncorrected_volatile=2)), words="GPU 3"),
    Case("gpu-ecc-off", WARNING, "h100x8", one(gpu(3, ecc_enabled=False))),
    Case("gpu-remap-pending", ERROR, "h100x8", one(gpu(3, remap_pending=True))),
    Case("gpu-remap-failed", ERROR, "h100x8", one(gpu(3, remap_failed=True))),
    Case("gpu-recovery-needed", ERROR, "h100x8", one(gpu(3, recovery_action="reset")), words="reset"),
    Case("gpu-throttled", ERROR, "h100x8", one(gpu(3, throttle_reasons=("idle", "power brake")))),
    Case("gpu-throttled", WARNING, "h100x8", one(gpu(3, throttle_reasons=("software thermal",)))),
    Case("gpu-power-limited", WARNING, "h100x8", one(gpu(3, power_limit_w=500.0))),
    Case("gpu-clock-differs", WARNING, "h100x8", one(gpu(3, sm_clock_max_mhz=1400))),
    Case("gpu-pcie-narrow", ERROR, "h100x8", one(gpu(3, pcie_width=8)), words="8 PCIe lanes of 16"),
    Case("gpu-persistence-off", INFO, "h100x8", one(gpu(3, persistence=False))),
    Case("gpu-xid", ERROR, "h100x8", one(xid(79)), words="Xid 79"),
    Case("gpu-xid", WARNING, "h100x8", one(xid(119, "Timeout after 6s of waiting for RPC response"))),
    Case("gpu-xid", WARNING, "h100x8", one(both(
        gpu(3, recovery_action=None), xid(94, "Contained: CE User Channel (0x9). RST: No, D-RST: No")))),
    # gpu_links
    Case("nvswitch-error", ERROR, "h100x8", one(both(*(gpu(n, recovery_action=None) for n in range(8)), sxid("Fatal"))),
         words="NVSwitch 0000:c3:00.0 had a fatal error, SXid 20034"),
    Case("nvswitch-error", WARNING, "h100x8", one(sxid("Fatal"))),
    Case("nvlink-down", ERROR, "h100x8", one(links(3, active=False)), words="17 NVLinks of 18: 5 down"),
    Case("nvlink-slow", WARNING, "h100x8", one(links(3, speed_mb_s=12000))),
    Case("nvlink-differs", ERROR, "h100x8", one(lambda known: with_(
        known, gpus=tuple(with_(g, nvlinks=g.nvlinks[:12]) for g in known.gpus or ())))),
    Case("gpu-p2p-off", ERROR, "h100x8", one(no_p2p), words="GPUs 0-1"),
    Case("fabric-not-ready", FATAL, "h100x8", one(gpu(3, fabric_state="in progress"))),
    Case("fabric-not-ready", FATAL, "h100x8", one(gpu(3, fabric_status="unknown error"))),
    Case("fabric-unhealthy", WARNING, "h100x8", one(gpu(3, fabric_health={"degraded bandwidth": "yes"}))),
    Case("fabric-unhealthy", ERROR, "h100x8", one(gpu(3, fabric_health={"route unhealthy": "yes"}))),
    Case("imex-channel-missing", WARNING, "gh200", every(gpu(0, fabric_clique="ab.1")), host="n01"),
    # rdma
    Case("rdma-port-down", FATAL, "h100x8", one(port("mlx5_4", state="DOWN", phys_state="Polling")), words="no signal"),
    Case("rdma-port-down", FATAL, "h100x8", one(port("mlx5_4", state="INIT")), words="subnet manager"),
    Case("rdma-rate-low", ERROR, "h100x8", one(port("mlx5_4", rate_gbps=100.0)), words="mlx5_4:1: 100"),
    Case("rdma-rate-low", ERROR, "h100x8", one(all_ports(rate_gbps=200.0)), words="200 Gb/s"),
    Case("rdma-mtu-differs", ERROR, "h100x8", one(port("mlx5_4", active_mtu=2048))),
    Case("rdma-mtu-low", WARNING, "h100x8", every(all_ports(active_mtu=2048)), host=None),
    Case("rdma-ports-differ", FATAL, "h100x8",
         one(lambda known: with_(known, rdma=tuple(p for p in known.rdma or () if p.device != "mlx5_4")))),
    Case("roce-gid-missing", FATAL, "a100x8_nps4", one(port("mlx5_0",
         gids=(Gid(index=0, gid="fe80:0000:0000:0000:0000:00ff:fe01:0001", type="RoCE v2"),))), words="link-local"),
    Case("pkey-not-shared", FATAL, "h100x8", one(all_ports(pkeys=("0x7fff", "0x8001")))),
    Case("rdma-firmware-differs", WARNING, "h100x8", one(port("mlx5_4", firmware="28.30.0001"))),
    Case("rdma-guid-twice", FATAL, "h100x8", {"n01": port("mlx5_4", node_guid="0000:1111:2222:3333"),
         "n02": port("mlx5_4", node_guid="0000:1111:2222:3333")}, host=None),
    Case("rdma-errors", INFO, "h100x8", one(port("mlx5_4", counters={"symbol_error": 5000}))),
    Case("rdma-device-closed", FATAL, "h100x8", one(port("mlx5_4", uverbs_openable=False))),
    Case("gpudirect-differs", ERROR, "h100x8", one(section("software", nvidia_peermem=False))),
    Case("nic-pcie-narrow", ERROR, "h100x8", one(nic_pci(link_width=8)), words="8 PCIe lanes of 16"),
    Case("nic-pcie-narrow", WARNING, "h100x8", one(nic_pci(link_speed_gt_s=16.0))),
    # roce
    Case("roce-class-differs", ERROR, "a100x8_nps4", one(all_ports(traffic_class=106))),
    Case("roce-flow-control-missing", WARNING, "a100x8_nps4", one(roce("mlx5_0", pfc_priorities=())), words="PFC on"),
    Case("roce-flow-control-missing", WARNING, "a100x8_nps4", one(roce("mlx5_0", ecn_priorities=())), words="ECN"),
    Case("roce-class-lossy", WARNING, "a100x8_nps4", one(roce("mlx5_0", pfc_priorities=(3,), dscp_priorities=DSCP)),
         words="NCCL_IB_TC 0 (unset), DSCP 0, is priority 0 on ens10f0np0; PFC is on 3"),
    Case("roce-class-lossy", WARNING, "a100x8_nps4", every(both(
         all_ports(traffic_class=106), roce("mlx5_0", pfc_priorities=(3,)))), words="DSCP 26, is priority 0"),
    Case("roce-ecn-off", INFO, "a100x8_nps4", every(both(all_ports(traffic_class=106), roce(
         "mlx5_0", pfc_priorities=(3,), dscp_priorities=DSCP, ecn_priorities=(0,))))),
    Case("roce-global-pause", INFO, "a100x8_nps4", one(roce("mlx5_0", pfc_priorities=(), global_pause=True))),
    Case("roce-flow-control-differs", ERROR, "a100x8_nps4", {**every(both(all_ports(traffic_class=106), LOSSLESS)),
         "n02": both(all_ports(traffic_class=106), LOSSLESS, roce("mlx5_4", pfc_priorities=(3, 4)))}, words="3, 4"),
    # network
    Case("mtu-differs", ERROR, "h100x8", {**every(all_ports(link_layer="Ethernet", netdev=MAIN, gids=ROUTABLE)),
         "n02": both(all_ports(link_layer="Ethernet", netdev=MAIN, gids=ROUTABLE), interface(MAIN, mtu=1400))}),
    Case("mtu-differs", WARNING, "h100x8", one(interface(MAIN, mtu=1400)), words="1400"),
    Case("interface-slow", WARNING, "h100x8", one(interface(MAIN, speed_mbit=1000)), words="1 Gb/s"),
    Case("subnet-differs", WARNING, "h100x8", one(moved), job=OVER_MAIN, words="/28"),
    Case("address-twice", FATAL, "h100x8", one(same_address), host=None, job=OVER_MAIN, words="n[01-02]"),
    Case("subnet-twice", WARNING, "h100x8", one(second_interface)),
    Case("port-ephemeral", WARNING, "cpu_host", every(section("network", ephemeral_range=(1024, 65535))), host="n01",
         job=PORT),
    Case("port-taken", FATAL, "cpu_host", every(lambda known: with_(known, listeners=(
        Listener(port=29500, pid=99, command="python old.py", user="ann"),))), host="n01", job=PORT, words="old.py"),
    Case("neighbour-table-small", WARNING, "cpu_host", one(sysctl(net__ipv4__neigh__default__gc_thresh3="4"))),
    Case("somaxconn-small", WARNING, "h100x8", every(section("network", somaxconn=8)), host="n01"),
    Case("somaxconn-small", ERROR, "h100x8", every(section("network", somaxconn=5)), host="n01"),
    Case("packets-dropped", WARNING, "h100x8", one(section("network", softnet_dropped=500_000)), job=TCP),
    Case("receive-on-one-cpu", INFO, "h100x8", one(interface(MAIN, rx_queues=1, rps_cpus="00")), job=TCP),
    Case("socket-buffers-small", WARNING, "h100x8", {
        **every(interface(MAIN, speed_mbit=100_000)),
        "n02": both(interface(MAIN, speed_mbit=100_000), sysctl(net__ipv4__tcp_rmem="4096 131072 6291456"))}, job=TCP),
    Case("conntrack-full", WARNING, "cpu_host", one(
        sysctl(net__netfilter__nf_conntrack_count="95", net__netfilter__nf_conntrack_max="100"))),
    # fabric
    Case("fabric-slower-than-possible", WARNING, "h100x8",
         every(lambda known: with_(known, env={"NCCL_IB_DISABLE": "1"})), host=None, words="NCCL_IB_DISABLE=1"),
    Case("fabric-slower-than-possible", WARNING, "h100x8",
         every(lambda known: with_(known, env={"NCCL_IB_DISABLE": "0x2"})), host=None, words="NCCL_IB_DISABLE=0x2"),
    Case("fabric-slower-than-possible", WARNING, "h100x8", every(lambda known: with_(known, rdma=())), host=None,
         words="at 200 Gb/s"),
    # system
    Case("disk-full", ERROR, "cpu_host", one(disk(free_bytes=1 << 16))),
    Case("disk-full", ERROR, "cpu_host", one(disk(free_inodes=0)), words="inodes"),
    Case("disk-full", WARNING, "cpu_host", one(disk(free_bytes=1 << 30))),
    Case("folder-not-writable", ERROR, "cpu_host", one(disk(writable=False))),
    Case("folder-not-writable", WARNING, "cpu_host", one(disk("/home/a/.triton", readonly=True))),
    Case("filesystem-hung", ERROR, "cpu_host", one(disk("/data", error="no answer in 2 s"))),
    Case("cache-noexec", WARNING, "cpu_host", one(disk("/tmp", noexec=True))),
    Case("cache-on-network", INFO, "cpu_host", one(disk("/home/a/.triton", type="nfs4"))),
    Case("memory-low", WARNING, "cpu_host", one(section("memory", available_bytes=1 << 28))),
    Case("memory-node-low", WARNING, "h100x8", one(lambda known: with_(
        known, numa=tuple(with_(n, memory_free=1 << 30) for n in known.numa or ()))), job=Job(binds_memory=True)),
    Case("governor-differs", WARNING, "h100x8", one(section("cpus", governor="powersave"))),
    Case("numa-balancing-on", INFO, "h100x8", one(section("memory", numa_balancing="1")), job=Job(binds_memory=True)),
    Case("thp-differs", INFO, "h100x8", one(section("memory", thp="always"))),
    Case("process-stuck", INFO, "cpu_host", one(process(command="nvidia-smi", state="D"))),
    Case("run-beside", INFO, "cpu_host", one(process(run_mark="run0.1")), job=PORT, words="run0"),
    Case("env-differs", WARNING, "cpu_host", one(lambda known: with_(known, env={"NCCL_IB_TIMEOUT": "22"}))),
    Case("nccl-conf-differs", ERROR, "cpu_host", one(
        lambda known: with_(known, conf_files={"/etc/nccl.conf": "NCCL_IB_DISABLE=1\n"})), words="/etc/nccl.conf"),
]  # fmt: skip
