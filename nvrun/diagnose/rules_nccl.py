"""What NCCL says when it fails (2.4 to 2.30; message texts as its sources have them), and the net plugins beside it.

Order counts: the first row that matches a line speaks for it.
"""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_NO_SPACE = "Start the container with --shm-size=8g or --ipc=host, or enlarge it: mount -o remount,size=50% /dev/shm"
_ONE_INTERFACE = (
    "Name on each host an interface that reaches the others: NCCL_SOCKET_IFNAME==eth0 (`ip -br addr` lists)"
)
_FABRIC_MANAGER = (
    "systemctl status nvidia-fabricmanager; its version must equal the driver's; in a container expose "
    "/dev/nvidia-caps; NCCL_NVLS_ENABLE=0 lets the job run without NVLink SHARP"
)
_COMPARE = (
    "Compare torch, NCCL and every NCCL_* variable between the hosts, then the order and sizes of the collectives"
)

NCCL_RULES: tuple[Rule, ...] = (
    # interfaces and plugins
    rule(
        "no-socket-interface",
        Stage.SETUP,
        ("no socket interface found", "no interface found", "No IP interface found", "No interface found in the same"),
        "NCCL found no usable network interface: NCCL_SOCKET_IFNAME names one that this host does not have or that has "
        "no address",
        _ONE_INTERFACE,
        0.95,
    ),
    rule(
        "net-plugin-missing",
        Stage.SETUP,
        ("Error: network ",),
        "NCCL_NET asks for the network {net}, but the plugin that brings it was not loaded",
        "Load the plugin (aws-ofi-nccl, HPC-X ...) and put its libnccl-net*.so on LD_LIBRARY_PATH, or unset NCCL_NET",
        0.95,
        pattern=r"Error: network (?P<net>.+?) not found",
    ),
    rule(
        "net-plugin-missing",
        Stage.SETUP,
        ("Failed to initialize any NET plugin", "NET/OFI Unable to find", "aws-ofi-nccl initialization failed"),
        "No network could be started: NCCL_NET or NCCL_NET_PLUGIN names one that cannot run on this host",
        "Look above for `NET/...` lines of that plugin; check /dev/infiniband and the plugin's libraries (ldd)",
        0.85,
    ),
    rule(
        "net-plugin-missing",
        Stage.SETUP,
        ("eligible providers", "suitable provider", "fi_getinfo"),
        "libfabric found no provider that the net plugin can use: the EFA (or Slingshot) driver or library is missing",
        "fi_info -p efa on this host must list devices; pass /dev/infiniband into the container",
        0.8,
        pattern=r"[Nn]o (?:eligible|suitable) provider|fi_getinfo.*(?:fail|error)",
    ),
    # who is in the job
    rule(
        "duplicate-gpu",
        Stage.SETUP,
        ("Duplicate GPU detected", "Multiple Ranks are using the same GPU"),
        "Two ranks use the same GPU ({both}): more ranks than GPUs, no torch.cuda.set_device(LOCAL_RANK), or "
        "two hosts with "
        "one NCCL_HOSTID",
        "Let --nproc-per-node be at most the number of visible GPUs and call torch.cuda.set_device(LOCAL_RANK) before "
        "anything of CUDA",
        0.95,
        pattern=r"Multiple Ranks|Duplicate GPU detected(?: : )?(?P<both>rank \d+ and rank \d+ both on \w+ device \w+)?",
    ),
    rule(
        "nccl-version-differs",
        Stage.SETUP,
        "Mismatched NCCL version detected",
        "The ranks loaded different NCCL versions{ranks}",
        "Use one environment everywhere; look for a second libnccl in LD_LIBRARY_PATH, LD_PRELOAD or the system",
        0.97,
        pattern=r"Mismatched NCCL version detected(?P<ranks>.*)",
    ),
    rule(
        "world-size-differs",
        Stage.SETUP,
        ("mismatch in rank count", "mismatch in info from procs"),
        "The ranks do not agree on the world size",
        "Check WORLD_SIZE, --nnodes and --nproc-per-node on every host; a stale job may share the rendezvous id",
        0.9,
    ),
    rule(
        "rank-twice",
        Stage.SETUP,
        "has already checked in",
        "Rank {rank} came twice: two processes think they are the same rank, or an old job still runs",
        "End what is left of earlier jobs; check --node-rank on every host and use a unique --rdzv-id",
        0.9,
        pattern=r"rank (?P<rank>\d+) of \d+ ranks has already checked in",
    ),
    rule(
        "topology-differs",
        Stage.SETUP,
        ("does not contain rank", "does not loop back to start"),
        "The ranks do not agree on the topology: hosts see another number of GPUs or NICs, or NCCL_* variables differ",
        "Compare nvidia-smi, `rdma link` and the NCCL_* variables between the hosts",
        0.65,
    ),
    rule(
        "nccl-value-invalid",
        Stage.SETUP,
        ("Invalid NCCL_", "XML topology file", "XML graph file", "Could not open XML"),
        "A variable of NCCL has a value that it refuses: {text}",
        "Correct or unset it",
        0.9,
        pattern=r"(?P<text>Invalid NCCL_.*|[^:]*XML .*)",
    ),
    rule(
        "foreign-connection",
        Stage.SETUP,
        ("wrong magic", "magic mismatch", "wrong socket type", "unexpected magic", "received unexpected rank"),
        "Something that is not this job connected to NCCL's port: another job with the same address, or a port scanner",
        "Give each job its own rendezvous id and port range; find the other process with `ss -tnp`",
        0.7,
        pattern=r"NCCL WARN",
    ),
    # memory and devices
    rule(
        "shm-full",
        Stage.HOST,
        ("/dev/shm", "posix_fallocate failed", "shared memory segment", "nccl-shm"),
        "/dev/shm is too small for NCCL's buffers (a container gets 64 MB by default)",
        _NO_SPACE,
        0.95,
        pattern=r"failed to extend /dev/shm|posix_fallocate failed|(?:creating|attaching to) shared memory segment"
        r"|shm.*No space left",
    ),
    rule(
        "shm-unusable",
        Stage.HOST,
        ("shared memory file", "failed to open /dev/shm", "shm_open"),
        "/dev/shm cannot be written: it is missing, read-only, or owned by someone else in this container",
        "ls -ld /dev/shm (must be drwxrwxrwt); --ipc=host or a tmpfs at /dev/shm",
        0.85,
        pattern=r"NCCL WARN|Error|failed",
    ),
    rule(
        "nvls-unusable",
        Stage.HOST,
        ("NVLink SHARP", "NVLS", "ulticast", "nvls.cc"),
        "NVLink SHARP multicast could not be set up: Fabric Manager, NVSwitch state, missing device files of the "
        "container, or another job holding it",
        _FABRIC_MANAGER,
        0.85,
        pattern=r"Failed to bind NVLink SHARP|[Mm]ulticast.*(?:\b401\b|fail|error)|nvls\.cc.*(?:fail|WARN)"
        r"|Cuda failure.*[Mm]ulticast",
    ),
    rule(
        "imex",
        Stage.HOST,
        ("IMEX", "MNNVL (cliqueSize", "imex"),
        "Memory of GPUs in other hosts (multi-node NVLink) cannot be mapped: the IMEX service or its channel "
        "is missing",
        "systemctl status nvidia-imex; /dev/nvidia-caps-imex-channels/channel0 must exist; "
        "NCCL_MNNVL_ENABLE=0 to go on",
        0.85,
        pattern=r"NCCL WARN|fail|error|[Mm]issing|not working",
    ),
    rule(
        "imex",
        Stage.HOST,
        "Cuda failure 800",
        "CUDA may not map memory of another host (800, not permitted): no access to an IMEX channel",
        "/dev/nvidia-caps-imex-channels/channel0 must exist and be readable; NCCL_MNNVL_ENABLE=0 to go on without",
        0.7,
    ),
    rule(
        "nvlink-down",
        Stage.HARDWARE,
        "P2P is disabled between NVLINK connected GPUs",
        "NVLink between two GPUs does not work although they are connected",
        "nvidia-smi nvlink -s and -e; dmesg for Xid 74; reset the GPUs, then have the host serviced",
        0.9,
    ),
    rule(
        "p2p-unusable",
        Stage.HOST,
        ("transport/p2p.cc", "cudaIpcOpenMemHandle", "cudaIpcGetMemHandle"),
        "Memory of one GPU could not be mapped for another: containers of one host that share neither IPC nor devices, "
        "or IOMMU and ACS",
        "--ipc=host and all GPUs in each container; NCCL_P2P_DISABLE=1 shows whether it is that",
        0.65,
        pattern=r"NCCL WARN Cuda failure(?!.*(?:out of memory|illegal|ECC))|cudaIpc\w+.*(?:fail|error)",
    ),
    rule(
        "iommu",
        Stage.HOST,
        ('Missing "iommu=pt"',),
        "The IOMMU translates between the GPUs (iommu=pt is missing): traffic between them is slow or hangs",
        "Boot the kernel with iommu=pt (or turn the IOMMU off)",
        0.6,
    ),
    rule(
        "no-transport",
        Stage.SETUP,
        ("No transport found for rank", "Could not find any local path", "Could not find a path for pattern"),
        "Two ranks have no way to talk: P2P and shared memory are off or split by containers, and no network was found",
        "Remove NCCL_P2P_DISABLE and NCCL_SHM_DISABLE; containers of one host need --ipc=host; name a NIC",
        0.85,
    ),
    # variables
    rule(
        "nccl-algo-unusable",
        Stage.SETUP,
        (
            "Unrecognized element token",
            "Unrecognized prefix token",
            "All entries except the first must have a prefix",
            "o algorithm/protocol available for function",
        ),
        "NCCL_ALGO or NCCL_PROTO has a value that NCCL cannot use: {what}",
        "Unset it, or write it as `allreduce:tree,ring` (2.24 and later; every collective needs one that is left)",
        0.95,
        pattern=r"(?P<what>(?:Unrecognized|All entries|[Nn]o algorithm/protocol).*)",
    ),
    rule(
        "nccl-buffer-tiny",
        Stage.SETUP,
        "NCCL_BUFFSIZE set by environment",
        "NCCL_BUFFSIZE was read as {bytes} bytes: NCCL knows no unit suffixes, and the job hangs or crashes with that",
        "Write it in bytes: NCCL_BUFFSIZE=4194304",
        0.9,
        pattern=r"NCCL_BUFFSIZE set by environment to (?P<bytes>\d{1,5})\.?$",
        subject="NCCL_BUFFSIZE",
        at_info=True,
    ),
    # ranks that do not fit together
    rule(
        "ranks-disagree",
        Stage.PROGRAM,
        (
            "essage truncated",
            "incorrect receive info",
            "collective mismatch error",
            "ismatched collective",
            "bytes instead of",
        ),
        "Ranks do not run the same collective with the same size: another call order, other shapes, or another NCCL "
        "version or variable on one of them",
        _COMPARE,
        0.85,
    ),
    rule(
        "nccl-call-wrong",
        Stage.PROGRAM,
        (
            "invalid root",
            "invalid type",
            "invalid reduction",
            "is not a valid pointer",
            "with NCCL device",
            "Invalid rank",
        ),
        "A call to NCCL has a wrong argument: {text}",
        "Check the tensor's device (torch.cuda.set_device(LOCAL_RANK) first), root and rank of that call",
        0.85,
        pattern=r"NCCL WARN (?P<text>.*)",
    ),
    # out of GPU memory inside NCCL
    rule(
        "gpu-out-of-memory",
        Stage.PROGRAM,
        ("uda failure", "Failed to CUDA calloc", "Failed to CUDA malloc", "HIP failure"),
        "GPU memory was used up before NCCL could allocate its buffers",
        "Leave 1 to 2 GB free (vLLM: lower gpu_memory_utilization; smaller batch), create fewer process "
        "groups, or make "
        "the first collective before loading the model",
        0.9,
        pattern=r"failure (?:\d+ )?'?out of memory|Failed to CUDA [cm]alloc",
    ),
    # the wire
    rule(
        "peer-not-listening",
        Stage.NETWORK,
        ("exceeded error retry count", "exceeded retries"),
        "A peer never answered on NCCL's port: its process is gone, a firewall closes the port, or the "
        "interface is wrong",
        "Open the ephemeral ports between the hosts (net.ipv4.ip_local_port_range), and check which address "
        "the line names",
        0.75,
    ),
    rule(
        "peer-not-listening",
        Stage.NETWORK,
        "Connection refused, retrying (",
        "A peer has not been listening for many tries: its process is late or gone, or its port is closed",
        "Look at the log of the host with that address",
        0.5,
        pattern=r"retrying \((?:1\d|2\d|3\d)/",
        at_info=True,
    ),
    rule(
        "peer-gone",
        Stage.CONSEQUENCE,
        ("Connection closed by remote peer", "remote process exited", "ncclRemoteError"),
        "A connection was closed by a process that ended before: look for the earliest failure elsewhere",
        "",
        0.95,
    ),
    rule(
        "too-many-open-files",
        Stage.HOST,
        "Too many open files",
        "The limit of open files is too small for the connections of this job",
        "ulimit -n 65536 (LimitNOFILE= in the service that starts the job)",
        0.95,
    ),
)
"""Rows for what NCCL itself reports, with its cause."""

