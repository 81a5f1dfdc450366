"""Fleet or node, and where a fleet's hosts come from."""

from __future__ import annotations

import pytest

from nvrun import job
from nvrun.config import ConfigText, Invocation, parse
from nvrun.errors import UsageError
from nvrun.hosts.choose import choose, reads_hostfile
from nvrun.hosts.detect import detect
from nvrun.mode import mode, node_arguments

BATCH = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "gpu[03-04]"}
STEP = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
}
STEP_ID, STEP_PORT = ["--rdzv-id=slurm-42.0"], "--master-port=29588"
POD = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "w-0"}


def of(argv: str, environ: dict[str, str] | None = None, yaml: str | None = None) -> Invocation:
    return parse([*argv.split(), "t.py"], environ or {}, [] if yaml is None else [ConfigText("nvrun.yaml", yaml)])


@pytest.mark.parametrize(
    ("argv", "environ", "kind"),
    [
        ("", {}, "node"),
        ("--standalone --nproc-per-node=4", {}, "node"),
        ("--nnodes=2", {}, "node"),
        ("--nnodes=2 --node-rank=0 --master-addr=a", {}, "node"),
        ("--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=a:29400", {}, "node"),
        ("--hosts=a,b", {}, "fleet"),
        ("--hosts=a,b --nnodes=2", {}, "fleet"),
        ("--hosts=a,b --rdzv-endpoint=a:29400 --rdzv-backend=c10d", {}, "fleet"),
        ("--hosts=a", STEP | {"SLURM_STEP_NODELIST": "gpu03", "SLURM_STEP_TASKS_PER_NODE": "1"}, "fleet"),
        ("", {"NVRUN_HOSTS": "a,b"}, "fleet"),
        ("--nodes=1", BATCH, "fleet"),
        ("", BATCH, "fleet"),
        ("--standalone", BATCH, "node"),
        ("--nnodes=2 --rdzv-endpoint=gpu03:29400", BATCH, "node"),
        ("", STEP, "node"),
        ("", POD, "node"),
        ("", PET, "node"),
        ("", MPI, "node"),
    ],
)
def test_mode(argv: str, environ: dict[str, str], kind: str) -> None:
    decided = mode(of(argv, environ), detect(environ))
    assert decided.kind == kind
    assert decided.why


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        ("--hosts=a,b --node-rank=0", {}, ("--hosts and --node-rank", "drop --hosts")),
        ("--hosts=a,b --standalone", {}, ("--hosts and --standalone", "")),
        ("--hosts=a,b --nnodes=2 --rdzv-endpoint=a", {}, ("--hosts and --rdzv-endpoint", "")),
        ("--nodes=2", PET, ("--nodes and PET_NODE_RANK", "")),
        ("--node-rank=0", {"NVRUN_HOSTS": "a"}, ("NVRUN_HOSTS and --node-rank", "drop NVRUN_HOSTS")),
        ("--hosts=a,b", STEP, ("--hosts asks nvrun to start all nodes", "drop --hosts")),
        (
            "",
            STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            ("4 processes of nvrun on one node", "--ntasks-per-node=1"),
        ),
        ("", MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ("2 processes of nvrun on one node", "ppr:1:node")),
    ],
)
def test_contradictions_say_what_to_drop(argv: str, environ: dict[str, str], words: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as error:
        mode(of(argv, environ), detect(environ))
    assert words[0] in error.value.message
    assert words[1] in error.value.hint


@pytest.mark.parametrize(
    ("environ", "argv"),
    [
        (STEP, ["--nnodes=2:2", *STEP_ID, "--node-rank=1", "--master-addr=gpu03", STEP_PORT]),
        (
            STEP | {"MASTER_ADDR": "10.0.0.3"},
            ["--nnodes=2:2", *STEP_ID, "--node-rank=1", "--master-addr=10.0.0.3", STEP_PORT],
        ),
        (
            STEP | {"MASTER_PORT": "1234", "MASTER_ADDR": "n"},
            ["--nnodes=2:2", *STEP_ID, "--node-rank=1", "--master-addr=n", "--master-port=1234"],
        ),
        (POD, ["--nnodes=2:2", "--node-rank=1", "--master-addr=job-master-0", "--master-port=23456"]),
        (MPI | {"MASTER_ADDR": "c1"}, ["--nnodes=2:2", "--node-rank=1", "--master-addr=c1"]),
        (PET, ["--nnodes=2:2", "--node-rank=1", "--master-addr=w-0"]),
        ({}, []),
    ],
)
def test_what_the_environment_knows_becomes_torchrun_flags(environ: dict[str, str], argv: list[str]) -> None:
    assert node_arguments(of("", environ).torchrun, detect(environ)).to_argv() == [*argv, "--", "t.py"]


def test_the_users_rendezvous_is_untouched() -> None:
    torchrun = of("--nnodes=2 --rdzv-endpoint=x:1 --rdzv-backend=c10d", STEP).torchrun
    assert node_arguments(torchrun, detect(STEP)) == torchrun


@pytest.mark.parametrize(
    ("argv", "environ", "wanted"),
    [
        ("--nnodes 2", {}, ("127.0.0.1", 29500, "", True)),
        ("--nnodes 2 --node-rank 1 --master-addr a", {}, ("a", 29500, "--master-addr", False)),
        ("--nnodes 2 --node-rank 0 --master_addr a --master_port 7", {}, ("a", 7, "--master-addr", True)),
        ("--nnodes 2", {"PET_MASTER_ADDR": "a"}, ("a", 29500, "PET_MASTER_ADDR", True)),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a", {}, ("a", 29400, "--rdzv-endpoint", False)),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint [fd00::1]:5", {}, ("fd00::1", 5, "--rdzv-endpoint", False)),
        ("--nnodes 2 --rdzv-endpoint a:x", {}, ("a", 0, "--rdzv-endpoint", False)),
        ("--nnodes 1 --master-addr localhost", {}, ("localhost", 29500, "--master-addr", True)),
        ("--nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint a:1", {}, None),
        ("--standalone --nnodes 1", {}, None),
        ("--nproc-per-node 2", {}, None),
        ("--hosts a,b", {}, None),
    ],
)
def test_where_nodes_meet_that_something_else_starts(
    argv: str, environ: dict[str, str], wanted: tuple[str, int, str, bool] | None
) -> None:
    meeting = job.read(of(argv, environ), environ).endpoint
    assert (meeting and (meeting.host, meeting.port, meeting.flag, meeting.listens)) == wanted


