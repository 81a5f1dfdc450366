"""Silent jobs on two hosts: those that work are left alone, one that hangs is told with its missing rank, and what
cannot be judged is said."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import PATH, REPOSITORY, Lab, wait_for
from tests.spine.jobs import NVRUN, command, job, result

pytestmark = pytest.mark.lab
BESIDE = str(Path(sys.executable).parent)
PY_SPY = shutil.which("py-spy", path=os.pathsep.join([PATH, BESIDE]))
needs_py_spy = pytest.mark.skipif(PY_SPY is None, reason="py-spy is not installed here")
PHASES = Path(__file__).with_name("phases.py")
FORBIDDEN = REPOSITORY / "tests/lab/forbidden.py"


@needs_py_spy
def test_a_rank_that_goes_another_way(lab: Lab, place: Path) -> None:
    """As an ordinary user, where seccomp forbids ptrace and its like: py-spy reads /proc/PID/mem then."""
    within = f"{sys.executable} {FORBIDDEN} ptrace,process_vm_readv"
    flags = ["--run-dir", f"{place}/runs", "--nproc-per-node", "2", "--check", "quick", "--in", within]
    limits = ["--hang-after", "2", "--hang-timeout", "5"]
    argv = command(lab, "ssh", ("a", "b"), [*flags, *limits, PHASES, "4.5"], place)
    done = lab.run(argv, user="ada", timeout=180)
    assert done.returncode == 124, done.stderr
    assert done.stdout.count("trains") == 4, "nothing was ended before"
    found = "rank 3 on b waits in recv, ranks 0-2 on a, b wait in all_reduce: they do not meet"
    reports = [line for line in done.stderr.splitlines() if line.startswith("nvrun:") and "no rank moves:" in line]
    assert [line.partition("no rank moves: ")[2] for line in reports] == [found]
    assert found in " ".join(done.stderr.partition("\nCause (")[2].split())
    assert "it goes on" not in done.stderr

    ran = result(place)
    assert (ran["ended_by"], ran["exit_code"]) == ("hang", 124)
    (finding,) = (each for each in ran["findings"] if each["code"] == "job-hangs")
    assert (finding["host"], finding["subject"]) == ("b", "rank 3")
    assert any(f"receive ({PHASES}:" in line for line in finding["evidence"])
    run = Path(place / "runs" / "latest").resolve()
    assert "ranks 0-2 on a, b\n" in (run / "stacks.txt").read_text()
    page = lab.run([*NVRUN, "diagnose", run], user="ada")
    assert page.returncode == 1
    assert page.stdout.index("rank 3 on b waits in recv") < page.stdout.index(f"receive ({PHASES}:")


@needs_py_spy
def test_what_cannot_be_seen_is_said_and_nothing_is_ended(lab: Lab, place: Path) -> None:
    flags = ["--hang-after", "1", "--hang-timeout", "1", "--check", "quick"]
    with without_py_spy(lab, "b"), job(lab, place, ["closed", "sleep"], flags=flags, ranks=1, user="ada") as running:
        err = running.running.stderr
        assert err is not None
        said = next(line for line in err if "not judged" in line)
        os.kill(running.nvrun().pid, signal.SIGINT)
        code, _, stderr = running.finish()
    assert "a: py-spy may not read this process (Yama's ptrace_scope" in said
    assert "b: py-spy is not installed" in said
    assert code == 130
    assert stderr.count("not judged") == 1, "the summary"
    ran = result(place)
    assert ran["ended_by"] == "signal"
    assert [each["code"] for each in ran["findings"]] == ["hang-not-judged"]


@needs_py_spy
def test_under_srun(slurm_lab: Lab, place: Path) -> None:
    flags = ["--hang-after", "1", "--hang-timeout", "1", "--check", "quick"]
    with job(slurm_lab, place, ["sleep"], way="srun", flags=flags, ranks=1) as running:
        wait_for(lambda: running.running.poll() is not None, "the end", timeout=30)
        code, _, stderr = running.finish()
    assert code == 124
    assert "all 2 ranks stand at" in stderr
    assert result(place)["ended_by"] == "hang"


@contextlib.contextmanager
def without_py_spy(lab: Lab, host: str) -> Iterator[None]:
    assert PY_SPY is not None
    lab.exec(host, ["mount", "--bind", "/dev/null", PY_SPY], check=True)
    try:
        yield
    finally:
        lab.exec(host, ["umount", PY_SPY], check=True)
