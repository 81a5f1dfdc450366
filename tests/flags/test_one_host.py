"""torchrun's flags, each in a real run on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RANK = HERE / "rank.py"


def nvrun(tmp_path: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvrun", "--nproc-per-node", "2", *map(str, arguments)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{HERE.parents[1]}:{HERE}",
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line.split(": ", 1)[1]) for line in done.stdout.splitlines() if '{"rank"' in line]


@pytest.mark.parametrize(
    "flags",
    [
        ["--master-port", "29641", "--signals-to-handle", "SIGTERM,SIGINT", "--local-ranks-filter", "0", "-m", "rank"],
        ["--rdzv-backend", "static", "--rdzv-endpoint", "localhost:29642", "--rdzv-conf", "timeout=60", "--run-path",
         RANK],
        ["--standalone", "--role", "trainer", "--no-python", sys.executable, RANK],
        ["--nnodes", "1:1", "--max-restarts", "2", "--monitor-interval", "0.5", RANK],
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "456", RANK],
    ],
    ids=["-m", "--run-path", "--no-python", "--nnodes", "--rdzv-backend"],
)  # fmt: skip
def test_flags_start_the_program_as_torchrun_does(tmp_path: Path, flags: list[object]) -> None:
    found = said(nvrun(tmp_path, *flags, "say", "--r=16", "a b"))
    assert sorted(each["rank"] for each in found) == ["0", "1"]
    assert all(each["argv"] == ["say", "--r=16", "a b"] and each["world"] == "2" for each in found)
    assert {each["name"] for each in found} == {"__main__"}
    if "--role" in flags:
        assert {each["role"] for each in found} == {"trainer"}


def test_virtual_local_rank_and_pet_variables(tmp_path: Path) -> None:
    found = said(nvrun(tmp_path, RANK, "say", PET_VIRTUAL_LOCAL_RANK="1", PET_ROLE="pet"))
    assert {(each["rank"], each["local"], each["role"]) for each in found} == {("0", "0", "pet"), ("1", "0", "pet")}


def test_torchruns_files_are_filled_and_the_console_obeys(tmp_path: Path) -> None:
    done = nvrun(tmp_path, "--redirects", "1", "--tee", "0:1", "--log-dir", tmp_path / "logs", RANK, "say")
    assert [each["rank"] for each in said(done)] == ["0"]
    files = {path.parent.name: path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")}
    assert {local: json.loads(text)["rank"] for local, text in files.items()} == {"0": "0", "1": "1"}
    own = (tmp_path / "nvrun-runs/latest/logs").rglob("rank*.out")
    assert sorted(json.loads(path.read_text())["rank"] for path in own) == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--nproc-per-nodes", "2", RANK], "--nproc-per-node"),
        (["--grace", "soon", RANK], "--grace"),
        (["--hosts", "a", "--node-rank", "1", "--master-addr", "b", "--nnodes", "2", RANK], "--node-rank"),
        (["--env", "no equals", RANK], "NAME=VALUE"),
        (["--nnodes", "2:1", RANK], "--nnodes"),
        (["--no-python", "-m", "rank"], "exclude"),
        (["--preset", "hoper", RANK], "hopper"),
        (["--waive", "no-such-code", RANK], "no-such-code"),
        (["--lost-after", "0", RANK], "at least 3 s"),
        (["--connect-timeout", "0", RANK], "at least 0.1 s"),
        (["--json", RANK], "result.json"),
        (["--from", "facts.json", RANK], "nvrun plan --from"),
        ([""], "what shall run"),
        ([], "what shall run"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(tmp_path: Path, arguments: list[object], word: str) -> None:
    done = nvrun(tmp_path, *arguments, "say") if arguments else nvrun(tmp_path)
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_working_directory_that_is_not_there_is_the_hosts_fault_not_torchruns(tmp_path: Path) -> None:
    done = nvrun(tmp_path, "--chdir", "/no/such", "--check", "off", RANK, "say")
    assert done.returncode == 78, done.stderr
    assert "the working directory /no/such: No such file or directory" in done.stderr
    told = json.loads((tmp_path / "nvrun-runs/latest/result.json").read_text())
    assert [(each["code"], each["host"]) for each in told["findings"]] == [("path-missing", os.uname().nodename)]


def test_what_is_wrong_with_the_place_where_nodes_meet_is_told_before_they_wait(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as held:
        port = held.getsockname()[1]
        done = nvrun(tmp_path, "--master-addr", "localhost", "--master-port", port, RANK)
    assert done.returncode == 78, done.stderr
    assert f"port {port} is taken by" in done.stderr
    for flags, code in (((), "endpoint-loopback"), (("--master-addr", "no-host.invalid"), "endpoint-unknown")):
        argv = [sys.executable, "-m", "nvrun", "check", "--nnodes", "2", "--node-rank", "1", *flags]
        told = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert f"[{code}]" in told.stdout, told
        assert told.returncode == 0  # nodes may share a host, and a pod's name may be known once that pod is up


def test_a_file_with_a_subcommands_name_is_run(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("print('the script named plan')\n")
    for name in (["--", "plan"], ["./plan"]):
        assert "the script named plan" in nvrun(tmp_path, *name).stdout
