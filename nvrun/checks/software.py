"""Python, torch and the libraries that the job will load: there, fit for the hardware, and the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, FATAL, INFO, WARNING, declare, unread
from nvrun.checks.compare import differing, is_tie, listed, sides
from nvrun.checks.job import Job
from nvrun.facts import Gpu, HostFacts, Software
from nvrun.torchrun import unknown_flags

_CHAIN = "read in the very chain (transport, --setup, --in, environment) that will run the job"

TORCH_MISSING = declare(
    "torch-missing",
    FATAL,
    "torch is not installed for the job's interpreter",
    read=f"metadata of the interpreter's site-packages, {_CHAIN}",
    why="torchrun cannot start; a login shell may find another Python than a non-interactive one does",
    remedy="--python PATH names the interpreter that has torch; --setup CMD prepares it (module load, conda activate)",
    source="bash(1), INVOCATION: a shell started by sshd reads no .bash_profile",
)
PYTHON = declare(
    "python-version-differs",
    FATAL,
    "hosts run different Python versions",
    read="version of the job's interpreter",
    why="pickled objects, compiled extensions and the torch build itself differ between minor versions",
    remedy="--python PATH (the same on all hosts), or --setup CMD that selects the environment",
    source="https://github.com/hpcaitech/ColossalAI/issues/1779",
)
PYTHON_PATH = declare(
    "python-path-differs",
    INFO,
    "hosts use interpreters at different paths",
    read="path of the job's interpreter",
    why="two environments drift apart sooner or later; alike versions are no fault",
    remedy="--python PATH (the same on all hosts)",
    source="https://docs.python.org/3/library/sys.html#sys.executable",
)
TORCH = declare(
    "torch-version-differs",
    ERROR,
    "hosts have different torch versions",
    read="torch's metadata and torch/version.py; torch is not imported",
    why="collectives hang or fail where ranks disagree on operators, buckets or the NCCL that came along",
    remedy="install the same torch on all hosts, or --python PATH of the environment that has it",
    source="https://github.com/pytorch/pytorch/issues/122571",
)
NCCL = declare(
    "nccl-version-differs",
    FATAL,
    "hosts would load different NCCL versions",
    read="the libnccl.so.2 that the dynamic linker will take (LD_PRELOAD, torch's RPATH, LD_LIBRARY_PATH, cache)",
    why="NCCL compares versions when ranks meet and aborts with `invalid usage`",
    remedy="unset LD_LIBRARY_PATH and LD_PRELOAD there, or install the same torch everywhere",
    source="https://github.com/NVIDIA/nccl, src/bootstrap.cc",
    depends="fatal for a job on GPUs over several hosts, information without GPUs",
    real=False,
)
CUDA_BUILD = declare(
    "cuda-build-differs",
    ERROR,
    "hosts have torch builds for different CUDA versions",
    read="torch/version.py",
    why="a CPU build on one host, or another CUDA, gives other kernels or none",
    remedy="install the same torch build on all hosts",
    source="https://pytorch.org/get-started/previous-versions/",
)
DRIVER_DIFFERS = declare(
    "driver-version-differs",
    WARNING,
    "hosts of like hardware have different NVIDIA drivers",
    read="NVML's driver version",
    why="speed and available features (NVLS, dma-buf) follow the driver; NCCL takes what the worst host has",
    remedy="install the same driver on all hosts, and hold the package against unattended upgrades",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/",
    real=False,
)
DRIVER_SPLIT = declare(
    "driver-mismatch",
    FATAL,
    "NVIDIA's kernel module and libraries are of different versions",
    read="/proc/driver/nvidia/version against NVML's driver version",
    why="every CUDA call fails with `driver/library version mismatch`",
    remedy="reboot the host, or unload and reload the nvidia modules; then hold the driver package",
    source="https://docs.nvidia.com/deploy/nvml-api/: NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    real=False,
)
DRIVER_OLD = declare(
    "driver-too-old",
    FATAL,
    "the driver is too old for the CUDA that torch was built for",
    read="NVML's CUDA driver version against torch/version.py",
    why="CUDA cannot be initialised; only minor versions of one major version run on an older driver",
    remedy="update the driver, or install a torch build for an older CUDA",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    real=False,
)
CUDA_OLD = declare(
    "cuda-too-old-for-gpu",
    FATAL,
    "torch was built for a CUDA that does not know this GPU",
    read="torch/version.py against the GPU's compute capability",
    why="kernels fail with `no kernel image is available for execution on the device`",
    remedy="install a torch build for a newer CUDA",
    source="CUDA release notes: 8.0 from CUDA 11.0, 8.9 and 9.0 from 11.8, 10.x and 12.x from 12.8; below 5.0 up to 11,"
    " below 7.5 (V100, P100) up to 12",
    depends="judged for planned GPUs only",
    real=False,
)
NCCL_OLD = declare(
    "nccl-too-old-for-gpu",
    ERROR,
    "the NCCL that will be loaded is older than the GPU's generation",
    read="version of the libnccl to be loaded against the GPU's compute capability",
    why="NCCL has no kernels for the GPU, or misreads its NVLinks",
    remedy="use the libnccl that comes with torch: unset LD_LIBRARY_PATH and LD_PRELOAD",
    source="NCCL release notes: Hopper from 2.15, Blackwell from 2.25",
    depends="judged for planned GPUs only",
    real=False,
)
FLAG = declare(
    "torchrun-flag-unknown",
    FATAL,
    "the host's torchrun does not know a flag in use",
    read="the flags in the source of the host's torch.distributed.run",
    why="torchrun ends with a usage error on that host while the others wait",
    remedy="leave the flag out, or install a torch that has it",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
)
KERNEL = declare(
    "system-differs",
    INFO,
    "hosts of like hardware run different kernels or distributions",
    read="uname -r and os-release",
    why="no fault by itself; the first place to look where one host behaves differently",
    remedy="bring the hosts to one image",
    source="uname(2), os-release(5)",
)


@check(TORCH_MISSING)
def torch_installed(software: Software) -> Results:
    """torch is installed for the interpreter that will run the job."""
    if software.torch is None:
        yield TORCH_MISSING.found(f"no torch for {software.executable} (Python {software.python})")


@fleet_check(PYTHON, PYTHON_PATH)
def python_agrees(software: Mapping[str, Software]) -> Results:
    """All hosts run one Python: major and minor version, and the path."""
    minor = {host: ".".join(s.python.split(".")[:2]) for host, s in software.items()}
    yield from differing(PYTHON, minor, "Python")
    if len(set(minor.values())) == 1:
        yield from differing(PYTHON_PATH, {host: s.executable for host, s in software.items()}, "interpreter")


@fleet_check(TORCH, CUDA_BUILD)
def torch_agrees(software: Mapping[str, Software]) -> Results:
    """All hosts have one torch, built for one CUDA."""
    versions = {host: s.torch for host, s in software.items()}
    yield from differing(TORCH, versions, "torch")
    if len({version for version in versions.values() if version}) == 1:
        builds = {host: s.cuda or "CPU only" for host, s in software.items() if s.torch}
        yield from differing(CUDA_BUILD, builds, "CUDA of torch")


@fleet_check(NCCL)
def nccl_agrees(software: Mapping[str, Software], fleet: Mapping[str, HostFacts]) -> Results:
    """All hosts load one NCCL."""
    severity = None if any(facts.gpus for facts in fleet.values()) else INFO
    versions = {host: s.nccl for host, s in software.items()}
    for finding in differing(NCCL, versions, "NCCL", severity=severity):
        origin = software[finding.host] if finding.host else None
        if origin is not None and origin.nccl_path:
            why = f" (from {origin.nccl_from})" if origin.nccl_from else ""
            yield NCCL.found(
                f"{finding.message}: loaded from {origin.nccl_path}{why}",
                host=finding.host,
                severity=severity,
                subject="NCCL",
                observed=finding.observed,
                expected=finding.expected,
            )
        else:
            yield finding


@fleet_check(DRIVER_DIFFERS)
def driver_agrees(software: Mapping[str, Software], groups: tuple[tuple[str, ...], ...]) -> Results:
    """Hosts of like hardware have one NVIDIA driver."""
    yield from differing(DRIVER_DIFFERS, {host: s.driver for host, s in software.items()}, "driver", groups=groups)


@check(DRIVER_SPLIT)
def driver_whole(software: Software) -> Results:
    """NVIDIA's kernel module and its libraries are of one version."""
    if software.driver and software.kernel_module and software.driver != software.kernel_module:
        yield DRIVER_SPLIT.found(
            f"the kernel module is {software.kernel_module}, the libraries are {software.driver}",
            observed=software.kernel_module,
            expected=software.driver,
        )


