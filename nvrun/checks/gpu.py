"""GPUs one by one: there, of one kind, free, and well. GPUs outside the plan are not judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, FATAL, INFO, WARNING, declare
from nvrun.checks.compare import differing, is_tie, listed, sides, size
from nvrun.checks.job import Job
from nvrun.facts import Gpu, GpuProcess, HostFacts, Software
from nvrun.model import Finding

BUSY_BYTES = 500 << 20
"""Without a visible process: below that it may be the driver's own (published checks use 15 MiB, which is too tight,
to 2 GiB)."""

_NVML = "https://docs.nvidia.com/deploy/nvml-api/"

DRIVER = declare(
    "gpu-driver-fails",
    FATAL,
    "the host has NVIDIA GPUs, but NVML does not give them",
    read="NVML in a child with a deadline; PCI devices from sysfs",
    why="CUDA will fail in the same way",
    remedy="nvidia-smi on that host says the same; dmesg | grep -i nvrm says why",
    source=_NVML,
    depends="fatal where the job uses GPUs on any host, else error",
    real=False,
)
OFF_BUS = declare(
    "gpu-off-bus",
    ERROR,
    "the host has more GPUs on PCI than NVML shows, or NVML cannot reach one that it lists",
    read="PCI devices from sysfs against NVML's list; device files that this job may not open are not its own",
    why="a GPU fell off the bus or was taken by another driver (vfio): the job gets fewer ranks",
    remedy="dmesg | grep -E 'Xid|NVRM'; reboot the host, have the GPU replaced if it comes back (Xid 79)",
    source="https://docs.nvidia.com/deploy/xid-errors/: Xid 79",
    real=False,
)
COUNT = declare(
    "gpu-count-differs",
    ERROR,
    "like hosts have different numbers of GPUs",
    read="NVML's list on hosts of like hardware",
    why="ranks per host differ: code that assumes the same number everywhere hangs, and one GPU may be broken",
    remedy="look for the missing GPU: nvidia-smi; dmesg | grep Xid; or the container's --gpus",
    source="majority of hosts with the same GPU and CPU models",
    depends="information where the plan uses equally many everywhere",
    real=False,
)
MODEL = declare(
    "gpu-model-differs",
    WARNING,
    "GPUs of different models in one job",
    read="NVML's product names of the planned GPUs",
    why="the slowest sets the pace of all, and the smallest memory the largest batch",
    remedy="leave the odd hosts out: --exclude LIST",
    source=_NVML,
    real=False,
)
FIRMWARE = declare(
    "gpu-vbios-differs",
    WARNING,
    "GPUs of one model have different firmware",
    read="NVML's VBIOS version",
    why="power and clock tables differ, so GPUs do",
    remedy="bring the firmware to one version (the vendor's update)",
    source=_NVML,
    real=False,
)
MIG = declare(
    "gpu-mig",
    FATAL,
    "a planned GPU is in MIG mode",
    read="NVML's MIG mode",
    why="CUDA sees one instance of it or none, and NCCL has no P2P or NVLink between instances",
    remedy="nvidia-smi -i N -mig 0 as root, or name the instances in CUDA_VISIBLE_DEVICES",
    source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, CUDA device enumeration",
    depends="not judged where the plan uses the instances",
    real=False,
)
MODE = declare(
    "gpu-compute-mode",
    FATAL,
    "the compute mode of a planned GPU forbids the job",
    read="NVML's compute mode and processes",
    why="CUDA fails with `all CUDA-capable devices are busy or unavailable`",
    remedy="nvidia-smi -i N -c DEFAULT as root",
    source="nvidia-smi(1), --compute-mode",
    real=False,
)
BUSY = declare(
    "gpu-busy",
    ERROR,
    "a planned GPU is in use by other processes",
    read="NVML's processes and used memory of the planned GPUs",
    why="memory runs out, and both jobs are slow",
    remedy="end the processes named, or leave the GPU out: CUDA_VISIBLE_DEVICES; --waive gpu-busy shares it",
    source=_NVML,
    depends="information where they only draw; not judged: this run's own, MPS's server, and GPUs outside the plan",
    real=False,
)
CLOSED = declare(
    "gpu-device-closed",
    FATAL,
    "a device file of the NVIDIA driver cannot be opened",
    read="open(2) of /dev/nvidia*, nvidiactl and nvidia-uvm as the job's user",
    why="CUDA fails with `no CUDA-capable device is detected` or `unknown error`",
    remedy="ls -l /dev/nvidia*; nvidia-modprobe -u; for a container the NVIDIA container toolkit and its --gpus",
    source="nvidia-modprobe(1)",
    depends="for planned GPUs; information where only its mode keeps the job from another one",
    real=False,
)


@check(DRIVER)
def gpus_readable(facts: HostFacts, job: Job) -> Results:
    """Where NVIDIA GPUs are on PCI, NVML gives them."""
    if facts.gpus is None and facts.gpus_on_pci:
        on_gpus = not job.gpus or any(job.gpus.values())  # what NVML does not give is not in the plan either
        reason = facts.missing.get("gpus", "no reason given")
        yield DRIVER.found(
            f"{len(facts.gpus_on_pci)} NVIDIA GPUs on PCI, but NVML gives none: {reason}",
            severity=FATAL if on_gpus else ERROR,
            remedy=_driver_remedy(reason),
        )


def _driver_remedy(reason: str) -> str:
    """By NVML's own words for its error codes."""
    text = reason.lower()
    for words, remedy in (
        ("mismatch", "reboot the host, or unload and reload the nvidia modules; then hold the driver package"),
        ("driver not loaded", "modprobe nvidia; dkms status: was the module built for this kernel?"),
        ("no answer", "the driver is stuck: dmesg | grep -E 'Xid|NVRM'; reboot the host"),
        ("permission", "the job's user may not open /dev/nvidia*: see their group, or the container's devices"),
        ("lost", "reboot the host; have the GPU replaced if it comes back"),
        (
            "not found",
            "install the driver's libraries (libnvidia-ml.so.1); for a container its toolkit",
        ),
    ):
        if words in text:
            return remedy
    return DRIVER.remedy


