"""What a real Slurm puts into the environment, and what is told from it."""

from __future__ import annotations

import base64
import shlex

import pytest

from nvrun.hosts.detect import Detected, detect
from nvrun.hosts.slurm_traps import Seen, traps
from nvrun.torchrun import TorchrunArgs
from tests.lab.lab import LAUNCHER, Lab

pytestmark = pytest.mark.lab

SHOW = "env -0 | base64 -w0"


def environment(lab: Lab, command: str) -> dict[str, str]:
    """The environment that `command`, a shell line with {show} in it, printed on the launcher."""
    done = lab.exec(LAUNCHER, ["bash", "-c", command.format(show=shlex.quote(SHOW))], timeout=60)
    printed = next(line for line in done.stdout.splitlines() if len(line) > 100)
    pairs = base64.b64decode(printed).decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def detected(lab: Lab, command: str) -> tuple[dict[str, str], Detected]:
    environ = environment(lab, command)
    return environ, detect(environ)


def names(found: Detected) -> list[str]:
    return [host.name for host in found.hosts]


def test_a_batch_script(slurm_lab: Lab) -> None:
    environ, found = detected(slurm_lab, "sbatch -N2 --gres=gpu:4 -W -o %N.out --wrap {show} >&2; cat *.out; rm *.out")
    assert (found.kind, names(found), found.node_rank, found.gpus_on_node) == ("slurm allocation", ["a", "b"], None, 4)
    seen = Seen(hostname="a", cpus=8, gpus=4, pci_gpus=4)
    assert traps(environ, found, TorchrunArgs(), seen) == []


def test_a_task_of_srun(slurm_lab: Lab) -> None:
    _, found = detected(slurm_lab, "srun -N2 --ntasks-per-node=1 bash -c 'if [ $SLURM_NODEID = 1 ]; then '{show}'; fi'")
    assert (found.kind, names(found), found.node_rank, found.tasks_per_node) == ("slurm step", ["a", "b"], 1, (1, 1))


def test_shells_stand_for_the_whole_job(slurm_lab: Lab) -> None:
    _, found = detected(slurm_lab, "salloc -N2 bash -c {show}")
    assert (found.kind, names(found)) == ("slurm allocation", ["a", "b"])
    pty = "script -qec 'srun -N2 --pty bash -c \"env -0 | base64 -w0\"' /dev/null"
    _, found = detected(slurm_lab, pty)
    assert (found.kind, names(found)) == ("slurm allocation", ["a", "b"])


def test_gpus_per_task_are_isolated(slurm_lab: Lab) -> None:
    environ, found = detected(
        slurm_lab, "srun -N1 -n2 --gpus-per-task=1 bash -c 'if [ $SLURM_PROCID = 1 ]; then '{show}'; fi'"
    )
    assert found.gpus_on_node == 2
    seen = Seen(hostname="a", cpus=8, gpus=len(environ["CUDA_VISIBLE_DEVICES"].split(",")), pci_gpus=4)
    assert [finding.code for finding in traps(environ, found, TorchrunArgs(), seen)] == ["slurm-gpus-isolated"]


def test_export_none_is_seen(slurm_lab: Lab) -> None:
    environ, found = detected(slurm_lab, "sbatch -N1 --export=NONE -W -o %N.out --wrap {show} >&2; cat *.out; rm *.out")
    seen = Seen(hostname=found.hosts[0].name, cpus=8)
    assert [finding.code for finding in traps(environ, found, TorchrunArgs(), seen)] == ["slurm-export-none"]
