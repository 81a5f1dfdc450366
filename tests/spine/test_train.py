"""A real training over every way to the hosts gives the loss that bare torchrun gives."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.lab.lab import REPOSITORY, USER, Lab
from tests.spine.jobs import Way, command, result

pytestmark = pytest.mark.lab

TRAINING = (str(REPOSITORY / "examples/train_ddp.py"), "--steps", "5")


def loss(output: str) -> str:
    (found,) = re.findall(r"ranks, gloo, loss=(\S+)", output)
    return str(found)


@pytest.fixture(scope="module")
def bare(lab: Lab) -> str:
    """The loss of torchrun started by one ssh a host, two ranks on each."""
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2"
    endpoint = f"--master-addr={lab.address('a')} --master-port=29700"
    script = "".join(
        f"ssh {host} '{torchrun} --node-rank={node} {endpoint} {' '.join(TRAINING)}' &\n"
        for node, host in enumerate("ab")
    )
    return loss(lab.run(["sh", "-c", script + "wait"], timeout=60, check=True).stdout)


@pytest.mark.parametrize(("way", "user"), [("ssh", USER), ("rsh", "root"), ("srun", USER)])
def test_same_loss(way: Way, user: str, bare: str, place: Path, request: pytest.FixtureRequest) -> None:
    lab = request.getfixturevalue("slurm_lab" if way == "srun" else "lab")
    arguments: list[str | Path] = ["--nproc-per-node", "2", "--run-dir", place / "runs", *TRAINING]
    done = lab.run(command(lab, way, ("a", "b"), arguments, place), user=user, timeout=60)
    assert done.returncode == 0, done.stderr
    assert loss(done.stdout) == bare
    told = result(place)
    assert told["ended_by"] == "success"
    assert [(end["rank"], end["host"], end["code"]) for end in told["ranks"]] == [
        (rank, "ab"[rank // 2], 0) for rank in range(4)
    ]
