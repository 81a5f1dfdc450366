"""What CUDA, its driver and the math libraries say, in the words of the runtime, the driver, NCCL and torch.

CUDA's error texts are the same whoever prints them (`CUDA error: X`, `Cuda failure 'X'`), so rows look for the text.
"""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_NOT_NONE = r"(?!(?:s|\(s\))?(?:\s+(?:errors?|counts?))*(?:\s*[:=]\s*|(?<=[st])\s+)0\b)"
"""Behind what is counted. Health reports of a job write counters, and most of them are 0; another on the same line says
nothing of this one."""
_ECC = rf"(?<!\b0 )(?:uncorrect(?:able|ed) ECC|(?<!correctable )(?<!corrected )ECC error){_NOT_NONE}"
_NVLINK = rf"(?<!\b0 )(?:uncorrectable NVLink|(?<!correctable )(?i:nvlink) error){_NOT_NONE}"

CUDA_RULES: tuple[Rule, ...] = (
    rule(
        "gpu-out-of-memory",
        Stage.PROGRAM,
        ("out of memory", "OutOfMemoryError", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA_ERROR_OUT_OF_MEMORY"),
        "The GPU's memory was used up{size}",
        "Smaller batch or activation checkpointing; PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9 "
        "PYTORCH_CUDA_ALLOC_CONF) if much is reserved but unallocated; nvidia-smi for other processes on that GPU",
        0.95,
        pattern=r"(?:.*(?:CUDA|HIP|cuda|GPU).*out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUDA_ERROR_OUT_OF_MEMORY)(?P<size>\. Tried to allocate [\d.]+ \w+|)",
    ),
    rule(
        "gpu-ecc",
        Stage.HARDWARE,
        ("uncorrectable ECC", "ECC error", "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        "A GPU's memory has an uncorrectable ECC error",
        "nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU (or reboot) to remap the row, replace it if that fails",
        0.95,
        pattern=rf"{_ECC}|ECCUncorrectable|ECC_UNCORRECTABLE",
    ),
    rule(
        "nvlink-error",
        Stage.HARDWARE,
        ("uncorrectable NVLink", "nvlink error", "NVLink error", "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
        "An NVLink had an uncorrectable error",
        "nvidia-smi nvlink -e; dmesg for Xid 74 or 144 to 150; reset the GPUs of that host",
        0.9,
        pattern=rf"{_NVLINK}|NVLINK_UNCORRECTABLE",
    ),
    rule(
        "fabric-manager-down",
        Stage.HOST,
        (
            "system not yet initialized",
            "cudaErrorSystemNotReady",
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "Error 802",
            "error 802",
        ),
        "NVSwitch is not set up (CUDA 802): Fabric Manager is not running, or its version is not the driver's",
        "systemctl enable --now nvidia-fabricmanager, of exactly the driver's version (`nvidia-smi -q | grep "
        "-A2 Fabric`)",
        0.95,
    ),
    rule(
        "driver-mismatch",
        Stage.HOST,
        (
            "Driver/library version mismatch",
            "unsupported display driver / cuda driver combination",
            "API mismatch",
            "cudaErrorSystemDriverMismatch",
            "Error 803",
        ),
        "The NVIDIA libraries and the loaded kernel module are of different versions, as after an update "
        "without reboot",
        "Reboot, or unload and load the nvidia modules; in a container: remove its own libcuda.so",
        0.95,
    ),
    rule(
        "driver-too-old",
        Stage.HOST,
        (
            "driver version is insufficient",
            "NVIDIA driver on your system is too old",
            "cudaErrorInsufficientDriver",
            "forward compatibility was attempted",
            "unsupported toolchain",
            "not supported in the installed CUDA driver",
            "no kernel image is available",
        ),
        "The driver or the GPU does not fit the CUDA version that this program was built for",
        "Update the driver, or install a torch built for this CUDA version and this GPU (torch.cuda.get_arch_list())",
        0.9,
    ),
    rule(
        "gpu-invisible",
        Stage.HOST,
        (
            "no CUDA-capable device",
            "No CUDA GPUs are available",
            "Failed to initialize NVML",
            "couldn't communicate with the NVIDIA driver",
            "NVML: Unknown Error",
            "Found no NVIDIA driver",
            "CUDA driver initialization failed",
            "Failed to open libnvidia-ml",
        ),
        "No GPU can be seen: driver not loaded, container started without GPUs, or CUDA_VISIBLE_DEVICES hides them all",
        "nvidia-smi in the job's own container and allocation; --gpus all; ask Slurm for GPUs (--gpus-per-node)",
        0.9,
    ),
    rule(
        "gpu-ordinal",
        Stage.SETUP,
        ("invalid device ordinal", "cudaErrorInvalidDevice"),
        "A rank asked for a GPU that it cannot see: more ranks than visible GPUs, or one GPU per task by Slurm",
        "--nproc-per-node at most the visible GPUs; under Slurm use --gpus-per-node instead of --gpus-per-task",
        0.95,
    ),
    rule(
        "gpu-busy",
        Stage.HOST,
        ("devices are busy or unavailable", "device(s) is/are busy", "cudaErrorDevicesUnavailable", "exclusive"),
        "The GPU cannot be used: another process holds it in exclusive mode, or it is in an error state",
        "nvidia-smi for processes and compute mode; end what is left of earlier jobs; reset the GPU",
        0.85,
        pattern=r"busy or unavailable|is/are busy|cudaErrorDevicesUnavailable"
        r"|exclusive-(?:thread|process) device",
    ),
    rule(
        "gpu-lost",
        Stage.HARDWARE,
        (
            "GPU is lost",
            "fallen off the bus",
            "cudaErrorUnknown",
            "Unable to determine the device handle",
            "No devices were found",
        ),
        "A GPU is lost: the driver cannot reach it any more",
        "dmesg for its Xid; reboot; have the host serviced if it comes back",
        0.85,
    ),
    rule(
        "illegal-access",
        Stage.PROGRAM,
        (
            "illegal memory access",
            "misaligned address",
            "unspecified launch failure",
            "illegal instruction was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "invalid program counter",
        ),
        "A kernel of the program accessed GPU memory that is not its own: a bug in a kernel or an index, "
        "rarely hardware",
        "CUDA_LAUNCH_BLOCKING=1 shows the true line; compute-sanitizer finds the kernel; dmesg for an Xid of that GPU",
        0.85,
    ),
    rule(
        "device-assert",
        Stage.PROGRAM,
        ("device-side assert", "index out of bounds", "Assertion `"),
        "An assertion in a GPU kernel failed, most often an index out of range (labels, embedding ids)",
        "CUDA_LAUNCH_BLOCKING=1 shows the true line; check label and token ids against the sizes",
        0.9,
        pattern=r"device-side assert|(?:\.cu|Indexing|Loss).*Assertion `|Assertion `.*(?:index|t >= 0|idx)",
    ),
    rule(
        "fork-after-cuda",
        Stage.PROGRAM,
        ("re-initialize CUDA in forked subprocess", "initialization error"),
        "CUDA was used in a process forked after CUDA had started",
        "multiprocessing start method `spawn` or `forkserver`; no CUDA calls before forking",
        0.85,
        pattern=r"forked subprocess|(?:CUDA|Cuda|cuda).*initialization error",
    ),
    rule(
        "gpu-peer-access",
        Stage.HOST,
        ("peer access is not supported", "peer access is already", "cudaErrorPeerAccess"),
        "Two GPUs cannot read each other's memory, though NCCL thought so",
        "nvidia-smi topo -p2p r; turn off ACS and IOMMU, or NCCL_P2P_DISABLE=1 meanwhile",
        0.7,
        pattern=r"not supported|Unsupported",
    ),
    rule(
        "acs-enabled",
        Stage.HOST,
        ("ACSCtl", "SrcValid+"),
        "PCIe ACS is on at a bridge: traffic between GPUs goes through the CPU's root, is slow or hangs",
        "Turn ACS off in the BIOS or with setpci on the bridges; on a VM host it must stay on",
        0.6,
        pattern=r"SrcValid\+",
    ),
    rule(
        "cuda-not-built-in",
        Stage.SETUP,
        ("Torch not compiled with CUDA enabled", "Distributed package doesn't have NCCL"),
        "This torch is a CPU build",
        "Install a CUDA build of torch in the environment that runs the job",
        0.97,
    ),
    rule(
        "cuda-error",
        Stage.SYMPTOM,
        ("CUDA error", "CUDA driver error", "uda failure", "CUBLAS_STATUS_", "CUDNN_STATUS_"),
        "A CUDA call failed: {text}",
        "CUDA_LAUNCH_BLOCKING=1 shows the true line; dmesg for an Xid of that GPU",
        0.5,
        pattern=r"(?P<text>(?:CUDA (?:driver )?error|Cuda failure|cuda failure|C\w+_STATUS_(?!SUCCESS)\w+).*)",
    ),
)
