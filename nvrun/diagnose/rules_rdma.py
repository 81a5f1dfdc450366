"""What NCCL and its plugins say about InfiniBand, RoCE and EFA.

Completion statuses are those of verbs; NCCL has written them as `error 12`, `status=12` and
`status=IBV_WC_RETRY_EXC_ERR(12)`.
"""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_MEMLOCK = (
    "Raise the limit where the job is started: LimitMEMLOCK=infinity in the systemd unit (slurmd, sshd, docker), "
    "--ulimit memlock=-1 for a container; `ulimit -l` must say unlimited"
)

RDMA_RULES: tuple[Rule, ...] = (
    rule(
        "roce-gid-wrong",
        Stage.SETUP,
        "ibv_modify_qp",
        "The RoCE GID index is wrong: the entry does not exist, or the peer has another type at it",
        "Unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose it); before that find the RoCE v2 IPv4 entry "
        "with show_gids",
        0.85,
        pattern=r"ibv_modify_qp failed with (?:error )?(?:22|61|Invalid argument|No data available)\b",
    ),
    rule(
        "rdma-no-path",
        Stage.NETWORK,
        "ibv_modify_qp",
        "No RDMA path to the peer: rails that are not connected with each other, or no ARP answer on a RoCE network",
        "NCCL_CROSS_NIC=0 where rails are separate; ping from NIC to NIC by address (`ping -I`); check VLAN and subnet",
        0.7,
        pattern=r"ibv_modify_qp failed with (?:error )?(?:110|Connection timed out|113|No route)",
    ),
    rule(
        "memlock-limit",
        Stage.HOST,
        ("ibv_", "NET/OFI", "fi_mr_reg"),
        "Memory could not be pinned for RDMA: the locked-memory limit (ulimit -l) of the job is too small",
        _MEMLOCK,
        0.9,
        pattern=r"(?:ibv_reg_\w*mr\w*|ibv_create_\w+|ibv_alloc_pd|fi_mr_reg\w*|register memory)\b"
        r".*(?:Cannot allocate memory|\b12\b|ENOMEM)",
    ),
    rule(
        "gpu-memory-not-registered",
        Stage.HOST,
        "ibv_reg_",
        "The NIC could not register GPU memory: nvidia_peermem is not loaded or DMA-BUF does not work here",
        "modprobe nvidia_peermem on this host; NCCL_NET_GDR_LEVEL=LOC to run without GPUDirect RDMA until then",
        0.75,
        pattern=r"ibv_reg_\w*mr\w* failed",
    ),
    rule(
        "mixed-link-layers",
        Stage.SETUP,
        ("incompatible devices", "device is incompatible"),
        "InfiniBand and RoCE ports are mixed between the ranks",
        "List the ports of one kind on every host: NCCL_IB_HCA==mlx5_0,mlx5_1,...",
        0.9,
    ),
    rule(
        "rdma-device-closed",
        Stage.HOST,
        ("Unable to open device", "Could not open device", "Failed to open device"),
        "An RDMA device cannot be opened: /dev/infiniband is missing in the container, or its permissions forbid it",
        "Pass --device=/dev/infiniband (Kubernetes: the RDMA device plugin) and check permissions of uverbs*",
        0.85,
        pattern=r"(?:NET/IB|NCCL WARN|ibv|mlx)",
    ),
    rule(
        "link-down",
        Stage.HARDWARE,
        ("async fatal event", "async event", "Got async event"),
        "The link of an RDMA port failed or flaps ({event}): cable, transceiver or switch port",
        "ibstat and the switch's counters (link_downed, symbol errors); reseat or replace the cable of that port",
        0.9,
        pattern=r"NET/\w+ ?: (?P<port>[\w.-]+:\d+|)\b.*?"
        r"(?P<event>port error|link down|local catastrophic error|device fatal|(?<!non-)fatal event[^.]*)",
        subject="{port}",
    ),
    rule(
        "gid-table-changed",
        Stage.SETUP,
        ("GID table change", "gid table change"),
        "The GID table changed while the job ran: an interface lost or got an address (DHCP, netplan, bond)",
        "Keep addresses fixed during jobs and leave NCCL_IB_GID_INDEX unset",
        0.7,
    ),
    rule(
        "rdma-no-answer",
        Stage.NETWORK,
        ("Got completion", "error 12", "IBV_WC_RETRY_EXC", "vendor err 129"),
        "A peer stopped answering over RDMA (status 12, retries used up): wrong RoCE GID or priority, a link or NIC on "
        "another fabric, or the peer died",
        "Look whether that peer died first; then unset NCCL_IB_GID_INDEX on 2.21+, check cabling of the named HCA and "
        "that all NICs of NCCL_IB_HCA are on one fabric",
        0.7,
        pattern=r"(?:error |status=)(?:IBV_WC_RETRY_EXC_ERR\()?12\b|IBV_WC_RETRY_EXC|vendor err 129",
    ),
    rule(
        "rdma-flushed",
        Stage.CONSEQUENCE,
        ("Got completion", "IBV_WC_WR_FLUSH"),
        "Requests were flushed (status 5) because the queue had already failed: look at the first error before it",
        "",
        0.9,
        pattern=r"(?:error |status=)(?:IBV_WC_WR_FLUSH_ERR\()?5\b|IBV_WC_WR_FLUSH",
    ),
    rule(
        "rdma-memory-protection",
        Stage.HOST,
        "Got completion",
        "The NIC was refused access to memory (status {status}): GPUDirect RDMA is broken by ACS, IOMMU or peermem",
        "Try NCCL_NET_GDR_LEVEL=LOC; if that works: turn ACS off on the PCIe switches, iommu=pt, reload nvidia_peermem",
        0.75,
        pattern=r"(?:error |status=)(?:IBV_WC_\w+\()?(?P<status>4|9|10|11)\b",
    ),
    rule(
        "rdma-length",
        Stage.PROGRAM,
        "Got completion",
        "A message was longer than its buffer (status 1): ranks disagree on sizes, or the MTU differs between hosts",
        "Compare the order and sizes of the collectives between the ranks, and active_mtu of the ports",
        0.6,
        pattern=r"(?:error |status=)(?:IBV_WC_LOC_LEN_ERR\()?1\b",
    ),
    rule(
        "rdma-receiver-not-ready",
        Stage.NETWORK,
        "Got completion",
        "The peer did not take messages in time (status 13): it is overloaded, stopped or died",
        "Look at the peer's own log and state first",
        0.6,
        pattern=r"(?:error |status=)(?:IBV_WC_RNR_RETRY_EXC_ERR\()?13\b",
    ),
    rule(
        "efa-no-answer",
        Stage.NETWORK,
        "NET/OFI",
        "A request of the libfabric plugin failed: the peer died or cannot be reached (on EFA the security group must "
        "allow all traffic within itself, in and out)",
        "Look whether that peer died first; then fi_pingpong between the two hosts",
        0.65,
        pattern=r"completed with error|nresponsive receiver|nreachable remote|address vector|open AV",
    ),
)
