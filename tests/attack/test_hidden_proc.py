"""Hosts whose /proc shows less than it should: other users' processes hidden, all but processes hidden, or another pid
namespace's numbers, which are somebody else's here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrun.agent import procs
from tests.lab.lab import Lab, wait_for

NVRUN = (sys.executable, "-m", "nvrun")
RANK = """
import os, subprocess, sys
if os.environ["RANK"] == "1":
    subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(300)", os.getcwd()])
"""


@pytest.fixture
def hidden(lab: Lab) -> Iterator[str]:
    """Host b, where a process sees itself and its user's others in /proc, and nothing else."""
    lab.exec("b", ["mount", "-t", "proc", "-o", "hidepid=2,subset=pid", "proc", "/proc"], check=True)
    yield "b"
    lab.exec("b", ["umount", "/proc"], check=True)


@pytest.mark.lab
def test_what_proc_hides_is_unknown_in_words_and_nothing_is_left(lab: Lab, hidden: str) -> None:
    place = f"{lab.home('ada')}/hidden"
    lab.run(["mkdir", place], user="ada", check=True)
    Path(lab.path("launcher", place), "rank.py").write_text(RANK)
    argv = [
        *NVRUN,
        "--hosts",
        f"{hidden},a",
        "--nproc-per-node",
        "1",
        "--grace",
        "2",
        "--monitor",
        "0.2",
        "--latency",
        "bare-metal",
        "rank.py",
    ]
    done = lab.run(argv, user="ada", cwd=place, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert "how busy it is cannot be read (/proc/loadavg)" in done.stderr
    assert "memory: /proc/meminfo does not tell" in done.stderr
    assert not lab.pids(hidden, place)
    samples = next(Path(lab.path("launcher", place)).glob("nvrun-runs/2*/logs/b/samples.jsonl"))
    wait_for(lambda: len(samples.read_text().splitlines()) > 1, "a header and samples")


@pytest.mark.lab
def test_numbers_of_another_pid_namespace_are_not_believed(lab: Lab) -> None:
    argv = [*NVRUN, "--hosts", "a,b", "--nproc-per-node", "1", "--in", "unshare --pid --fork --kill-child"]
    done = lab.run([*argv, "-m", "this"], timeout=60)
    assert done.returncode == 78, done.stderr
    assert "nvrun: b: /proc is that of another pid namespace" in done.stderr
    swept = lab.run([*NVRUN, "clean", "--hosts", "a", "--in", "unshare --pid --fork --kill-child"], timeout=60)
    assert (swept.returncode, "nothing there" in swept.stdout) == (1, False), swept.stdout
    assert "/proc is that of another pid namespace" in swept.stdout


def test_this_proc_is_ones_own() -> None:
    assert procs.blind() == ""
    assert os.getpid() in procs.all_pids()
