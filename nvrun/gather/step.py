"""The Slurm step of this process, and the ports that follow from it. Pure."""

from __future__ import annotations

from nvrun.hosts.detect import Detected
from nvrun.model import Frozen

FIRST_PORT, PORTS, TRIES = 29600, 200, 9
"""Steps spread over 200 ports; where one is taken, the next eight are tried."""


class Step(Frozen, frozen=True, kw_only=True):
    """One step with one nvrun on each of its nodes."""

    job_id: int
    step_id: int
    node: int
    """This node's place among them."""
    names: tuple[str, ...]
    """Slurm's names of the nodes, in rank order."""

    @property
    def key(self) -> str:
        """`123.0`, as Slurm writes it."""
        return f"{self.job_id}.{self.step_id}"

    @property
    def ports(self) -> range:
        """Where the first node may listen."""
        first = FIRST_PORT + spread(self.job_id, self.step_id) % PORTS
        return range(first, first + TRIES)


def spread(job_id: int, step_id: int) -> int:
    """Neighbouring jobs and the steps of one job get different numbers."""
    return job_id * 64 + step_id


def step_of(detected: Detected) -> Step | None:
    """The step, where this process is one node of one."""
    if detected.kind != "slurm step" or detected.job_id is None or detected.step_id is None:
        return None
    if detected.node_rank is None or not detected.hosts:
        return None
    names = tuple(host.name for host in detected.hosts)
    return Step(job_id=detected.job_id, step_id=detected.step_id, node=detected.node_rank, names=names)
