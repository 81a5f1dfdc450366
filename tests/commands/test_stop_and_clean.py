"""`nvrun stop` and `nvrun clean` on real hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from nvrun.agent import remains
from tests.commands.conftest import NVRUN, started
from tests.lab.lab import Lab, wait_for


def test_stop_ends_a_run_by_its_launcher(lab: Lab, place: Path) -> None:
    with started(lab, place, ("a", "b")) as run:
        listed = json.loads(lab.run([*NVRUN, "runs", "--json"], check=True).stdout)["runs"]
        assert (listed[0]["id"], listed[0]["state"], listed[0]["hosts"]) == (run.id, "running", ["a", "b"])
        done = lab.run([*NVRUN, "stop", run.id[:-2]])
        assert done.stdout == f"{run.id} is over: stopped by a signal (exit 143)\n", done
        assert done.returncode == 0
        assert not any(run.agents(host) + run.daemons(host) for host in "ab")
        assert run.running.wait(5) == 143
        said = lab.run([*NVRUN, "stop"], cwd=place).stdout  # elsewhere a test of another worker may have the latest run
        assert said.startswith(f"nothing runs; the last run was {run.id}: stopped by"), said
        again = lab.run([*NVRUN, "stop", "--json"], cwd=place)
        assert json.loads(again.stdout) == {"run": run.id, "by": "nobody", "ended_by": "signal"}


def test_stop_ends_what_a_dead_launcher_left_on_its_hosts(lab: Lab, place: Path) -> None:
    with started(lab, place, ("a", "b")) as run:
        for host in run.hosts:
            run.stop_agents(host)
        run.kill_launcher()
        for host in run.hosts:
            run.kill_agents(host)
        assert all(run.daemons(host) for host in run.hosts)
        with started(lab, place / "other", ("b",)) as other:
            done = lab.run([*NVRUN, "stop", run.id, "--grace", "1"])
            assert done.returncode == 0, done
            assert "its launcher is dead" in done.stdout
            assert "  a: 1 process ended\n  b: 1 process ended\n" in done.stdout
            assert not run.daemons("a")
            assert [each.environ["NVRUN_MARK"] for each in other.daemons("b")] == [f"{other.id}.0"]
            assert other.running.poll() is None


def test_clean_ends_orphans_and_removes_folders_but_leaves_a_living_run_alone(
    make_lab: Callable[..., Lab], place: Path, tmp_path: Path
) -> None:
    lab = make_lab(["a", "b"], private=("/tmp",))
    with (
        started(lab, place, ("a", "b"), tmp_path / "one") as run,
        started(lab, place / "other", ("b",), tmp_path / "other") as other,
    ):
        run.kill_agents("b", run.id)
        run.running.wait(20)
        orphans = [process for process in run.daemons("b") if process.environ["NVRUN_MARK"] == f"{run.id}.1"]
        folder = lab.path("b", f"/tmp/nvrun-0/{run.id}.1")
        assert orphans
        assert folder.is_dir()
        wait_for(lambda: time.time() - folder.stat().st_mtime > remains._NEW_SECONDS, "a folder that is not new")
        looked = json.loads(lab.run([*NVRUN, "clean", "--hosts", "b", "--dry-run", "--json"], check=True).stdout)
        (host,) = looked["hosts"]
        assert [each["mark"] for each in host["runs"]] == [f"{run.id}.1"]
        assert len(host["runs"][0]["pids"]) == len(orphans)
        assert host["alive"] == [f"{other.id}.0"]
        assert folder.is_dir()
        assert len(run.daemons("b")) == 2
        done = lab.run([*NVRUN, "clean", "--hosts", "b"])
        assert done.returncode == 0, done
        assert f"b: {run.id}.1: ended processes" in done.stdout
        assert f"b: {other.id}.0: still runs, left alone" in done.stdout
        assert not folder.exists()
        assert [each.environ["NVRUN_MARK"] for each in other.daemons("b")] == [f"{other.id}.0"]
        assert lab.path("b", f"/tmp/nvrun-0/{other.id}.0").is_dir()


def test_clean_says_which_host_it_did_not_reach_and_cleans_the_others(lab: Lab) -> None:
    done = lab.run([*NVRUN, "clean", "--hosts", "a,nowhere"])
    assert done.returncode == 69
    assert "a: nothing there" in done.stdout
    assert "nowhere" in done.stdout
