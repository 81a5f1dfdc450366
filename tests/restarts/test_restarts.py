"""Hosts that die while a job runs are replaced: the script goes on from its checkpoint on a spare."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import faults
from tests.lab.lab import Lab, Running, machine_is_busy, wait_for

NVRUN = (sys.executable, "-m", "nvrun")
EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_checkpoint.py"
RANK = """
import os, sys, time
place, fails, lasts = sys.argv[1], *map(int, sys.argv[2:])
count = int(os.environ["NVRUN_RESTART_COUNT"])
open(f"{place}/up.{count}.{os.environ['RANK']}", "w").write(os.environ["NVRUN_MARK"])
if count == fails:
    sys.exit(37)
time.sleep(600 if count < lasts else 0)
"""
"""Sleeps in each of its first `lasts` starts, and fails in the one of number `fails`."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all hosts of the lab have under one name."""
    with tempfile.TemporaryDirectory(prefix="nvrun-restarts-", dir="/tmp") as name:
        yield Path(name)


def start(lab: Lab, place: Path, *words: str | Path) -> Running:
    flags = ["--nproc-per-node", "1", "--grace", "2", "--run-dir", place / "runs"]
    return lab.popen([*NVRUN, *map(str, (*flags, *words))], cwd=place, start_new_session=True)


def bare(lab: Lab, rank: int, *words: str | Path) -> Running:
    """One of two ranks on one host, with no launcher that could disturb them."""
    env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1"}
    return lab.popen([sys.executable, *map(str, words)], place="c", env=env)


def finish(running: Running, timeout: float = 150) -> tuple[int, str, str]:
    with running:
        stdout, stderr = running.communicate(timeout=timeout)
    return running.returncode, stdout, stderr


def kill_all(lab: Lab, host: str, place: Path) -> None:
    """SIGKILL for all that the run has on a host, agent and ranks."""
    for process in lab.processes(host):
        if "nvrun-agent/boot.py" in " ".join(process.argv) or process.carries(str(place)):
            with contextlib.suppress(ProcessLookupError):  # its parent took it along
                os.kill(process.pid, signal.SIGKILL)


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def loss(text: str) -> str:
    found = re.search(r"loss=(\S+)", text)
    assert found, text
    return found[1]


def up(place: Path, restart: int) -> None:
    """Both ranks run."""
    wait_for(lambda: all((place / f"up.{restart}.{rank}").exists() for rank in (0, 1)), "both ranks", timeout=90)


@pytest.mark.lab
def test_a_job_goes_on_from_its_checkpoint_on_the_spare(lab: Lab, place: Path) -> None:
    (hurt := place / "hurt").mkdir()
    program = (EXAMPLE, "--steps", "8", "--every", "2", "--folder")
    calm = [bare(lab, rank, *program, place / "calm") for rank in (0, 1)]
    flags = ("--hosts", "a,b,c", "--nodes", "2", "--node-restarts", "1")
    running = start(lab, hurt, *flags, *program, hurt / "saved", "--pause", "0.05")
    wait_for((hurt / "saved" / "checkpoint.pt").exists, "a checkpoint", timeout=90)
    kill_all(lab, "b", hurt)
    code, stdout, stderr = finish(running)
    assert code == 0, stderr
    # Rank 0 fails first, for want of its peer; the host that is gone is the cause all the same.
    assert re.search(r"^nvrun: restart 1 of 1 on a, c; struck off: b: its connection ended", stderr, re.MULTILINE)
    assert "nvrun:   spare: c\n" in stderr
    assert f"nvrun: the logs of the attempt before are now in {hurt / 'runs'}/" in stderr
    assert re.search(r"a:0: restart 1, 2 ranks, from {'step': [246]", stdout), stdout
    undisturbed, _ = (finish(each)[1] for each in calm)
    assert loss(stdout) == loss(undisturbed)
    folder = hurt / "runs" / "latest"
    found = result(folder)
    (earlier,) = found["attempts"]
    assert (earlier["hosts"], earlier["ended_by"], earlier["exit_code"]) == (["a", "b"], "lost", 69)
    assert list(earlier["struck_off"]) == ["b"]
    assert (found["ended_by"], found.get("bad_hosts")) == ("success", None)
    assert result(folder / "attempts" / "0")["ended_by"] == "lost"
    assert (folder / "attempts" / "0" / "logs" / "a" / "rank0.out").exists()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["a", "c"]


