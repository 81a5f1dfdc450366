"""What started this process, told from its environment: Slurm, Kubernetes, PBS, LSF, Open MPI, or nothing.

    files = {path: text for path in detect.files_named(environ) ...}   # the caller reads them
    found = detect.detect(environ, files)

The more specific wins: variables of torchrun itself (PET_*), then what tells this node's rank (Open MPI, a Slurm step,
MASTER_ADDR with RANK), then an allocation (Slurm, PBS, LSF). Pure.
Sources of the names: srun(1) and sbatch(1), OUTPUT ENVIRONMENT VARIABLES; Kubeflow training-operator, PyTorchJob; PBS
Professional's PBS_NODEFILE; LSF's LSB_MCPU_HOSTS and LSB_DJOB_HOSTFILE; Open MPI's OMPI_COMM_WORLD_*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from nvrun.errors import UsageError
from nvrun.hosts import nodeset
from nvrun.model import Frozen, Host

Kind = Literal["torchrun", "kubernetes", "open mpi", "slurm step", "slurm allocation", "pbs", "lsf", "none"]

# Step ids that are no step of srun (slurm/slurm.h: SLURM_PENDING_STEP down to SLURM_INTERACTIVE_STEP).
_NO_STEP = 0xFFFF_FFF0

NODE_VARIABLES = ("PET_NODE_RANK", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR")
"""With PET_NNODES above 1 each of these says that something else starts the other nodes."""


class Detected(Frozen, frozen=True, kw_only=True):
    """What the environment says. None: it does not say."""

    kind: Kind
    why: tuple[str, ...]
    """The variables this stands on, one line each, for `nvrun hosts`."""
    hosts: tuple[Host, ...] = ()
    """In rank order; slots are never taken from a scheduler's CPU slots."""
    nodes: int | None = None
    node_rank: int | None = None
    """Of this process; None where this process stands for the whole job."""
    tasks_per_node: tuple[int, ...] = ()
    """How many processes like this one run on each node (a step, mpirun); empty for an allocation."""
    cpus_per_node: tuple[int, ...] = ()
    gpus_on_node: int | None = None
    """GPUs the scheduler gave this node."""
    master_addr: str | None = None
    master_port: int | None = None
    job_id: int | None = None
    """Of Slurm's job."""
    step_id: int | None = None

    @property
    def is_node(self) -> bool:
        """This process is one node of a job that something else started."""
        return self.kind in ("torchrun", "kubernetes", "open mpi", "slurm step")