def test_mpirun_without_an_address_says_what_to_give() -> None:
    with pytest.raises(UsageError, match="nothing says where node 0 is"):
        node_arguments(of("").torchrun, detect(MPI))


def test_hosts_of_a_fleet() -> None:
    def names(
        invocation: Invocation, environ: dict[str, str] | None = None, text: str | None = None
    ) -> tuple[str, str]:
        chosen = choose(invocation, detect(environ or {}), text)
        return " ".join(host.name for host in chosen.hosts), chosen.source

    assert names(of("--hosts=a,b:2")) == ("a b", "--hosts")
    assert names(of("--hostfile=h"), text="c slots=1\n") == ("c", "--hostfile")
    assert names(of("", BATCH), BATCH) == ("gpu03 gpu04", "slurm allocation")
    assert names(of("--exclude=gpu03", BATCH), BATCH) == ("gpu04", "slurm allocation")
    assert names(of("")) == ("localhost", "this machine")
    assert names(of("--hosts=a", yaml="hostfile: h")) == ("a", "--hosts")
    assert names(of("--hostfile=h", yaml="hosts: a"), text="c\n") == ("c", "--hostfile")
    assert names(of("--exclude=z,a --hosts=a,b")) == ("b", "--hosts")
    assert choose(of("--exclude=z,a --hosts=a,b"), detect({})).not_listed == ("z",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--hosts=a --hostfile=h", "--hosts and --hostfile both name the hosts: drop one"),
        ("--hosts=a,b --nodes=3", "--nodes: 3 nodes wanted, but --hosts has 2"),
        ("--hosts=a --exclude=a", "--exclude: excludes every host"),
        ("--hostfile=h", "--hostfile: h: the file could not be read"),
        ("--hosts=a:x", "--hosts: 'a:x': expected 1 to 1024 ranks, got 'x'"),
    ],
)
def test_mistakes_about_hosts(argv: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        choose(of(argv), detect({}))
    assert error.value.message == message


def test_a_host_file_is_read_only_where_it_counts() -> None:
    assert reads_hostfile(of("--hostfile=h"))
    assert not reads_hostfile(of("--hosts=a", yaml="hostfile: h"))
    assert not reads_hostfile(of("--hosts=a"))
