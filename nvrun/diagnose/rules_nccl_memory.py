"""What NCCL says about memory: shared memory, peer access, NVLink SHARP, memory of other hosts, its own buffers."""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_NO_SPACE = "Start the container with --shm-size=8g or --ipc=host, or enlarge it: mount -o remount,size=50% /dev/shm"
_FABRIC_MANAGER = (
    "systemctl status nvidia-fabricmanager; its version must equal the driver's; in a container expose "
    "/dev/nvidia-caps; NCCL_NVLS_ENABLE=0 lets the job run without NVLink SHARP"
)

NCCL_MEMORY_RULES: tuple[Rule, ...] = (
    rule(
        "shm-not-shared",
        Stage.SETUP,
        "shared memory segment",
        "Two ranks that NCCL takes to be on one host do not see the same /dev/shm: separate containers, or two hosts "
        "with equal names or NCCL_HOSTID",
        "--ipc=host (or one shared /dev/shm) for the containers of a host; a different NCCL_HOSTID for each host",
        0.8,
        pattern=r"attaching to shared memory segment.*No such file|open shared memory segment.*No such file",
    ),
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
)
