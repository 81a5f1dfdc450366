"""The host's system: disks and caches, memory, CPU settings, processes, environment and conf files."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from nvrun.checks.busy import excused
from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, INFO, WARNING, declare, unread
from nvrun.checks.compare import differing, listed, size
from nvrun.checks.job import Job
from nvrun.environment import conf_variables
from nvrun.facts import Cpus, Filesystem, HostFacts, Memory, NumaNode, Process
from nvrun.nccl.lint import MUST_AGREE

GIB, MIB = 1 << 30, 1 << 20

DISK = declare(
    "disk-full",
    ERROR,
    "a file system that the job writes to is full",
    read="statvfs of /tmp, TMPDIR, the working directory and the caches of torch.compile and Triton",
    why="checkpoints, compiled kernels or logs fail with `No space left on device`",
    remedy="df -h and df -i there; free some space, or point the job elsewhere (TMPDIR, TORCHINDUCTOR_CACHE_DIR)",
    source="statvfs(3)",
    depends="error below 64 MiB or without inodes, warning below 2 GiB",
)
READONLY = declare(
    "folder-not-writable",
    WARNING,
    "a folder that the job needs for scratch files cannot be written",
    read="mount options and access(2) as the job's user",
    why="temporary files or compiled kernels cannot be stored",
    remedy="another folder: TMPDIR, TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR",
    source="access(2), mount(8)",
    depends="error for /tmp and TMPDIR; the working directory is not judged",
)
HUNG = declare(
    "filesystem-hung",
    ERROR,
    "a file system does not answer",
    read="statvfs in a child of its own, given up after 2 s",
    why="processes that touch it wait and cannot be killed",
    remedy="look at the mount there: mount; dmesg | tail; is its server up?",
    source="nfs(5), hard mounts",
)
NOEXEC = declare(
    "cache-noexec",
    WARNING,
    "a cache of compiled kernels lies on a file system mounted noexec",
    read="mount options of the caches of torch.compile and Triton",
    why="Triton and torch.compile load shared libraries from there: `failed to map segment`",
    remedy="TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR on a local file system that allows it",
    source="mount(8), noexec",
    depends="/tmp counts as a cache, for torch.compile's default is there",
)
SHARED_CACHE = declare(
    "cache-on-network",
    INFO,
    "caches of compiled kernels lie on a network file system",
    read="file system type of ~/.triton, ~/.cache and the cache variables",
    why="all ranks compile and lock there at once: slow starts, stale file handles",
    remedy="TRITON_CACHE_DIR=/tmp/triton-$USER TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$USER",
    source="https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html",
    depends="judged for a job over several hosts only",
)
MEMORY = declare(
    "memory-low",
    WARNING,
    "little memory is free",
    read="MemAvailable and the cgroup's limit",
    why="the kernel ends ranks (signal 9) when memory runs out",
    remedy="look for what holds it: ps -eo pid,rss,args --sort=-rss | head; ask for more (--mem, docker --memory)",
    source="https://docs.kernel.org/filesystems/proc.html, MemAvailable",
    depends="below 512 MiB a rank: a rank with torch needs about that much",
)
NODE_MEMORY = declare(
    "memory-node-low",
    WARNING,
    "a NUMA node that ranks are bound to has little free memory",
    read="MemFree of each node in sysfs",
    why="memory comes from the far node instead; under a strict binding the kernel ends the rank",
    remedy="drop caches there (sync; echo 1 > /proc/sys/vm/drop_caches as root), or --bind none",
    source="numa(7)",
    depends="below 2 % of the node, where the plan binds memory",
    real=False,
)
GOVERNOR = declare(
    "governor-differs",
    WARNING,
    "hosts of like hardware have different CPU governors",
    read="scaling_governor in sysfs",
    why="launch-bound steps are slower on hosts that save power",
    remedy="cpupower frequency-set -g performance as root",
    source="https://docs.kernel.org/admin-guide/pm/cpufreq.html",
    real=False,
)
BALANCING = declare(
    "numa-balancing-on",
    INFO,
    "automatic NUMA balancing is on while the plan binds memory",
    read="kernel.numa_balancing",
    why="page faults on purpose that a bound job gains nothing from",
    remedy="sysctl -w kernel.numa_balancing=0",
    source="https://docs.kernel.org/admin-guide/sysctl/kernel.html",
    depends="judged where the plan binds memory on several nodes",
    real=False,
)
THP = declare(
    "thp-differs",
    INFO,
    "hosts of like hardware have different settings for huge pages",
    read="/sys/kernel/mm/transparent_hugepage/enabled",
    why="memory use and speed differ between hosts",
    remedy="one setting on all hosts, as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    source="https://docs.kernel.org/admin-guide/mm/transhuge.html",
)
STUCK = declare(
    "process-stuck",
    INFO,
    "a process of NVIDIA's driver, Python or torch waits in the kernel",
    read="processes in state D at the moment of reading",
    why="one that stays so cannot be killed: it keeps its GPU, port or file system",
    remedy="look again: ps -eo pid,stat,wchan:30,args | awk '$2 ~ /D/'; if it stays, dmesg, then reboot the host",
    source="proc_pid_stat(5)",
    depends="information only: one reading cannot tell a stuck process from one that waits for its disk",
)
OTHER_RUN = declare(
    "run-beside",
    INFO,
    "processes of another nvrun run are on the host",
    read="NVRUN_MARK in the environment of processes that this user may read",
    why="fine for two jobs side by side; if that run has ended, they are left over from it",
    remedy="nvrun runs; ps -o pid,etime,args -p PIDS",
    source="nvrun marks what it starts",
    depends="what they hold is judged by itself: gpu-busy, port-taken",
)
ENV = declare(
    "env-differs",
    WARNING,
    "a variable that steers NCCL, torch or CUDA differs between hosts",
    read="environment of the job's own chain on each host",
    why="one host behaves differently, in speed at least",
    remedy="set it for all: --env NAME=VALUE; or unset it where it comes from (.bashrc, /etc/environment, module)",
    source="NCCL user guide, Environment variables",
    depends="not judged: variables that belong to one host, and those the plan sets itself",
)
CONF = declare(
    "nccl-conf-differs",
    ERROR,
    "NCCL's conf files say different things on the hosts",
    read="/etc/nccl.conf, NCCL_CONF_FILE or ~/.nccl.conf on each host",
    why="NCCL reads them in every rank: ranks that disagree on protocol or algorithm hang",
    remedy="make the files alike, or set the variable for all with --env NAME=VALUE",
    source="NCCL user guide, Environment variables: nccl.conf",
)


@check(DISK, READONLY, HUNG, NOEXEC, SHARED_CACHE)
def filesystems_fit(filesystems: tuple[Filesystem, ...], facts: HostFacts, job: Job) -> Results:
    """Scratch folders, caches and the working directory have room and can be used."""
    network = []
    for place in filesystems:
        if place.path == "/dev/shm":
            continue  # judged with the limits
        if excuse := excused(place.error, facts):
            yield unread(f"{place.path}: {excuse}")
            continue
        if place.error:
            yield HUNG.found(f"{place.path}: {place.error}", subject=place.path)
            continue
        if place.free_bytes is None:
            yield unread(f"{place.path}: its file system counts no blocks")
        if place.free_inodes == 0 or (place.free_bytes is not None and place.free_bytes < 2 * GIB):
            severe = place.free_inodes == 0 or (place.free_bytes or 0) < 64 * MIB
            what = "no inodes" if place.free_inodes == 0 else f"{size(place.free_bytes or 0)} free"
            yield DISK.found(
                f"{place.path} has {what} ({place.type or 'unknown type'})",
                severity=ERROR if severe else WARNING,
                subject=place.path,
            )
        elif place.path != job.cwd and (place.readonly or place.writable is False):
            scratch = place.path == "/tmp"
            yield READONLY.found(
                f"{place.path} cannot be written", severity=ERROR if scratch else WARNING, subject=place.path
            )
        if place.noexec and place.path != job.cwd:
            yield NOEXEC.found(f"{place.path} is mounted noexec", subject=place.path)
        if place.type.startswith(_NETWORK) and place.path.endswith(_CACHES):
            network.append(place.path)
    if network and len(job.hosts) > 1:
        yield SHARED_CACHE.found(f"on a network file system: {listed(network)}", subject=listed(network))


_NETWORK = ("nfs", "lustre", "cifs", "beegfs", "gpfs", "ceph", "fuse", "wekafs")
_CACHES = ("/.triton", "/.cache", "inductor", "triton")


@check(MEMORY)
def memory_enough(host: str, memory: Memory, job: Job) -> Results:
    """There is free memory for every rank."""
    free = min(memory.available_bytes, memory.cgroup_limit_bytes or memory.available_bytes)
    needed = 512 * MIB * job.ranks.get(host, 1)
    if free < needed:
        yield MEMORY.found(f"{size(free)} available for {job.ranks.get(host, 1)} ranks", observed=str(free))


@check(NODE_MEMORY, BALANCING)
def numa_ready(memory: Memory, numa: tuple[NumaNode, ...], job: Job) -> Results:
    """NUMA nodes have free memory, and the kernel does not move pages, where ranks are bound to them."""
    nodes = [node for node in numa if node.cpus]
    if not job.binds_memory or len(nodes) < 2:
        return
    for node in nodes:
        if node.memory_total and node.memory_free is not None and node.memory_free < 0.02 * node.memory_total:
            yield NODE_MEMORY.found(
                f"NUMA node {node.node} has {size(node.memory_free)} free of {size(node.memory_total)}",
                subject=f"node {node.node}",
            )
    if memory.numa_balancing not in (None, "0"):
        yield BALANCING.found("kernel.numa_balancing is on")


@fleet_check(GOVERNOR, THP)
def cpu_settings_agree(
    cpus: Mapping[str, Cpus], memory: Mapping[str, Memory], groups: tuple[tuple[str, ...], ...]
) -> Results:
    """Hosts of like hardware have one CPU governor and one setting for huge pages."""
    yield from differing(GOVERNOR, {host: one.governor for host, one in cpus.items()}, "CPU governor", groups=groups)
    yield from differing(THP, {host: one.thp for host, one in memory.items()}, "huge pages", groups=groups)


_OURS = re.compile(r"nvidia|nv_|python|torch|pt_|nccl")


@check(STUCK, OTHER_RUN)
def processes_well(processes: tuple[Process, ...], job: Job) -> Results:
    """No process of the driver or of torch is stuck, and none is left from another run."""
    stuck = [p for p in processes if p.state == "D" and _OURS.search(p.command)]
    if stuck:
        names = listed(f"{p.command} (pid {p.pid})" for p in stuck)
        yield STUCK.found(f"waiting in the kernel: {names}", subject="processes")
    runs: dict[str, list[int]] = {}
    for process in processes:
        run = (process.run_mark or "").rpartition(".")[0] or process.run_mark
        if run and run != job.run_id:
            runs.setdefault(run, []).append(process.pid)
    for run, pids in runs.items():
        pids_text = listed(pids)
        yield OTHER_RUN.found(
            f"{len(pids)} processes of run {run}", subject=run, remedy=OTHER_RUN.remedy.replace("PIDS", pids_text)
        )


_STEERS = ("NCCL_", "TORCH", "PYTORCH_", "GLOO_", "UCX_", "FI_", "CUDA_", "OMP_", "MKL_", "KMP_", "LD_", "PYTHON")
_OF_ONE_HOST = {
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_HOSTID"),
    *("NCCL_TOPO_FILE", "NCCL_DEBUG_FILE", "NCCL_RAS_ADDR", "NCCL_CONF_FILE", "UCX_NET_DEVICES"),
    *("CUDA_VISIBLE_DEVICES", "FI_PROVIDER_PATH", *MUST_AGREE),
}
"""Rightly different on each host, or judged by the lint (MUST_AGREE)."""


@fleet_check(ENV)
def environment_agrees(env: Mapping[str, Mapping[str, str]], job: Job) -> Results:
    """Variables that steer NCCL, torch and CUDA are the same on all hosts."""
    every = {name for variables in env.values() for name in variables if name.startswith(_STEERS)}
    for name in sorted(every - _OF_ONE_HOST - job.set_everywhere):
        values = {host: variables.get(name, "unset") for host, variables in env.items()}
        if len(set(values.values())) > 1:
            yield from differing(ENV, values, name, subject=name, remedy=ENV.remedy.replace("NAME", name))


@fleet_check(CONF)
def conf_files_agree(conf_files: Mapping[str, Mapping[str, str]], fleet: Mapping[str, HostFacts]) -> Results:
    """NCCL's conf files say the same on all hosts."""
    settings = {host: _settings(files, fleet[host].env or {}) for host, files in conf_files.items()}
    for name in sorted({name for known in settings.values() for name in known}):
        values = {host: known.get(name, "unset") for host, known in settings.items()}
        for finding in differing(CONF, values, name, subject=name, remedy=CONF.remedy.replace("NAME", name)):
            files = f" ({listed(conf_files[finding.host])})" if finding.host and conf_files[finding.host] else ""
            yield msgspec.structs.replace(finding, message=f"{finding.message}{files}")


def _settings(files: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """What they say, whether the environment overrides it or not."""
    which = {name: value for name, value in env.items() if name == "NCCL_CONF_FILE"}
    return {variable.name: variable.value for variable in conf_variables(files, which)}
