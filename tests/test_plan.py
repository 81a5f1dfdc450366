"""torchrun's command lines and the variables of each host, as decided before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nvrun import config
from nvrun.model import EnvVar, Host
from nvrun.plan import Plan, Site, as_mapping, build, socket_name
from nvrun.report import shell, text
from nvrun.torchrun import TorchrunArgs

RUN = "20261129-151203-k3x9"


def args(line: str) -> TorchrunArgs:
    return config.parse(line.split(), {}).torchrun


def plan(line: str, ranks: Sequence[int] = (2, 2), *, fleet: bool = True, **more: Any) -> Plan:
    sites = [
        Site(host=Host(name=f"h{node}"), ranks=count, python="/env/python", folder=f"/run/{node}",
             address=f"10.0.0.{node + 1}", forwarded=(EnvVar(name="PATH", value="/bin", source="forwarded"),))
        for node, count in enumerate(ranks)
    ]  # fmt: skip
    settings: dict[str, Any] = {"cwd": "/work", "master_port": 29500, "grace": 30.0, "lost_after": 300.0, **more}
    return build(run_id=RUN, args=args(line), sites=sites, fleet=fleet, **settings)


def flags(plan: Plan, node: int = 0) -> list[str]:
    """torchrun's own flags on one host."""
    argv = list(plan.hosts[node].argv)
    return argv[3 : argv.index("--")]


def program(plan: Plan) -> list[str]:
    """What each rank becomes, after the shim."""
    argv = list(plan.hosts[0].argv)
    shim = argv.index("--") + 1
    assert argv[shim : shim + 4] == ["/env/python", "-I", "-S", "-c"]
    return argv[shim + 5 :]


def test_a_fixed_world_is_static() -> None:
    found = plan("train.py --lr 1", ranks=(2, 3))
    assert (found.rendezvous, found.world_size, found.master_addr, found.master_port) == (
        "static",
        5,
        "10.0.0.1",
        29500,
    )
    for node, ranks in enumerate((2, 3)):
        own = {f"--node-rank={node}", f"--nproc-per-node={ranks}", f"--log-dir=/run/{node}/torchrun"}
        every = {"--nnodes=2:2", "--master-addr=10.0.0.1", "--master-port=29500", f"--rdzv-id={RUN}", "--no-python"}
        assert set(flags(found, node)) == own | every
    assert [[rank.rank for rank in host.ranks] for host in found.hosts] == [[0, 1], [2, 3, 4]]
    assert as_mapping(found.hosts[1].env)["NVRUN_LOCAL_WORLD_SIZES"] == "2,3"


@pytest.mark.parametrize(("line", "fewest"), [("--max-restarts 1 t.py", 2), ("--nnodes 1:2 t.py", 1)])
def test_restarts_and_elastic_worlds_are_c10d(line: str, fewest: int) -> None:
    found = plan(line)
    assert found.rendezvous == "c10d"
    assert found.min_nodes == fewest
    for node in (0, 1):
        assert {"--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29500", f"--rdzv-conf=is_host={1 - node}",
                f"--local-addr=10.0.0.{node + 1}", f"--rdzv-id={RUN}"} <= set(flags(found, node))  # fmt: skip
        assert as_mapping(found.hosts[node].env)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("--rdzv-backend etcd-v2 --rdzv-endpoint e:2379 --rdzv-id mine t.py",
         {"--rdzv-backend=etcd-v2", "--rdzv-endpoint=e:2379", "--rdzv-id=mine"}),
        ("--master-addr other --master-port 1234 t.py", {"--master-addr=other", "--master-port=1234", "--node-rank=1"}),
    ],
)  # fmt: skip
def test_the_users_rendezvous_wins(line: str, kept: set[str]) -> None:
    found = plan(line)
    assert (found.rendezvous, found.master_addr, found.master_port) == ("user", None, None)
    own = set(flags(found, 1))
    assert kept <= own
    assert not any(flag.startswith("--rdzv-conf") for flag in own)
    assert ("--node-rank=1" in own) == ("--rdzv-backend=etcd-v2" not in own)


@pytest.mark.parametrize("line", ["t.py", "--max-restarts 2 t.py", "--nnodes 1 --master-port 29500 t.py"])
def test_a_machine_alone_has_a_port_that_was_chosen(line: str) -> None:
    found = plan(line, ranks=(2,), fleet=False, alone=True)
    assert (found.rendezvous, found.master_port) == ("static", 29500)
    assert {"--master-port=29500", "--node-rank=0", f"--rdzv-id={RUN}"} <= set(flags(found))
    assert plan(f"--rdzv-endpoint localhost:0 {line}", ranks=(2,), fleet=False, alone=True).rendezvous == "user"


def test_node_mode_leaves_all_of_it() -> None:
    line = "--nnodes 4 --node-rank 2 --master-addr m --rdzv-id x t.py"
    found = plan(line, ranks=(8,), fleet=False)
    every = {"--nnodes=4:4", "--node-rank=2", "--master-addr=m", "--rdzv-id=x", "--nproc-per-node=8", "--no-python"}
    assert set(flags(found)) == every | {"--log-dir=/run/0/torchrun"}
    assert "NVRUN_NODE_COUNT" not in as_mapping(found.hosts[0].env)


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("t.py -x -- --lr", ["/env/python", "-u", "t.py", "-x", "--", "--lr"]),
        ("-m pkg.train --lr", ["/env/python", "-u", "-m", "pkg.train", "--lr"]),
        ("--no-python ./t.sh a", ["./t.sh", "a"]),
    ],
)
def test_what_a_rank_becomes(line: str, argv: list[str]) -> None:
    found = plan(line)
    assert program(found) == argv
    assert list(found.hosts[0].program) == argv


