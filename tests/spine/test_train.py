"""A real training over every way to the hosts gives the loss that bare torchrun gives."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab.lab import REPOSITORY, USER, Lab
from tests.spine.jobs import Way, command, result

pytestmark = pytest.mark.lab

TRAINING = (str(REPOSITORY / "examples/train_ddp.py"), "--steps", "5")


def loss(output: str) -> str:
    (found,) = re.findall(r"ranks, gloo, loss=(\S+)", output)
    return str(found)


def bare(lab: Lab, hosts: Sequence[str], ranks: int) -> str:
    """The loss of torchrun started by one ssh a host."""
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes={len(hosts)} --nproc-per-node={ranks}"
    endpoint = f"--master-addr={lab.address(hosts[0])} --master-port=29700"
    script = "".join(
        f"ssh {host} '{torchrun} --node-rank={node} {endpoint} {' '.join(TRAINING)}' &\n"
        for node, host in enumerate(hosts)
    )
    return loss(lab.run(["sh", "-c", script + "wait"], timeout=60, check=True).stdout)


@pytest.fixture(scope="module")
def losses(lab: Lab) -> dict[tuple[int, int], str]:
    """(hosts, ranks of each) -> bare torchrun's loss."""
    return {(2, 2): bare(lab, ("a", "b"), 2), (3, 1): bare(lab, ("a", "b", "c"), 1)}


@pytest.mark.parametrize(
    ("way", "hosts", "ranks", "user"),
    [
        ("ssh", ("a", "b"), 2, USER),
        ("ssh", ("a", "b", "c"), 1, "root"),
        ("rsh", ("a", "b"), 2, "root"),
        ("srun", ("a", "b"), 2, USER),
    ],
)
def test_same_loss(
    way: Way,
    hosts: Sequence[str],
    ranks: int,
    user: str,
    losses: dict[tuple[int, int], str],
    place: Path,
    request: pytest.FixtureRequest,
) -> None:
    lab = request.getfixturevalue("slurm_lab" if way == "srun" else "lab")
    arguments: list[str | Path] = ["--nproc-per-node", str(ranks), "--run-dir", place / "runs", *TRAINING]
    done = lab.run(command(lab, way, hosts, arguments, place), user=user, timeout=60)
    assert done.returncode == 0, done.stderr
    assert loss(done.stdout) == losses[len(hosts), ranks]
    told = result(place)
    assert told["ended_by"] == "success"
    assert [(end["rank"], end["host"], end["code"]) for end in told["ranks"]] == [
        (rank, hosts[rank // ranks], 0) for rank in range(len(hosts) * ranks)
    ]