@check(OFF_BUS)
def gpus_all_shown(gpus: tuple[Gpu, ...], gpus_on_pci: tuple[str, ...], software: Software) -> Results:
    """NVML shows every NVIDIA GPU that is on PCI, and reaches each that it lists."""
    hidden, given = _hidden(gpus, gpus_on_pci, software), _given(software)
    part = 0 < given < len(gpus_on_pci)
    others = ", some of them not this job's" if part else ""
    evidence = (f"on PCI, and no GPU of NVML{others}: {listed(hidden)}",) if hidden else ()
    lost = [gpu for gpu in gpus if not gpu.reached]
    for gpu in lost:
        yield OFF_BUS.found(
            f"{label(gpu)} cannot be reached: {gpu.unread['handle']}", subject=label(gpu), evidence=evidence
        )
    if part and hidden and given > len(gpus):
        yield OFF_BUS.found(f"this job was given {given} GPUs, {len(gpus)} in NVML", subject="GPUs", evidence=evidence)
    elif not part and len(hidden) > len(lost):
        yield OFF_BUS.found(
            f"{len(gpus_on_pci)} GPUs on PCI, {len(gpus)} in NVML: missing {listed(hidden)}", subject=listed(hidden)
        )


def _hidden(gpus: Sequence[Gpu], on_pci: Sequence[str], software: Software | None) -> list[str]:
    """PCI addresses that NVML lacks, unless it has all the GPUs that this job was given."""
    shown = {gpu.pci for gpu in gpus if gpu.reached}
    return [address for address in on_pci if address not in shown] if gpus and _given(software) != len(shown) else []


def _given(software: Software | None) -> int:
    """GPUs that this job was given, by their device files; 0 where none was found."""
    nodes = software.device_nodes if software else {}
    return sum(name.removeprefix("/dev/nvidia").isdigit() and answer not in _REFUSED for name, answer in nodes.items())


_BY_MODE = "Permission denied"
_REFUSED = ("Operation not permitted", _BY_MODE)
"""EPERM: another job's GPU, by the device cgroup (Slurm's ConstrainDevices, a container). EACCES: by the file's mode or
list of users. One that is lost says EIO."""


@fleet_check(COUNT, MODEL, FIRMWARE)
def gpus_agree(
    gpus: Mapping[str, tuple[Gpu, ...]], fleet: Mapping[str, HostFacts], groups: tuple[tuple[str, ...], ...], job: Job
) -> Results:
    """Hosts have one number and model of GPUs, and one firmware for each model."""
    counted = {
        host: sum(gpu.reached for gpu in there)
        for host, there in gpus.items()
        if not _hidden(there, fleet[host].gpus_on_pci or (), fleet[host].software)  # else gpu-off-bus has named it
    }
    used = {len(job.gpus_of(host, there)) for host, there in gpus.items()}
    severity = INFO if len(used) == 1 else None
    yield from differing(COUNT, counted, "GPUs:", groups=groups, subject="GPUs", severity=severity)
    planned = {host: job.gpus_of(host, there) for host, there in gpus.items()}
    names = {host: sorted({gpu.name for gpu in there if gpu.name}) for host, there in planned.items()}
    models = {host: " and ".join(known) or None for host, known in names.items()}
    yield from differing(MODEL, models, "GPU model", subject="model")
    firmware = {
        host: listed(sorted({gpu.vbios for gpu in there if gpu.vbios})) or None for host, there in planned.items()
    }
    yield from differing(FIRMWARE, firmware, "VBIOS", groups=groups)