def test_run_path_has_argv_and_main_as_torchrun_gives_them(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("import json, sys; print(json.dumps([sys.argv, __name__]))")
    argv = program(plan(f"--run-path {script} --lr 1"))
    done = subprocess.run([sys.executable, *argv[1:]], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[str(script), "--lr", "1"], "__main__"]


@pytest.mark.parametrize(("ranks", "value"), [((1,), None), ((2,), "1")])
def test_omp_num_threads_is_torchruns_default_for_several_ranks(ranks: Sequence[int], value: str | None) -> None:
    found = plan("t.py", ranks=ranks)
    assert as_mapping(found.hosts[0].defaults).get("OMP_NUM_THREADS") == value


def test_torchrun_waits_longer_than_the_grace() -> None:
    assert as_mapping(plan("t.py", grace=7.5).hosts[0].env)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "9"
    kept = plan("--shutdown-timeout 5 t.py", grace=7.5)
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in as_mapping(kept.hosts[0].env)


def test_the_users_variables_stand_above_what_travels() -> None:
    given = (EnvVar(name="PATH", value="/mine", source="--env"),)
    assert as_mapping(plan("t.py", env=given).hosts[0].env)["PATH"] == "/mine"


@pytest.mark.parametrize(
    ("ranks", "asked", "shown"), [((8, 8), None, None), ((8, 9), None, (0,)), ((8, 9), (3, 4), (3, 4))]
)
def test_the_console_shows_all_ranks_up_to_sixteen(
    ranks: Sequence[int], asked: Sequence[int] | None, shown: Sequence[int] | None
) -> None:
    assert plan("t.py", ranks=ranks, console=asked).console == shown


def test_hosts_that_share_a_network_namespace_have_sockets_of_their_own() -> None:
    assert len({socket_name(RUN, node) for node in range(3)}) == 3


@pytest.mark.parametrize(
    ("line", "redirects", "files", "hidden"),
    [
        ("train.py", None, [0, 0], [0, 0]),
        ("-r 3 train.py", "3", [3, 3], [3, 3]),
        ("-t 3 train.py", "3", [3, 3], [0, 0]),
        ("-r 1 -t 2 train.py", "3", [3, 3], [1, 1]),
        ("-r 3 -t 0:1 train.py", "3", [3, 3], [2, 3]),
        ("-r 0:1 -t 1:2 train.py", "0:1,1:2", [1, 2], [1, 0]),
    ],
)
def test_torchruns_files_and_the_console_follow_redirects_and_tee(
    line: str, redirects: str | None, files: list[int], hidden: list[int]
) -> None:
    found = plan(line, ranks=(2,))
    assert [rank.files for rank in found.hosts[0].ranks] == files
    assert [rank.hidden for rank in found.hosts[0].ranks] == hidden
    said = [flag for flag in flags(found) if flag.startswith(("--redirects", "--tee"))]
    assert said == ([] if redirects is None else [f"--redirects={redirects}", "--tee=0"])


@pytest.mark.parametrize(
    ("line", "ranks", "heading", "table"),
    [
        ("--nnodes 2 --node-rank 1 --master-addr a", 2, "2 of 4 ranks on h0", ["2", "3"]),
        ("--nnodes 2 --node-rank 0 --master-addr a", 1, "1 of 2 ranks on h0", ["0"]),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1 --node-rank 1", 2, "2 of 4 ranks on h0", ["?", "?"]),
        ("--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint a:1", 1, "1 rank on h0", ["?"]),
        ("--standalone", 2, "2 ranks on h0", ["0", "1"]),
    ],
)
def test_one_node_of_several_tells_its_ranks_as_the_job_numbers_them(
    line: str, ranks: int, heading: str, table: list[str]
) -> None:
    """Where only torchrun's rendezvous will number them they are local ranks, never wrong global ones."""
    found = plan(f"{line} train.py", (ranks,), fleet=False)
    said = list(text.plan_lines(found, "RUN"))
    assert said[0].startswith(f"nvrun: {heading}")
    word = "local rank" if table[0] == "?" else "rank"
    first = "0" if table[0] == "?" else table[0]
    assert said[1].startswith(f"nvrun:   h0: {word}{'s' * (ranks > 1)} {first}")
    rows = [row.split() for row in text.rank_table(found)]
    assert [row[0] for row in rows[1 : 1 + ranks]] == table
    node = {"2": " (node 1)", "0": " (node 0)", "?": ""}[table[0]]
    assert shell.script(found).splitlines()[0] == f"# h0{node}"


def test_hosts_that_c10d_numbers_have_local_ranks_only() -> None:
    said = list(text.plan_lines(plan("--max-restarts 1 train.py"), "RUN"))
    assert said[0].startswith("nvrun: 4 ranks on h0 x2, h1 x2")
    assert [line.split(", ")[0] for line in said[1:3]] == [
        "nvrun:   h0: local ranks 0-1",
        "nvrun:   h1: local ranks 0-1",
    ]