@pytest.mark.lab
def test_a_host_that_is_cut_off_is_replaced_and_restarts_are_used_up(lab: Lab, place: Path) -> None:
    (script := place / "rank.py").write_text(RANK)
    flags = ("--hosts", "a,b,c", "--nodes", "2", "--node-restarts", "1", "--lost-after", "8")
    running = start(lab, place, *flags, script, place, "-1", "2")
    up(place, 0)
    with faults.cut(lab, "b"):
        up(place, 1)
        # Whatever host b still runs of the first attempt can be told from the second's.
        marks = [(place / f"up.{restart}.1").read_text() for restart in (0, 1)]
        assert [mark.partition(".")[2] for mark in marks] == ["1", "a1.1"]
        kill_all(lab, "c", place)
        code, _, stderr = finish(running)
        assert code == 69, stderr
        wait_for(lambda: not lab.pids("b", marks[0]), "b has ended its ranks by itself", timeout=30)
    assert "nvrun: restart 1 of 1 on a, c; struck off: b: nothing heard for " in stderr
    assert "nvrun: no further restart without c: 1 of --node-restarts 1 are used up" in stderr
    found = result(place / "runs" / "latest")
    assert (found["ended_by"], list(found["bad_hosts"])) == ("lost", ["c"])
    assert [list(attempt["struck_off"]) for attempt in found["attempts"]] == [["b"]]
    assert (place / "runs" / "latest" / "bad_hosts.txt").read_text() == "b,c\n"


@pytest.mark.lab
def test_it_goes_on_with_fewer_where_that_is_allowed_but_not_after_a_failure_of_the_script(
    lab: Lab, place: Path
) -> None:
    (script := place / "rank.py").write_text(RANK)
    running = start(lab, place, "--hosts", "a,b,c", "--nnodes", "1:3", "--node-restarts", "9", script, place, "1", "1")
    up(place, 0)
    kill_all(lab, "a", place)  # the host of the rendezvous: torchrun itself cannot go on without it
    code, _, stderr = finish(running)
    assert code == 37, stderr
    assert "nvrun: restart 1 of 9 on b, c; struck off: a: its connection ended" in stderr
    assert "restart 2" not in stderr
    found = result(place / "runs" / "latest")
    # Attempts that the checks of a machine with too much to do refused may follow; none of them is a restart.
    assert (found["ended_by"], [each["began"] for each in found["attempts"]].count(True)) == ("rank", 1), stderr


@pytest.mark.lab
def test_a_spare_that_is_cut_off_from_who_ran_before_is_to_blame_and_a_hung_host_keeps_nobody_waiting(
    lab: Lab, place: Path
) -> None:
    (script := place / "rank.py").write_text(RANK)
    (small := place / "small").mkdir()
    (large := place / "large").mkdir()
    flags = ("--hosts", "a,b,c", "--node-restarts", "1")
    of_three = start(lab, large, *flags, script, large, "-1", "1")
    wait_for(lambda: (large / "up.0.2").exists(), "the third rank", timeout=90)
    agents = [each.pid for each in lab.processes("c") if "nvrun-agent/boot.py" in " ".join(each.argv)]
    of_two = start(lab, small, *flags, "--nodes", "2", script, small, "-1", "1")
    up(small, 0)
    with faults.drop(lab, "c", "1024-65535", peer="a", way="in"):
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        kill_all(lab, "b", place)
        asked = time.monotonic()
        for _ in range(2):
            time.sleep(0.5)
            of_three.send_signal(signal.SIGINT)
        code, _, stderr = finish(of_three)
        seconds = time.monotonic() - asked
        for pid in agents:
            os.kill(pid, signal.SIGCONT)
        assert code == 69, stderr
        assert seconds < 12 or machine_is_busy(), stderr  # the silence is heard after 5 s; grace and last words are 17
        assert "nvrun: c did not say that its ranks are gone; they may still run there" in stderr
        assert "nvrun: no restart: an end was asked for" in stderr
        code, _, stderr = finish(of_two)
    assert code == 78, stderr
    assert "nvrun: no restart without c: 1 of the 2 hosts that the job needs are left" in stderr
    assert list(result(small / "runs" / "latest")["bad_hosts"]) == ["c"]
    wait_for(lambda: not lab.pids("c", str(place)), "c has ended its ranks by itself", timeout=30)