def files_named(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Files that the environment names and that `detect` wants the text of."""
    return tuple(environ[name] for name in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE") if environ.get(name))


def detect(environ: Mapping[str, str], files: Mapping[str, str] | None = None) -> Detected:
    """Raises UsageError where a variable that must be read cannot be."""
    for reader in (_torchrun, _open_mpi, _slurm_step, _kubernetes, _slurm_allocation):
        found = reader(environ)
        if found:
            return found
    return (
        _pbs(environ, files or {})
        or _lsf(environ, files or {})
        or Detected(kind="none", why=("neither Slurm, Kubernetes, PBS, LSF nor Open MPI",))
    )


def _torchrun(environ: Mapping[str, str]) -> Detected | None:
    given = [name for name in NODE_VARIABLES if environ.get(name)]
    nodes = environ.get("PET_NNODES", "1").rpartition(":")[2]
    if not given or nodes == "1":
        return None
    return Detected(
        kind="torchrun",
        why=_why(environ, "PET_NNODES", *given),
        nodes=_number(environ, "PET_NNODES", nodes),
        node_rank=_optional(environ, "PET_NODE_RANK"),
        master_addr=environ.get("PET_MASTER_ADDR") or None,
        master_port=_optional(environ, "PET_MASTER_PORT"),
    )


def _kubernetes(environ: Mapping[str, str]) -> Detected | None:
    """PyTorchJob without PET_*: RANK is the pod's, WORLD_SIZE counts pods, or ranks where PET_NPROC_PER_NODE is set."""
    if not all(environ.get(name) for name in ("MASTER_ADDR", "RANK", "WORLD_SIZE")):
        return None
    if "TORCHELASTIC_RUN_ID" in environ or "LOCAL_RANK" in environ:
        return None  # a rank of another launcher, not a node
    world = _number(environ, "WORLD_SIZE")
    ranks_per_node = environ.get("PET_NPROC_PER_NODE", "1")
    return Detected(
        kind="kubernetes",
        why=_why(environ, "MASTER_ADDR", "RANK", "WORLD_SIZE", "PET_NPROC_PER_NODE", "KUBERNETES_SERVICE_HOST"),
        nodes=max(1, world // int(ranks_per_node)) if ranks_per_node.isdecimal() and int(ranks_per_node) else world,
        node_rank=_number(environ, "RANK"),
        master_addr=environ["MASTER_ADDR"],
        master_port=_optional(environ, "MASTER_PORT"),
    )


def _open_mpi(environ: Mapping[str, str]) -> Detected | None:
    if not environ.get("OMPI_COMM_WORLD_SIZE") or not environ.get("OMPI_COMM_WORLD_RANK"):
        return None
    size, local = _number(environ, "OMPI_COMM_WORLD_SIZE"), _optional(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    return Detected(
        kind="open mpi",
        why=_why(environ, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "MASTER_ADDR"),
        # With several processes a node the number of nodes is not in the environment.
        nodes=size if local == 1 else None,
        node_rank=_number(environ, "OMPI_COMM_WORLD_RANK") if local == 1 else None,
        tasks_per_node=() if local is None else (local,),
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_optional(environ, "MASTER_PORT"),
    )


def _slurm_step(environ: Mapping[str, str]) -> Detected | None:
    """A task of srun; not the batch script, not a shell (`srun --pty`, salloc's interactive step)."""
    if not environ.get("SLURM_JOB_ID") or not environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_PTY_PORT"):
        return None
    step = environ.get("SLURM_STEP_ID", "0")
    if not step.isdecimal() or int(step) >= _NO_STEP:
        return None
    names = nodeset.expand(environ["SLURM_STEP_NODELIST"], "SLURM_STEP_NODELIST")
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    return Detected(
        kind="slurm step",
        why=_why(environ, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"),
        hosts=tuple(Host(name=name) for name in names),
        nodes=len(names),
        node_rank=_optional(environ, "SLURM_NODEID"),
        tasks_per_node=nodeset.counts(tasks, "SLURM_STEP_TASKS_PER_NODE") if tasks else (),
        cpus_per_node=_cpus(environ),
        gpus_on_node=_slurm_gpus(environ),
        job_id=_number(environ, "SLURM_JOB_ID"),
        step_id=int(step),
        # What a script exports is the user's word; srun itself never sets these.
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_optional(environ, "MASTER_PORT"),
    )


def _slurm_allocation(environ: Mapping[str, str]) -> Detected | None:
    if not environ.get("SLURM_JOB_ID"):
        return None
    variable = next((name for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if environ.get(name)), None)
    if variable is None:
        return None
    names = nodeset.expand(environ[variable], variable)
    return Detected(
        kind="slurm allocation",
        why=_why(environ, "SLURM_JOB_ID", variable, "SLURM_JOB_CPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
        hosts=tuple(Host(name=name) for name in names),
        nodes=len(names),
        cpus_per_node=_cpus(environ),
        gpus_on_node=_slurm_gpus(environ),
        job_id=_number(environ, "SLURM_JOB_ID"),
    )


def _cpus(environ: Mapping[str, str]) -> tuple[int, ...]:
    text = environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    return nodeset.counts(text, "SLURM_JOB_CPUS_PER_NODE") if text else ()


def _slurm_gpus(environ: Mapping[str, str]) -> int | None:
    """SLURM_GPUS_ON_NODE, a plain number; SLURM_GPUS_PER_NODE may be `a100:4` and counts what was asked for."""
    text = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(text) if text.isdecimal() and len(text) < 6 else None


def _pbs(environ: Mapping[str, str], files: Mapping[str, str]) -> Detected | None:
    path = environ.get("PBS_NODEFILE")
    if not path or not environ.get("PBS_JOBID"):
        return None
    return _scheduled("pbs", _why(environ, "PBS_JOBID", "PBS_NODEFILE"), path, files)


def _lsf(environ: Mapping[str, str], files: Mapping[str, str]) -> Detected | None:
    if not environ.get("LSB_JOBID"):
        return None
    counted = environ.get("LSB_MCPU_HOSTS", "").split()
    if counted:
        names, slots = counted[::2], counted[1::2]
        if len(names) != len(slots) or not all(slot.isdecimal() for slot in slots):
            raise UsageError(f"LSB_MCPU_HOSTS: expected HOST SLOTS pairs, got {environ['LSB_MCPU_HOSTS'][:60]!r}")
        return _allocation("lsf", _why(environ, "LSB_JOBID", "LSB_MCPU_HOSTS"), names, "LSB_MCPU_HOSTS")
    path = environ.get("LSB_DJOB_HOSTFILE")
    if path:
        return _scheduled("lsf", _why(environ, "LSB_JOBID", "LSB_DJOB_HOSTFILE"), path, files)
    return None


def _scheduled(kind: Kind, why: tuple[str, ...], path: str, files: Mapping[str, str]) -> Detected:
    """An allocation whose hosts stand in a file, one line for each slot."""
    if path not in files:
        raise UsageError(f"{why[-1]}: the file could not be read")
    return _allocation(kind, why, files[path].split(), path)


def _allocation(kind: Kind, why: tuple[str, ...], names: list[str], where: str) -> Detected:
    for name in names:
        if not nodeset.is_host_name(name):
            raise UsageError(f"{where}: {name[:60]!r} is no host name")
    hosts = tuple(Host(name=name) for name in dict.fromkeys(names))
    if not hosts:
        raise UsageError(f"{where}: names no host")
    return Detected(kind=kind, why=why, hosts=hosts, nodes=len(hosts))


def _why(environ: Mapping[str, str], *names: str) -> tuple[str, ...]:
    lines = [f"{name}={environ[name]}" for name in names if environ.get(name)]
    return tuple(line if len(line) <= 200 else line[:197] + "..." for line in lines)


def _number(environ: Mapping[str, str], name: str, text: str | None = None) -> int:
    text = environ[name] if text is None else text
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{name}: expected a whole number, got {text[:60]!r}")
    return int(text)


def _optional(environ: Mapping[str, str], name: str) -> int | None:
    return _number(environ, name) if environ.get(name) else None
