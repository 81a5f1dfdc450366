"""Which of the two modes a command is in, and why.

Fleet: nvrun starts every node. Node: this process is one node of a job that something else starts, as with torchrun.
Pure. Both at once is a UsageError that says which flag to drop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.gather.step import spread
from nvrun.hosts.detect import Detected
from nvrun.model import Frozen
from nvrun.torchrun import TorchrunArgs

FLEET_OPTIONS = ("hosts", "hostfile", "nodes")
"""Options by which the user asks for a fleet."""


class Mode(Frozen, frozen=True, kw_only=True):
    """How the nodes of a job are started."""

    kind: Literal["fleet", "node"]
    why: str
    alone: bool = False
    """A node that is the whole job: nothing else starts others."""


def mode(invocation: Invocation, detected: Detected) -> Mode:
    """The mode of a command in the environment that was `detected`. Raises UsageError for a contradiction."""
    sources, torchrun = invocation.sources, invocation.torchrun
    fleet = next((sources[name] for name in FLEET_OPTIONS if name in sources), None)
    node = _node_reason(torchrun)
    if fleet and node:
        raise UsageError(
            f"{fleet} and {node} contradict each other: nvrun either starts all nodes or is one of them",
            hint=f"drop {fleet} on each node, or {node} to have nvrun start all of them",
        )
    if fleet and detected.is_node and (detected.nodes is None or detected.nodes > 1):
        raise UsageError(
            f"{fleet} asks nvrun to start all nodes, but this is already one of several ({detected.why[0]})",
            hint=f"drop {fleet}, or start nvrun once, outside of it",
        )
    if node:
        return Mode(kind="node", why=f"{node}: something else starts the other nodes")
    if fleet:
        return Mode(kind="fleet", why=f"{fleet} names the hosts")
    if detected.is_node:
        _refuse_crowd(detected)
        return Mode(kind="node", why=f"{detected.kind}: {detected.why[0]}")
    if torchrun.nnodes[1] > 1 and detected.kind == "none":
        return Mode(kind="node", why=f"{torchrun.origin['nnodes']} without hosts: as torchrun does it")
    if detected.kind != "none" and not torchrun.standalone:
        return Mode(kind="fleet", why=f"alone in an allocation ({detected.kind}: {detected.why[0]})")
    return Mode(kind="node", why="one machine", alone=True)


def _node_reason(torchrun: TorchrunArgs) -> str | None:
    """The flag or variable that says that this is one node, started by something else."""
    origin: Mapping[str, str] = torchrun.origin
    if "node_rank" in origin:
        return origin["node_rank"]
    if torchrun.standalone:
        return origin["standalone"]
    if torchrun.nnodes[1] > 1:
        return next((origin[name] for name in ("master_addr", "rdzv_endpoint") if name in origin), None)
    return None


def _refuse_crowd(detected: Detected) -> None:
    """More processes than nodes would each start a whole node's ranks."""
    most = max(detected.tasks_per_node, default=1)
    if most < 2:
        return
    remedy = {
        "slurm step": "srun --ntasks-per-node=1 --cpus-per-task=$SLURM_CPUS_ON_NODE nvrun ...",
        "open mpi": "mpirun --map-by ppr:1:node --bind-to none nvrun ...",
    }[detected.kind]
    raise UsageError(f"{most} processes of nvrun on one node, where one is wanted ({detected.kind})", hint=remedy)


def node_arguments(torchrun: TorchrunArgs, detected: Detected, ports: tuple[int, int] = (29500, 29599)) -> TorchrunArgs:
    """In node mode: what the environment knows and the user did not say, as torchrun's settings.

    With a rendezvous flag or PET_* of the user nothing is changed. Nodes of a Slurm step must agree before they have
    met: the port, one of `ports` (first and last), and the id follow from the step.
    """
    if detected.kind in ("torchrun", "none") or torchrun.standalone:
        return torchrun
    if torchrun.is_set("nnodes", "node_rank", "master_addr", "rdzv_endpoint", "rdzv_backend"):
        return torchrun
    if detected.nodes is None or detected.node_rank is None:
        raise UsageError(f"{detected.kind}: the number of nodes or this node's rank is not in the environment")
    values: dict[str, object] = {"nnodes": (detected.nodes, detected.nodes), "node_rank": detected.node_rank}
    master = detected.master_addr or (detected.hosts[0].name if detected.hosts else None)
    if detected.nodes > 1 and master is None:
        raise UsageError(
            f"{detected.kind}: nothing says where node 0 is", hint="export MASTER_ADDR, or give --rdzv-endpoint"
        )
    if detected.nodes > 1:
        values["master_addr"] = master
        if detected.master_port is not None and not torchrun.is_set("master_port"):
            values["master_port"] = detected.master_port
    if detected.nodes > 1 and detected.job_id is not None and detected.step_id is not None:
        if not torchrun.is_set("rdzv_id"):
            values["rdzv_id"] = f"slurm-{detected.job_id}.{detected.step_id}"
        if detected.master_port is None and not torchrun.is_set("master_port"):
            first, last = ports
            values["master_port"] = first + spread(detected.job_id, detected.step_id) % (last + 1 - first)
    return torchrun.replacing(**values)
