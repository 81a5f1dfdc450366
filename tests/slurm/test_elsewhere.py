"""From the environment of a job under another scheduler to what torchrun gets on this node."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrun import job
from nvrun.config import parse

POD = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2"}
OPERATOR = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456"}
ELASTIC = {"PET_NNODES": "1:4", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "job-worker-0:23456"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def read(environ: dict[str, str], line: str = "") -> job.Job:
    return job.read(parse([*line.split(), "train.py"], environ), environ)


@pytest.mark.parametrize(
    ("environ", "argv"),
    [
        (POD, "--nnodes=2:2 --node-rank=1 --master-addr=job-master-0 --master-port=23456"),
        (
            POD | {"PET_NPROC_PER_NODE": "4", "WORLD_SIZE": "8"},
            "--nnodes=2:2 --nproc-per-node=4 --node-rank=1 --master-addr=job-master-0 --master-port=23456",
        ),
        (OPERATOR, "--nnodes=2:2 --node-rank=1 --master-addr=job-master-0 --master-port=23456"),
        (
            OPERATOR | POD,  # what the training operator really sets: both, and PET_* wins
            "--nnodes=2:2 --node-rank=1 --master-addr=job-master-0 --master-port=23456",
        ),
        (ELASTIC, "--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=job-worker-0:23456"),
        (MPI | {"MASTER_ADDR": "n1"}, "--nnodes=2:2 --node-rank=1 --master-addr=n1"),
    ],
    ids=["pod", "pod with ranks", "operator", "operator and pod", "elastic", "mpirun"],
)
def test_one_node_of_a_job_that_something_else_starts(environ: dict[str, str], argv: str) -> None:
    found = read(environ)
    assert (found.mode.kind, found.kinds) == ("node", ("local",))
    assert found.args.to_argv() == [*argv.split(), "--", "train.py"]
    assert found.step is None, "only nodes of a Slurm step gather"


@pytest.mark.parametrize("kind", ["pbs", "lsf with counts", "lsf with a file"])
def test_an_allocation_names_the_hosts(kind: str, tmp_path: Path) -> None:
    """One line a slot in files, and slots are CPUs: they say nothing about ranks."""
    hosts = tmp_path / "hosts"
    hosts.write_text("n2\nn2\nn1\nn1\n")
    environ = {
        "pbs": {"PBS_JOBID": "12.server", "PBS_NODEFILE": str(hosts)},
        "lsf with counts": {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "n2 2 n1 2"},
        "lsf with a file": {"LSB_JOBID": "12", "LSB_DJOB_HOSTFILE": str(hosts)},
    }[kind]
    found = read(environ)
    assert (found.mode.kind, found.kinds) == ("fleet", ("ssh", "ssh"))
    assert [(host.name, host.slots) for host in found.hosts] == [("n2", None), ("n1", None)]
    assert found.args.to_argv() == ["--", "train.py"]


def test_hosts_beyond_nodes_are_spares(tmp_path: Path) -> None:
    found = read({}, "--hosts n1,n2,n3,n4 --nodes 2 --fleet ssh")
    assert [host.name for host in found.hosts] == ["n1", "n2"]
    second = found.without({"n1"})
    assert second is not None
    assert [host.name for host in second.hosts] == ["n2", "n3"]
    third = second.without({"n1", "n2", "n3"})
    assert third is None, "one spare is left where two are wanted"
    assert found.without(set()) is None
