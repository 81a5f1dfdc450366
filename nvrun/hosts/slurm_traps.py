"""What goes wrong in Slurm job scripts, found from the environment and a few readings of this host. Pure.

Sources: srun(1) (one CPU per task by default; --cpus-per-task is not inherited from sbatch since 22.05; --gpus-per-task
implies binding; --export and SLURM_EXPORT_ENV), sbatch(1) (SLURM_RESTART_COUNT, SLURM_HET_SIZE), slurm.conf(5)
(PropagateResourceLimitsExcept); NCCL issues 1066 and 1948 for what isolated GPUs cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nvrun.endpoint import host_and_port, is_loopback
from nvrun.hosts import meanings  # noqa: F401 - declares the codes
from nvrun.hosts.detect import Detected
from nvrun.meanings import found
from nvrun.model import Finding, Frozen, Severity
from nvrun.torchrun import TorchrunArgs


class Seen(Frozen, frozen=True, kw_only=True):
    """What this process sees of its host. None: not read, and the trap that needs it is not judged."""

    hostname: str | None = None
    cpus: int | None = None
    """CPUs this process may use."""
    online: int | None = None
    """CPUs there are: Slurm may have been told of more."""
    gpus: int | None = None
    """GPUs that can be opened here."""
    pci_gpus: int | None = None
    """GPUs on the PCI bus, whether Slurm gave them or not."""
    memlock_bytes: int | None = None
    """RLIMIT_MEMLOCK; -1 is unlimited."""
    rdma: bool | None = None


def traps(environ: Mapping[str, str], detected: Detected, torchrun: TorchrunArgs, seen: Seen) -> list[Finding]:
    """The traps this job has stepped into; none outside of Slurm."""
    if not environ.get("SLURM_JOB_ID"):
        return []
    return [
        *_leftover(environ, detected, seen),
        *_few_cpus(detected, torchrun, seen),
        *_isolated_gpus(environ, detected, seen),
        *_no_gres(environ, detected, seen),
        *_het_job(environ),
        *_requeued(environ),
        *_export_none(environ),
        *_loopback_master(detected, torchrun),
        *_rank_expanded_early(detected, torchrun),
        *_memlock(seen),
    ]


def _leftover(environ: Mapping[str, str], detected: Detected, seen: Seen) -> Iterator[Finding]:
    """SLURM_* of another job: a login shell or tmux that was started inside one."""
    here = (seen.hostname or "").partition(".")[0]
    names = {host.name.partition(".")[0] for host in detected.hosts}
    # salloc leaves its shell on the machine it was typed on, which need not be a node of the job.
    submitted_here = environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0] == here
    # Slurm's node name may differ from the host's (NodeHostname): SLURMD_NODENAME is what slurmd calls this node.
    known = environ.get("SLURMD_NODENAME") in {host.name for host in detected.hosts}
    if here and names and here not in names and not submitted_here and not known:
        yield found(
            "slurm-variables-left-over",
            Severity.ERROR,
            f"SLURM_* describe job {environ['SLURM_JOB_ID']}, but {seen.hostname} is not one of its nodes",
            subject=f"job {environ['SLURM_JOB_ID']}",
            observed=seen.hostname or "",
            expected=" ".join(sorted(names)[:4]),
        )


def _few_cpus(detected: Detected, torchrun: TorchrunArgs, seen: Seen) -> Iterator[Finding]:
    """Fewer CPUs than ranks (without --nproc-per-node: than GPUs), or one CPU: srun gives a task one CPU unless told
    otherwise."""
    gpus = seen.gpus or detected.gpus_on_node or 0
    asked = torchrun.nproc_per_node if torchrun.is_set("nproc_per_node") else None
    wanted, what = (asked, "rank") if isinstance(asked, int) else (max(gpus, 1), "GPU" if gpus else "rank")
    of_node = max(detected.cpus_per_node, default=0)
    if seen.online is not None:
        of_node = min(of_node, seen.online)
    if seen.cpus is None or (seen.cpus > 1 and seen.cpus >= wanted):
        return
    if detected.kind == "slurm step" and of_node > seen.cpus:
        yield found(
            "slurm-one-cpu-per-task",
            Severity.ERROR,
            f"this step may use {seen.cpus} of the job's {of_node} CPUs on this node",
            observed=f"{seen.cpus} CPU{'s' * (seen.cpus > 1)}",
            expected=f"{of_node} CPUs",
            remedy=f"srun --cpus-per-task={of_node}: it is not taken over from sbatch",
        )
    elif gpus or detected.kind == "slurm step":
        yield found(
            "slurm-few-cpus",
            Severity.WARNING,
            f"the job has {seen.cpus} CPU{'s' * (seen.cpus > 1)} on this node for {wanted} {what}{'s' * (wanted > 1)}",
            observed=f"{seen.cpus}",
            expected=f"at least {wanted * 2}",
        )


def _isolated_gpus(environ: Mapping[str, str], detected: Detected, seen: Seen) -> Iterator[Finding]:
    """A task that sees fewer GPUs than the job has here: ranks of other tasks cannot be reached by P2P."""
    given = detected.gpus_on_node
    asked = next(
        (
            f"{name}={environ[name]}"
            for name in ("SLURMD_TRES_BIND", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")
            if "none" not in environ.get(name, "none") and ("TRES" not in name or "gpu" in environ[name])
        ),
        None,
    )
    if asked and given and seen.gpus is not None and seen.gpus < given:
        yield found(
            "slurm-gpus-isolated",
            Severity.ERROR,
            f"this task sees {seen.gpus} of the {given} GPUs that the job has on this node ({asked})",
            observed=f"{seen.gpus} GPUs",
            expected=f"{given} GPUs",
            evidence=(asked,),
        )


def _no_gres(environ: Mapping[str, str], detected: Detected, seen: Seen) -> Iterator[Finding]:
    """A node with GPUs of which the job asked for none."""
    names = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
    none_files = environ.get("CUDA_VISIBLE_DEVICES") == "NoDevFiles"
    if not none_files and (detected.gpus_on_node or not seen.pci_gpus or any(environ.get(name) for name in names)):
        return
    if none_files or seen.gpus == 0:
        yield found(
            "slurm-no-gpus-asked",
            Severity.ERROR,
            "the job asked for no GPU, so Slurm hides those of this node",
            observed="0 GPUs" + (", CUDA_VISIBLE_DEVICES=NoDevFiles" if none_files else ""),
        )
    elif seen.gpus:
        yield found(
            "slurm-gpus-not-reserved",
            Severity.WARNING,
            f"the job asked for no GPU, but can open all {seen.gpus} of this node: others may use them",
        )


def _het_job(environ: Mapping[str, str]) -> Iterator[Finding]:
    size = environ.get("SLURM_HET_SIZE") or environ.get("SLURM_PACK_SIZE") or "1"
    if size != "1":
        prefix = "SLURM_JOB_NODELIST_HET_GROUP_"
        groups = tuple(f"{name}={environ[name]}" for name in sorted(environ) if name.startswith(prefix))
        yield found(
            "slurm-het-job",
            Severity.WARNING,
            f"a heterogeneous job of {size} groups: SLURM_JOB_NODELIST names the nodes of one group only",
            evidence=groups,
        )


def _requeued(environ: Mapping[str, str]) -> Iterator[Finding]:
    count = environ.get("SLURM_RESTART_COUNT", "0")
    if count != "0":
        yield found(
            "slurm-requeued",
            Severity.INFO,
            f"this job was requeued {count} times: its nodes and the time left may differ from the first try",
        )


def _export_none(environ: Mapping[str, str]) -> Iterator[Finding]:
    export = environ.get("SLURM_EXPORT_ENV")
    if export is not None and export.upper() in ("NONE", "NIL"):
        yield found(
            "slurm-export-none",
            Severity.WARNING,
            "sbatch --export=NONE holds for every srun of the script too: steps get no environment",
            observed=f"SLURM_EXPORT_ENV={export}",
        )


def _loopback_master(detected: Detected, torchrun: TorchrunArgs) -> Iterator[Finding]:
    """`... || echo localhost`: every node then waits for itself."""
    nodes = max(torchrun.nnodes[1], detected.nodes or 1 if detected.is_node else 1)
    master = torchrun.master_addr if torchrun.is_set("master_addr") else detected.master_addr or ""
    host = host_and_port(torchrun.rdzv_endpoint, 0)[0] if torchrun.rdzv_endpoint else master
    if nodes > 1 and is_loopback(host):
        yield found(
            "slurm-master-is-loopback",
            Severity.ERROR,
            f"{nodes} nodes are told to meet at {host}: each would find only itself",
            observed=host,
            expected=detected.hosts[0].name if detected.hosts else "the first node",
        )


def _rank_expanded_early(detected: Detected, torchrun: TorchrunArgs) -> Iterator[Finding]:
    """`srun nvrun --node-rank $SLURM_NODEID` in a batch script: the shell of the first node expands it, to 0."""
    rank = detected.node_rank
    if detected.kind == "slurm step" and torchrun.is_set("node_rank") and rank not in (None, torchrun.node_rank):
        yield found(
            "slurm-node-rank-expanded-early",
            Severity.ERROR,
            f"{torchrun.origin['node_rank']} is {torchrun.node_rank} on the node whose SLURM_NODEID is {rank}",
            observed=str(torchrun.node_rank),
            expected=str(rank),
        )


def _memlock(seen: Seen) -> Iterator[Finding]:
    """Slurm hands the limits of the login shell on to the job."""
    if seen.rdma and seen.memlock_bytes is not None and 0 <= seen.memlock_bytes < 1 << 30:
        yield found(
            "slurm-memlock-propagated",
            Severity.WARNING,
            "locked memory is limited as on the login node: RDMA cannot register its buffers",
            observed=f"{seen.memlock_bytes >> 10} KiB",
            expected="unlimited",
        )
