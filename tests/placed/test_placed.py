"""Ranks are where the plan says, whatever numactl, the cpuset and the kernel allow; the ranks themselves say it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab

HERE = Path(__file__).parent
WHERE = HERE / "where.py"
NUMACTL = shutil.which("numactl")

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two CPUs are needed to tell bound from not")


def nvrun(tmp_path: Path, *arguments: object, prefix: Sequence[str] = (), **environment: str) -> dict[int, list[str]]:
    """Rank -> [cpus, policy] as the ranks said it."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "nvrun", *map(str, arguments), str(WHERE)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(HERE.parents[1]),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return said(done.stdout)


def said(text: str) -> dict[int, list[str]]:
    words = [line.split("rank ", 1)[1].split() for line in text.splitlines() if "rank " in line]
    return {int(rank): rest for rank, *rest in words}


def plan(tmp_path: Path) -> list[dict[str, Any]]:
    ranks: list[dict[str, Any]] = json.loads((tmp_path / "nvrun-runs/latest/plan.json").read_text())["hosts"][0][
        "ranks"
    ]
    return ranks


def two_cpus() -> tuple[int, int]:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return first, second


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A binding file: a CPU for each of two ranks, the second rank's first."""
    first, second = two_cpus()
    path = tmp_path / "bind.txt"
    path.write_text(f"0 {second} 0\n1 {first} 0\n")
    return path


@pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
def test_numactl_binds_cpus_and_memory(tmp_path: Path, table: Path) -> None:
    first, second = two_cpus()
    found = nvrun(tmp_path, "--nproc-per-node", 2, "--bind", table, STAY="3")
    assert {rank: cpus for rank, (cpus, _) in found.items()} == {0: str(second), 1: str(first)}
    if found[0][1] != "?":
        assert {policy for _, policy in found.values()} == {"prefer:0"}
    assert "numactl" in plan(tmp_path)[0]["prefix"][0]
    result = json.loads((tmp_path / "nvrun-runs/latest/result.json").read_text())
    assert not [finding for finding in result.get("findings", ()) if finding["code"].startswith("rank-")]


def test_without_numactl_the_cpus_hold_and_the_rest_is_said(tmp_path: Path, table: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("sh", "env"):
        (bare / tool).symlink_to(shutil.which(tool) or "/bin/sh")
    first, second = two_cpus()
    found = nvrun(tmp_path, "--nproc-per-node", 2, "--bind", table, PATH=str(bare))
    assert {rank: cpus for rank, (cpus, _) in found.items()} == {0: str(second), 1: str(first)}
    rank = plan(tmp_path)[0]
    assert not rank.get("prefix")
    assert "numactl is not installed" in rank["binding"]["why"]


@pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
def test_forbidden_memory_policy_costs_only_the_memory_policy(tmp_path: Path, table: Path) -> None:
    first, second = two_cpus()
    forbid = [sys.executable, str(HERE.parent / "lab/forbidden.py"), "set_mempolicy,mbind"]
    found = nvrun(tmp_path, "--nproc-per-node", 2, "--bind", table, prefix=forbid)
    assert {rank: cpus for rank, (cpus, _) in found.items()} == {0: str(second), 1: str(first)}
    assert "forbidden" in plan(tmp_path)[0]["binding"]["why"]


def test_a_cpuset_is_kept_to(tmp_path: Path) -> None:
    _, second = two_cpus()
    found = nvrun(tmp_path, "--nproc-per-node", 2, prefix=["taskset", "-c", str(second)])
    assert {cpus for cpus, _ in found.values()} == {str(second)}


def test_a_rank_that_moves_itself_is_found_out(tmp_path: Path, table: Path) -> None:
    mover = tmp_path / "mover.py"
    mover.write_text(f"import os, time\nos.sched_setaffinity(0, {set(two_cpus())!r})\ntime.sleep(4)\n")
    done = subprocess.run(
        [sys.executable, "-m", "nvrun", "--nproc-per-node", "2", "--bind", str(table), str(mover)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "nvrun-runs/latest/result.json").read_text())
    codes = {(finding["code"], finding["subject"]) for finding in result["findings"]}
    assert {("rank-cpus-differ", "rank 0"), ("rank-cpus-differ", "rank 1")} <= codes


@pytest.mark.lab
def test_an_ordinary_user_is_bound_on_two_hosts(lab: Lab) -> None:
    first, second = two_cpus()
    home = lab.home("ada")
    lab.run(["sh", "-c", f"printf '0 {second} 0\\n1 {first} 0\\n' > {home}/bind.txt"], user="ada", check=True)
    done = lab.run(
        [sys.executable, "-m", "nvrun", "--hosts", "a,b", "--nproc-per-node", "2", "--bind", f"{home}/bind.txt", WHERE],
        user="ada",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {rank: cpus for rank, (cpus, *_) in said(done.stdout).items()} == {
        0: str(second), 1: str(first), 2: str(second), 3: str(first)
    }  # fmt: skip
