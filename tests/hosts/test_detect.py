"""What started this process, from environments of schedulers in our own words."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrun.errors import UsageError
from nvrun.hosts.detect import Detected, detect, files_named
from nvrun.hosts.slurm_traps import Seen, traps
from nvrun.torchrun import TorchrunArgs, split

BATCH = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
    "SLURM_JOB_CPUS_PER_NODE": "64(x2)",
    "SLURM_GPUS_ON_NODE": "4",
    # slurmd sets these in a batch script too: they do not make it a task of srun
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
}
STEP = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
}


def names(found: Detected) -> str:
    return " ".join(host.name for host in found.hosts)


def test_nothing() -> None:
    found = detect({})
    assert (found.kind, found.hosts, found.is_node) == ("none", (), False)


def test_a_batch_script_stands_for_the_whole_job() -> None:
    found = detect(BATCH)
    assert (found.kind, names(found), found.node_rank, found.is_node) == (
        "slurm allocation",
        "gpu03 gpu04",
        None,
        False,
    )
    assert (found.cpus_per_node, found.gpus_on_node) == ((64, 64), 4)
    assert "SLURM_JOB_NODELIST=gpu[03-04]" in found.why


def test_a_task_of_srun_is_one_node() -> None:
    found = detect(STEP)
    assert (found.kind, names(found), found.nodes, found.node_rank) == ("slurm step", "gpu03 gpu04", 2, 1)
    assert (found.tasks_per_node, found.is_node) == ((1, 1), True)


@pytest.mark.parametrize("change", [{"SLURM_STEP_ID": "4294967290"}, {"SLURM_PTY_PORT": "40000"}])
def test_a_shell_in_a_job_is_no_task(change: dict[str, str]) -> None:
    assert detect(STEP | change).kind == "slurm allocation"


def test_gpus_asked_for_by_model_are_not_taken_for_a_number() -> None:
    assert detect({**BATCH, "SLURM_GPUS_ON_NODE": "", "SLURM_GPUS_PER_NODE": "a100:4"}).gpus_on_node is None


def test_torchrun_variables_win_over_the_scheduler() -> None:
    found = detect(STEP | {"PET_NNODES": "2:3", "PET_RDZV_ENDPOINT": "w-0:29400"})
    assert (found.kind, found.nodes, found.node_rank) == ("torchrun", 3, None)
    found = detect({"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "23456"})
    assert (found.nodes, found.node_rank, found.master_addr, found.master_port) == (2, 1, "m", 23456)
    assert detect(BATCH | {"PET_NPROC_PER_NODE": "2"}).kind == "slurm allocation"


def test_a_pytorchjob_without_torchrun_variables() -> None:
    pod = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "2", "WORLD_SIZE": "4"}
    found = detect(pod)
    assert (found.kind, found.nodes, found.node_rank) == ("kubernetes", 4, 2)
    assert (found.master_addr, found.master_port) == ("job-master-0", 23456)
    # newer operators count ranks, not pods, once the number of ranks per pod is given
    assert detect(pod | {"WORLD_SIZE": "32", "PET_NPROC_PER_NODE": "8"}).nodes == 4
    # a rank of some launcher has the same names
    assert detect(pod | {"LOCAL_RANK": "0"}).kind == "none"


def test_open_mpi() -> None:
    one_each = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    found = detect(one_each)
    assert (found.kind, found.nodes, found.node_rank, found.master_addr) == ("open mpi", 4, 3, None)
    found = detect(one_each | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert (found.nodes, found.node_rank, found.tasks_per_node) == (None, None, (2,))


def test_pbs() -> None:
    environ = {"PBS_JOBID": "7.server", "PBS_NODEFILE": "/var/spool/pbs/aux/7.server"}
    assert files_named(environ) == ("/var/spool/pbs/aux/7.server",)
    found = detect(environ, {"/var/spool/pbs/aux/7.server": "n2.site\nn2.site\nn1.site\n"})
    assert (found.kind, names(found), found.nodes) == ("pbs", "n2.site n1.site", 2)
    with pytest.raises(UsageError, match=r"PBS_NODEFILE=.*could not be read"):
        detect(environ)


def test_lsf() -> None:
    found = detect({"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "c1 4 c2 4"})
    assert (found.kind, names(found), found.is_node) == ("lsf", "c1 c2", False)
    found = detect({"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": "/h"}, {"/h": "c2\nc2\nc1\n"})
    assert names(found) == "c2 c1"
    with pytest.raises(UsageError, match="expected HOST SLOTS pairs"):
        detect({"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "c1 c2"})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (BATCH | {"SLURM_JOB_NODELIST": "gpu[4-3]"}, "SLURM_JOB_NODELIST: the range 4-3"),
        (BATCH | {"SLURM_JOB_CPUS_PER_NODE": "many"}, "SLURM_JOB_CPUS_PER_NODE: expected counts"),
        (STEP | {"SLURM_NODEID": "x"}, "SLURM_NODEID: expected a whole number, got 'x'"),
        ({"PET_NNODES": "two", "PET_NODE_RANK": "0"}, "PET_NNODES: expected a whole number, got 'two'"),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "-oX 1"}, "LSB_MCPU_HOSTS: '-oX' is no host name"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        detect(environ)
    assert error.value.message.startswith(message)


_NAMES = sorted(
    {*STEP, "PET_NNODES", "PET_NODE_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PET_NPROC_PER_NODE"}
    | {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PBS_JOBID", "PBS_NODEFILE"}
    | {"LSB_JOBID", "LSB_MCPU_HOSTS", "SLURM_HET_SIZE", "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"}
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(_NAMES),
        st.sampled_from(["0", "1", "2", "a[1-2]", "1(x2)", "a 1 b 1", "localhost"]) | st.text(max_size=5),
    )
)
def test_any_environment_is_read_or_refused(environ: dict[str, str]) -> None:
    with contextlib.suppress(UsageError):
        found = detect(environ, dict.fromkeys(files_named(environ), "a\nb\n"))
        traps(environ, found, TorchrunArgs(), Seen(hostname="h", cpus=1, gpus=0, pci_gpus=8))


def codes(environ: dict[str, str], seen: Seen, *argv: str) -> list[str]:
    torchrun = TorchrunArgs.read(split([*argv, "t.py"], {}), environ)
    return [finding.code for finding in traps(environ, detect(environ), torchrun, seen)]


WELL = Seen(hostname="gpu04", cpus=64, gpus=4, pci_gpus=4, memlock_bytes=-1, rdma=True)


@pytest.mark.parametrize("environ", [{}, BATCH, STEP])
def test_a_sound_job_has_no_traps(environ: dict[str, str]) -> None:
    assert codes(environ, WELL) == []


def test_what_was_not_read_is_not_judged() -> None:
    assert codes(STEP, Seen()) == []


@pytest.mark.parametrize(
    ("change", "seen", "argv", "code"),
    [
        ({}, {"cpus": 1}, (), "slurm-one-cpu-per-task"),
        ({"SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, {"cpus": 2}, (), "slurm-few-cpus"),
        ({"SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, {"cpus": 2}, ("--nproc-per-node=4",), "slurm-few-cpus"),
        ({"SLURM_GPUS_PER_TASK": "1"}, {"gpus": 1}, (), "slurm-gpus-isolated"),
        ({"SLURM_TRES_PER_TASK": "gres/gpu:1"}, {"gpus": 1}, (), "slurm-gpus-isolated"),
        ({"SLURMD_TRES_BIND": "gpu:per_task:1"}, {"gpus": 1}, (), "slurm-gpus-isolated"),
        ({"SLURM_GPUS_ON_NODE": ""}, {"gpus": 0}, (), "slurm-no-gpus-asked"),
        ({"SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {"gpus": None}, (), "slurm-no-gpus-asked"),
        ({"SLURM_GPUS_ON_NODE": ""}, {}, (), "slurm-gpus-not-reserved"),
        ({"SLURM_HET_SIZE": "2"}, {}, (), "slurm-het-job"),
        ({"SLURM_RESTART_COUNT": "1"}, {}, (), "slurm-requeued"),
        ({"SLURM_EXPORT_ENV": "NONE"}, {}, (), "slurm-export-none"),
        ({"MASTER_ADDR": "localhost"}, {}, (), "slurm-master-is-loopback"),
        ({}, {}, ("--nnodes=2", "--rdzv-endpoint=127.0.0.1:29400"), "slurm-master-is-loopback"),
        ({}, {}, ("--nnodes=2", "--rdzv-endpoint=[::1]:29400"), "slurm-master-is-loopback"),
        ({}, {}, ("--nnodes=2", "--node-rank=0", "--master-addr=gpu03"), "slurm-node-rank-expanded-early"),
        ({}, {"hostname": "login1"}, (), "slurm-variables-left-over"),
        ({}, {"memlock_bytes": 65536 << 10}, (), "slurm-memlock-propagated"),
    ],
)
def test_traps(change: dict[str, str], seen: dict[str, object], argv: tuple[str, ...], code: str) -> None:
    values = {name: getattr(WELL, name) for name in WELL.__struct_fields__} | seen
    environ = STEP | change
    assert codes(environ, Seen(**values), *argv) == [code]
    torchrun = TorchrunArgs.read(split([*argv, "t.py"], {}), environ)
    for finding in traps(environ, detect(environ), torchrun, Seen(**values)):
        assert finding.message
        assert finding.remedy


def test_cpus_are_held_against_the_ranks_that_were_asked_for() -> None:
    seen = Seen(hostname="gpu04", cpus=2, gpus=4, pci_gpus=4, memlock_bytes=-1, rdma=True)
    environ = STEP | {"SLURM_JOB_CPUS_PER_NODE": "2(x2)"}
    assert codes(environ, seen, "--nproc-per-node=2") == []
    for argv, words in (
        (["--nproc-per-node=3"], "2 CPUs on this node for 3 ranks"),
        ([], "2 CPUs on this node for 4 GPUs"),
    ):
        torchrun = TorchrunArgs.read(split([*argv, "t.py"], {}), environ)
        told = traps(environ, detect(environ), torchrun, seen)
        assert [each.message for each in told] == [f"the job has {words}"]


@pytest.mark.parametrize("change", [{"SLURM_SUBMIT_HOST": "login1.site"}, {"SLURMD_NODENAME": "gpu04"}])
def test_a_shell_of_salloc_and_a_node_of_another_name_are_no_left_overs(change: dict[str, str]) -> None:
    assert codes(BATCH | change, Seen(hostname="login1")) == []