NCCL_LAST_RULES: tuple[Rule, ...] = (
    rule(
        "nccl-error-unexplained",
        Stage.SYMPTOM,
        ("unhandled system error", "ncclSystemError"),
        "NCCL failed in a system call (sockets, shared memory, verbs); a WARN line of the same process says which",
        "Run again with NCCL_DEBUG=INFO if there is no WARN line",
        0.4,
    ),
    rule(
        "nccl-error-unexplained",
        Stage.SYMPTOM,
        ("unhandled cuda error", "ncclUnhandledCudaError"),
        "NCCL failed in a CUDA call; a WARN line of the same process says which",
        "Run again with NCCL_DEBUG=INFO if there is no WARN line",
        0.4,
    ),
    rule(
        "nccl-error-unexplained",
        Stage.SYMPTOM,
        (
            "ncclInternalError",
            "internal error - please report",
            "ncclInvalidUsage",
            "ncclInvalidArgument",
            "NCCL error",
        ),
        "NCCL refused or failed a call; a WARN line of the same process says why",
        "Run again with NCCL_DEBUG=INFO if there is no WARN line",
        0.4,
    ),
    rule(
        "nccl-warning",
        Stage.SYMPTOM,
        "NCCL WARN",
        "NCCL warned: {text}",
        "Run again with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH to see what led to it",
        0.3,
        pattern=r"NCCL WARN (?P<text>\S.*)",
    ),
)
"""NCCL's general errors: tried after every other table, since they do not say why."""
