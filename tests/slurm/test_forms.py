"""The same command in a job script and under srun: where its ranks are, and that they train alike."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.lab import faults
from tests.lab.lab import Lab
from tests.slurm.batch import NVRUN, REPOSITORY, STEP, Batch, submitted

pytestmark = pytest.mark.lab

NODES = ("--cpus-per-task=4", "--mem=100")
"""Half a node each, so that jobs can run side by side."""
TRAIN = f"{REPOSITORY}/examples/train_ddp.py --steps 5"
TELL = """
import os
print("RANK", *(os.environ.get(name, "-") for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")))
"""


def loss(output: str) -> str:
    (found,) = re.findall(r"ranks, gloo, loss=(\S+)", output)
    return str(found)


def places(output: str) -> list[str]:
    """`host rank world devices` of every rank, in rank order."""
    found = re.findall(r"^(\S+?):\d+: RANK (\d+) (\d+) (\S+)", output, re.MULTILINE)
    return [" ".join(each) for each in sorted(found, key=lambda each: int(each[1]))]


def over(job: Batch, timeout: float = 60) -> str:
    output = job.wait(timeout)
    assert job.code == 0, output
    return output


def test_the_loss_is_that_of_the_ssh_form(slurm_lab: Lab, place: Path) -> None:
    nvrun = f"{NVRUN} --nproc-per-node 1 --hook none --env OMP_NUM_THREADS=1"
    script = f"""
        {nvrun} {TRAIN}
        {STEP} {nvrun} {TRAIN} > srun
        {nvrun} --fleet ssh {TRAIN} > ssh"""
    with submitted(slurm_lab, place, script, "--nodes=2", *NODES) as job:
        alone = loss(over(job, 150))
    assert loss((place / "srun").read_text()) == loss((place / "ssh").read_text()) == alone


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        (("--nodes=3", "--gres=gpu:2", *NODES), "0,1"),
        (("--nodes=3", "--ntasks-per-node=2", "--gpus-per-task=2", "--cpus-per-task=2", "--mem=100"), "0,1,2,3"),
    ],
    ids=["gres", "gpus-per-task"],
)
def test_ranks_are_in_the_order_of_nodes_with_all_gpus_of_the_job(
    slurm_lab: Lab, place: Path, asked: tuple[str, ...], devices: str
) -> None:
    (place / "tell.py").write_text(TELL)
    with submitted(slurm_lab, place, f"{NVRUN} --nproc-per-node 1 tell.py", *asked) as job:
        assert places(over(job)) == [f"{host} {rank} 3 {devices}" for rank, host in enumerate("abc")]


def test_a_spare_stands_in_for_a_bad_node(slurm_lab: Lab, place: Path) -> None:
    (place / "tell.py").write_text(TELL)
    with (
        faults.name_to_loopback(slurm_lab, "b"),
        submitted(slurm_lab, place, f"{NVRUN} --nodes 2 --nproc-per-node 1 tell.py", "--nodes=3", *NODES) as job,
    ):
        output = over(job)
    assert [each.split()[0] for each in places(output)] == ["a", "c"]
    assert "b: its own name b resolves to 127.0.1.1" in output
    assert "without b: starting again on a, c" in output


def test_nodes_of_a_step_that_differ_are_named(slurm_lab: Lab, place: Path) -> None:
    (place / "tell.py").write_text(TELL)
    command = f"{NVRUN} --nproc-per-node 1 $(test $SLURM_NODEID = 0 || echo --max-restarts=1) tell.py"
    script = f"{STEP} bash -c {shlex.quote(command)}"
    with submitted(slurm_lab, place, script, "--nodes=2", *NODES) as job:
        output = job.wait()
    assert job.code == 78
    assert "b: its command line is another than on a" in output
    assert places(output) == []


def test_a_bad_node_of_a_step_refuses_all(slurm_lab: Lab, place: Path) -> None:
    (place / "tell.py").write_text(TELL)
    script = f"{STEP} {NVRUN} --nproc-per-node 1 tell.py"
    with (
        faults.name_to_loopback(slurm_lab, "b"),
        submitted(slurm_lab, place, script, "--nodes=3", *NODES) as job,
    ):
        output = job.wait()
    assert job.code == 78
    assert output.count("b: its own name b resolves to 127.0.1.1") == 2, "the first node says it, and b itself"
    assert output.count("refused by the checks: a says why") == 2
    assert output.count("without the bad nodes: sbatch --exclude=b\n") == 1
    assert places(output) == []


def test_one_failing_rank_ends_the_step_everywhere(slurm_lab: Lab, place: Path) -> None:
    (place / "fail.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '2': sys.exit(37)\ntime.sleep(100)\n"
    )
    script = f"{STEP} {NVRUN} --nproc-per-node 1 fail.py"
    with submitted(slurm_lab, place, script, "--nodes=3", *NODES) as job:
        output = job.wait(40)
    assert job.code == 37
    assert output.count("ended on c: rank 2 on c failed") == 2
    assert "nvrun: 1 of 3 ranks on c" in output
    assert "nvrun:   c: rank 2, " in output
    assert "clock_offset_s" not in output


def test_more_tasks_than_nodes(slurm_lab: Lab, place: Path) -> None:
    script = f"srun --ntasks-per-node=2 {NVRUN} tell.py"
    with submitted(slurm_lab, place, script, "--nodes=2", "--ntasks-per-node=2", "--mem=100") as job:
        output = job.wait()
    assert job.code == 2
    assert "2 processes of nvrun on one node, where one is wanted" in output
    assert "srun --ntasks-per-node=1 --cpus-per-task=" in output
