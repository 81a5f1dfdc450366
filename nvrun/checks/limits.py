"""Limits of the very chain that will run the job: locked memory, open files, shared memory, CPUs."""

from __future__ import annotations

from nvrun.checks.check import Results, check
from nvrun.checks.code import ERROR, FATAL, INFO, WARNING, declare
from nvrun.checks.compare import size
from nvrun.checks.job import Job
from nvrun.facts import Cpus, Filesystem, Gpu, Limits, NumaNode, Software

GIB, MIB = 1 << 30, 1 << 20
MEMLOCK_NEEDED = 16 * GIB
"""The least that the published node checks ask for (16 and 32 GiB); NCCL registers its buffers with the NIC."""
FILES_PER_RANK = 64
"""On the rendezvous host. 32 ranks at 1024 files fail (`Accept failed: Too many open files`), and 65536 is the usual
advice for a thousand ranks: both are 32 to 64 a rank."""
FILES_LEAST = 1024
FILES_ENOUGH, FILES_MOST_PER_RANK = 65536, 4
"""What is enough for any job of up to 16,384 ranks, and from there on how many a rank: the store's connections."""
SHM_GPU_LEAST, SHM_GPU_WANTED = 1 * GIB, 8 * GIB
SHM_LEAST = 32 * MIB
"""Half of Docker's default of 64 MiB: DataLoader workers of a small CPU job live with that default, not with less."""

MEMLOCK = declare(
    "memlock-low",
    FATAL,
    "too little memory may be locked for RDMA",
    read="RLIMIT_MEMLOCK in the job's own chain",
    why="ibv_reg_mr fails with ENOMEM: NCCL aborts at the first connection",
    remedy="ulimit -l unlimited must hold there: limits.conf with UsePAM yes for sshd; LimitMEMLOCK=infinity for a"
    " service; docker --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
    source="https://github.com/NVIDIA/nccl-tests/issues/206; 16 GiB: the least of published node checks",
    depends="fatal where the plan uses RDMA, else not judged",
    real=False,
)
NOFILE = declare(
    "nofile-low",
    ERROR,
    "too few files may be open",
    read="RLIMIT_NOFILE in the job's own chain",
    why="the rendezvous host holds connections of every rank: `Accept failed: Too many open files` beyond the limit",
    remedy="--setup 'ulimit -n 65536' within the hard limit; else limits.conf, LimitNOFILE= or docker --ulimit",
    source="https://github.com/goodfire-ai/spd/issues/957",
    depends="64 files a rank of the job on the rendezvous host, 64 a rank of its own on others; at least 1024, and no"
    " more than 65536 or 4 a rank",
)
SHM = declare(
    "shm-small",
    ERROR,
    "/dev/shm is too small",
    read="statvfs of /dev/shm: size and free space",
    why="NCCL between GPUs without P2P and DataLoader workers live there: `No space left on device` or a bus error",
    remedy="docker --shm-size=16g or --ipc=host; Kubernetes: an emptyDir of medium Memory; else mount -o remount,size=",
    source="NCCL user guide, Troubleshooting, Shared memory; docker run --shm-size",
    depends="with GPUs: error below 1 GiB, warning below 8 GiB or 1 GiB a rank; without: error below 32 MiB free",
)
CPUSET = declare(
    "cpus-outside-cpuset",
    FATAL,
    "the plan binds ranks to CPUs that this session may not use",
    read="sched_getaffinity in the job's own chain",
    why="numactl and sched_setaffinity fail with EINVAL, the ranks do not start",
    remedy="--bind none; or ask for all CPUs (srun --cpus-per-task, --exclusive; docker without --cpuset-cpus)",
    source="sched_setaffinity(2), cpuset(7)",
)
FEW_CPUS = declare(
    "cpus-few",
    WARNING,
    "fewer than four CPUs for each GPU",
    read="sched_getaffinity and cpu.max in the job's own chain",
    why="NCCL's proxy threads, the data loaders and the rank itself share them: NCCL gets slower by a multiple",
    remedy="srun --cpus-per-task=N (its default is 1), docker --cpus, or fewer ranks",
    source="https://slurm.schedmd.com/srun.html, --cpus-per-task",
    depends="judged for ranks with a GPU only",
    real=False,
)
NUMACTL = declare(
    "numactl-missing",
    INFO,
    "numactl is not installed",
    read="PATH of the job's own chain",
    why="CPUs are bound all the same (sched_setaffinity); the memory node of a rank is not",
    remedy="apt install numactl, dnf install numactl",
    source="numactl(8)",
    depends="warning where the plan sets a memory node on a host with several, else information",
)
PY_SPY = declare(
    "py-spy-missing",
    WARNING,
    "--hang-timeout is set, and py-spy is not installed",
    read="py-spy on the job's PATH, and beside its interpreter",
    why="without stacks a hang is seen by NCCL's RAS alone (2.24 on, GPUs): a job that hangs may go on for ever",
    remedy="pip install py-spy for the job's interpreter",
    source="py-spy record",
)
MEMPOLICY = declare(
    "mempolicy-forbidden",
    INFO,
    "memory policies are forbidden here",
    read="set_mempolicy tried in the job's own chain",
    why="a rank's memory may come from the far node; CPUs are bound all the same",
    remedy="docker --cap-add SYS_NICE, or a seccomp profile that allows set_mempolicy and mbind",
    source="https://docs.docker.com/engine/security/seccomp/",
    depends="warning where the plan sets a memory node on a host with several, else information",
)