@check(MODEL)
def gpus_alike(host: str, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The planned GPUs of a host are of one model."""
    found = sides({label(gpu): gpu.name for gpu in job.gpus_of(host, gpus) if gpu.name})
    if len(found) > 1:
        odd = found if is_tie(found) else found[1:]
        words = "; ".join(f"{listed(names)}: {model}" for model, names in odd)
        yield MODEL.found(words + ("" if is_tie(found) else f"; the others: {found[0][0]}"), subject="model")


@check(MIG, MODE, BUSY)
def gpus_free(host: str, facts: HostFacts, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The planned GPUs are whole, usable and free."""
    chosen = job.gpus.get(host, ())
    ours = job.pids(facts)
    for gpu in job.gpus_of(host, gpus):
        name = label(gpu)
        if gpu.mig is not None and not any(uuid in chosen for uuid in gpu.mig):
            yield MIG.found(
                f"{name} is in MIG mode with {len(gpu.mig)} instances", subject=name, remedy=_numbered(MIG.remedy, gpu)
            )
        foreign = [p for p in gpu.processes if p.pid not in ours and not p.name.startswith(_MPS)]
        computing = any(not process.graphics for process in foreign)
        if gpu.compute_mode == "prohibited" or ((gpu.compute_mode or "").startswith("exclusive") and computing):
            yield MODE.found(
                f"{name} is in compute mode {gpu.compute_mode}" + (", and in use" if computing else ""),
                subject=name,
                remedy=_numbered(MODE.remedy, gpu),
            )
        yield from _busy(gpu, foreign)


_MPS = "nvidia-cuda-mps"
"""nvidia-cuda-mps-server as the kernel cuts it (15 letters): it was started for jobs to share a GPU through it."""


def _busy(gpu: Gpu, foreign: Sequence[GpuProcess]) -> Iterator[Finding]:
    name, used = label(gpu), gpu.memory_used or 0
    if foreign:
        who = listed(f"{p.name or 'process'} (pid {p.pid}{', ' + p.user if p.user else ''})" for p in foreign)
        severity = INFO if all(process.graphics for process in foreign) and used < BUSY_BYTES else ERROR
        yield BUSY.found(
            f"{name} is used by {who}, {size(used)} in use", severity=severity, subject=name, observed=size(used)
        )
    elif used >= BUSY_BYTES and not gpu.processes and "memory_used" not in gpu.unread:
        # A GPU whose memory is a NUMA node (Grace) also holds what the kernel puts there: page cache, other programs.
        whose = "another container?" if gpu.memory_node is None else "another container, or the kernel's page cache"
        yield BUSY.found(
            f"{name} has {size(used)} in use by processes that are not visible here ({whose})",
            severity=ERROR if gpu.memory_node is None else WARNING,
            subject=name,
            observed=size(used),
        )


@check(CLOSED)
def gpu_devices_open(host: str, software: Software, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The driver's device files can be opened."""
    minors = {f"/dev/nvidia{gpu.minor}" for gpu in job.gpus_of(host, gpus) if gpu.minor is not None}
    for path, answer in software.device_nodes.items():
        if answer != "ok" and (path in minors or (minors and path in ("/dev/nvidiactl", "/dev/nvidia-uvm"))):
            yield CLOSED.found(f"{path} cannot be opened: {answer}", subject=path)
        elif minors and answer == _BY_MODE and path.removeprefix("/dev/nvidia").isdigit():
            yield CLOSED.found(
                f"{path} cannot be opened: {answer}; its GPU is another job's, or the file's mode is wrong",
                severity=INFO,
                subject=path,
            )


def label(gpu: Gpu) -> str:
    """`GPU 3`, as nvidia-smi counts."""
    return f"GPU {gpu.index}"


def _numbered(remedy: str, gpu: Gpu) -> str:
    return remedy.replace(" N ", f" {gpu.index} ")