@check(DRIVER_OLD)
def driver_runs_cuda(software: Software) -> Results:
    """The driver can run the CUDA that torch was built for."""
    can, needs = _version(software.cuda_driver), _version(software.cuda)
    if can and needs and needs[0] > can[0]:
        yield DRIVER_OLD.found(
            f"torch {software.torch} needs CUDA {software.cuda}, the driver {software.driver or ''} runs up to"
            f" {software.cuda_driver}",
            observed=software.cuda_driver or "",
            expected=software.cuda or "",
        )


_CUDA_FROM = {(8, 0): (11, 0), (8, 6): (11, 1), (8, 9): (11, 8), (9, 0): (11, 8), (10, 0): (12, 8), (12, 0): (12, 8)}
_CUDA_UNTIL = {(5, 0): 11, (7, 5): 12}
"""GPUs below a compute capability -> the last CUDA that makes code for them: Kepler, then Maxwell to Volta."""
_NCCL_FROM = {(9, 0): (2, 15), (10, 0): (2, 25), (12, 0): (2, 25)}


@check(CUDA_OLD, NCCL_OLD)
def build_knows_gpu(host: str, software: Software, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """torch's CUDA and NCCL know the generation of the planned GPUs."""
    for capability in sorted({gpu.compute_capability for gpu in job.gpus_of(host, gpus) if gpu.compute_capability}):
        cuda, nccl = _needed(_CUDA_FROM, capability), _needed(_NCCL_FROM, capability)
        has_cuda, has_nccl = _version(software.cuda), _version(software.nccl)
        if cuda and has_cuda and has_cuda < cuda:
            yield CUDA_OLD.found(
                f"torch {software.torch} is built for CUDA {software.cuda}; compute capability {capability} needs"
                f" {cuda[0]}.{cuda[1]}",
                subject="torch",
            )
        last = _last_cuda(capability)
        if last and has_cuda and has_cuda[0] > last:
            yield CUDA_OLD.found(
                f"torch {software.torch} is built for CUDA {software.cuda}; the last for compute capability"
                f" {capability} is CUDA {last}",
                subject="torch",
                remedy=f"install a torch build for CUDA {last}",
            )
        if nccl and has_nccl and has_nccl < nccl:
            yield NCCL_OLD.found(
                f"NCCL {software.nccl} (from {software.nccl_path or 'an unknown path'}) is older than compute"
                f" capability {capability}, which needs {nccl[0]}.{nccl[1]}",
                subject="NCCL",
            )


@check(FLAG)
def torchrun_flags(software: Software, job: Job) -> Results:
    """The host's torchrun knows every flag in use."""
    if job.torchrun is None or software.torch is None:
        return
    if not software.torchrun_flags:
        yield unread("the flags of this host's torchrun could not be read")
    for flag in unknown_flags(job.torchrun, software.torchrun_flags):
        yield FLAG.found(f"torchrun of torch {software.torch} does not know {flag.spelling}", subject=flag.spelling)


@fleet_check(KERNEL)
def system_agrees(software: Mapping[str, Software], groups: tuple[tuple[str, ...], ...]) -> Results:
    """Hosts of like hardware run one kernel and distribution."""
    for what, values in (
        ("kernel", {host: s.kernel or None for host, s in software.items()}),
        ("distribution", {host: s.distribution or None for host, s in software.items()}),
    ):
        for group in groups:
            found = sides({host: value for host in group if (value := values.get(host))})
            if len(found) > 1:
                others = found if is_tie(found) else found[1:]
                yield KERNEL.found(
                    f"{what} differs: {listed(value for value, _ in others)}"
                    + ("" if is_tie(found) else f" beside {found[0][0]}"),
                    subject=what,
                    evidence=tuple(f"{value}: {listed(hosts)}" for value, hosts in found),
                )


def _version(text: str | None) -> tuple[int, int] | None:
    """`2.28.9` -> (2, 28)."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def _last_cuda(capability: str) -> int | None:
    """Major version of the last CUDA that makes code for this GPU; None while there is no last one."""
    version = _version(capability)
    return min((cuda for below, cuda in _CUDA_UNTIL.items() if version and version < below), default=None)


def _needed(table: Mapping[tuple[int, int], tuple[int, int]], capability: str) -> tuple[int, int] | None:
    """What the newest generation of the table that is not newer than this GPU needs."""
    version = _version(capability)
    fitting = [known for known in table if version and known <= version]
    return table[max(fitting)] if fitting else None