@check(MEMLOCK)
def memlock(host: str, limits: Limits, job: Job) -> Results:
    """Enough memory may be locked where the plan uses RDMA."""
    locked = limits.memlock_bytes
    if job.uses_rdma(host) and locked is not None and 0 <= locked < MEMLOCK_NEEDED:
        yield MEMLOCK.found(
            f"only {size(locked)} may be locked, RDMA needs unlimited (at least {size(MEMLOCK_NEEDED)})",
            subject="RLIMIT_MEMLOCK",
            observed=str(locked),
            expected="unlimited",
        )


@check(NOFILE)
def open_files(host: str, limits: Limits, job: Job) -> Results:
    """Enough files may be open for the ranks, and on the rendezvous host for all connections to it."""
    ranks = job.world if host == job.first else job.ranks.get(host, 1)
    needed = max(FILES_LEAST, min(FILES_PER_RANK * ranks, max(FILES_ENOUGH, FILES_MOST_PER_RANK * ranks)))
    if limits.nofile is not None and 0 <= limits.nofile < needed:
        hard = limits.nofile_hard
        allows = "" if hard is None else f"; the hard limit is {'unlimited' if hard < 0 else hard}"
        yield NOFILE.found(
            f"only {limits.nofile} files may be open, {needed} are needed{allows}",
            subject="RLIMIT_NOFILE",
            observed=str(limits.nofile),
            expected=str(needed),
            remedy=f"--setup 'ulimit -n {needed}'" if hard is not None and not 0 <= hard < needed else None,
        )


@check(SHM)
def shared_memory(host: str, filesystems: tuple[Filesystem, ...], job: Job, gpus: tuple[Gpu, ...]) -> Results:
    """/dev/shm is large enough for the host's ranks."""
    shm = next((place for place in filesystems if place.path == "/dev/shm"), None)
    if shm is None or shm.total_bytes is None or shm.free_bytes is None:
        return
    ranks = job.ranks.get(host, 1)
    on_gpus = bool(job.gpus_of(host, gpus)) and ranks > 1
    wanted = max(SHM_GPU_WANTED, GIB * ranks) if on_gpus else SHM_LEAST
    if shm.free_bytes >= wanted:
        return
    severe = shm.free_bytes < (SHM_GPU_LEAST if on_gpus else SHM_LEAST)
    yield SHM.found(
        f"/dev/shm has {size(shm.free_bytes)} free of {size(shm.total_bytes)}, {size(wanted)} are wanted",
        severity=ERROR if severe else WARNING,
        subject="/dev/shm",
        observed=str(shm.free_bytes),
        expected=str(wanted),
    )


@check(CPUSET, FEW_CPUS)
def cpus_enough(host: str, cpus: Cpus, gpus: tuple[Gpu, ...], job: Job) -> Results:
    """The planned CPUs may be used, and each GPU has at least four."""
    outside = sorted(set(job.cpus.get(host, ())) - set(cpus.allowed))
    if outside:
        yield CPUSET.found(f"{len(outside)} planned CPUs are not allowed here, the first is CPU {outside[0]}")
    used = min(len(job.gpus_of(host, gpus)), job.ranks.get(host, 1))
    there = min(len(cpus.allowed), cpus.quota or len(cpus.allowed))
    if used and cpus.allowed and there < 4 * used:
        yield FEW_CPUS.found(
            f"{there:g} CPUs for {used} ranks with a GPU", observed=f"{there:g}", expected=str(4 * used)
        )


@check(PY_SPY)
def stacks_readable(software: Software, job: Job) -> Results:
    """py-spy is there where --hang-timeout is to end a job that hangs."""
    if job.ends_hangs and software.py_spy == "":
        yield PY_SPY.found("py-spy is not installed, so --hang-timeout cannot tell a hang from work")


@check(NUMACTL, MEMPOLICY)
def binding_possible(software: Software, numa: tuple[NumaNode, ...], job: Job) -> Results:
    """numactl is there and may set memory policies."""
    matters = job.binds_memory and sum(bool(node.cpus) for node in numa) > 1
    severity = WARNING if matters else INFO
    if software.numactl is None:
        yield NUMACTL.found("numactl is not installed", severity=severity)
    elif software.mempolicy_allowed is False:
        yield MEMPOLICY.found("set_mempolicy is forbidden in this chain", severity=severity)