@pytest.mark.lab
def test_in_a_slurm_job_that_outlives_a_node_another_stands_in(slurm_lab: Lab, place: Path) -> None:
    (script := place / "rank.py").write_text(RANK)
    salloc = ["salloc", "--quiet", "--no-kill", "--nodes=3", "--nodelist=a,b,c", "--exclusive"]
    flags = ["--nproc-per-node", "1", "--grace", "2", "--run-dir", str(place / "runs"), "--nodes", "2"]
    flags += ["--node-restarts", "1", "--lost-after", "8"]
    words = [str(script), str(place), "-1", "1"]
    running = slurm_lab.popen([*salloc, *NVRUN, *flags, *words], cwd=place, start_new_session=True)
    up(place, 0)
    kill_all(slurm_lab, "b", place)
    slurm_lab.run(["scontrol", "update", "nodename=b", "state=down", "reason=test"], check=True)
    code, _, stderr = finish(running)
    assert code == 0, stderr
    assert "nvrun: --node-restarts under Slurm: a node that Slurm itself finds down ends the whole job" in stderr
    assert "nvrun: restart 1 of 1 on a, c; struck off: b: nothing heard for " in stderr
    idle = ["sinfo", "--noheader", "--nodes=a,b,c", "--states=idle", "--format=%D"]
    wait_for(lambda: slurm_lab.run(idle).stdout == "3\n", "the nodes are as they were", timeout=30)


@pytest.mark.lab
def test_a_port_that_is_closed_on_all_hosts_costs_no_spare(lab: Lab, place: Path) -> None:
    (script := place / "rank.py").write_text(RANK)
    with contextlib.ExitStack() as closed:
        for host in "abc":
            closed.enter_context(faults.drop(lab, host, "29500-29599", way="in"))
        code, _, stderr = finish(start(lab, place, "--hosts", "a,b,c", "--nodes", "2", script, place, "-1", "0"))
    assert code == 78, stderr
    assert "no host reaches port 29500 of another, tried on a and b: no answer: a firewall drops the packets" in stderr
    assert "--port-range to one that is open" in stderr
    assert "starting again" not in stderr
    assert "bad_hosts" not in result(place / "runs" / "latest")


@pytest.mark.lab
@pytest.mark.slow
def test_where_all_pairs_fail_one_spare_is_tried_and_no_host_is_told_as_bad(lab: Lab, place: Path) -> None:
    (script := place / "rank.py").write_text(RANK)
    ports = "1024-65535"
    with (
        faults.drop(lab, "b", ports, peer="a", way="in"),
        faults.drop(lab, "c", ports, peer="a", way="in"),
        faults.drop(lab, "b", ports, peer="c", way="in"),
    ):
        code, _, stderr = finish(start(lab, place, "--hosts", "a,b,c", "--nodes", "2", script, place, "-1", "0"))
    assert code == 78, stderr
    assert "nvrun: a and b fail together: a spare in the place of b shows which of them is bad" in stderr
    assert "nvrun: a fails with the spare too; starting again on c, b" in stderr
    latest = place / "runs" / "latest"
    assert not (latest / "bad_hosts.txt").exists(), (latest / "bad_hosts.txt").read_text()
    assert (latest / "good_hosts.txt").read_text() == ""
