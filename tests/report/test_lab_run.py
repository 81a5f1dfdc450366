"""A run on hosts of the lab: watched while it runs, its samples brought back, its page written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvrun import monitor
from tests.lab.lab import Lab, wait_for
from tests.spine.jobs import NVRUN

pytestmark = pytest.mark.lab

# Rank 1 works, rank 0 sleeps; both until the file is there.
PROGRAM = (
    "import os, time\n"
    "print('begun', flush=True)\n"
    "while not os.path.exists('/tmp/enough'):\n"
    "    until = time.time() + 0.1\n"
    "    while os.environ['RANK'] == '1' and time.time() < until: pass\n"
    "    time.sleep(0.02)\n"
)


@pytest.fixture
def watched(make_lab: Callable[..., Lab]) -> tuple[Lab, dict[str, Any], Path]:
    """The lab, what `nvrun top` said while the run was on, and the run's folder after it."""
    lab = make_lab(["a", "b"], split=True, own_pids=True)
    home = lab.path("launcher", lab.home())
    program = home / "work.py"
    for host in ("launcher", *lab.hosts):
        path = lab.path(host, f"{lab.home()}/work.py")
        path.write_text(PROGRAM)
        lab.path(host, "/tmp/enough").unlink(missing_ok=True)
    argv = [*NVRUN, "--hosts", "a,b", "--nproc-per-node", "1", "--monitor", "0.3", f"{lab.home()}/{program.name}"]
    running = lab.popen(argv)
    folder = home / "nvrun-runs/latest"
    wait_for(lambda: (folder / "plan.json").exists(), "the run has begun", timeout=60)
    time.sleep(2.0)
    said = lab.run([*NVRUN, "top", "--json", "latest"], timeout=60)
    for host in lab.hosts:
        lab.path(host, "/tmp/enough").touch()
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, (out, err)
    assert said.returncode == 0, said.stderr
    return lab, json.loads(said.stdout), folder


def test_hosts_that_share_nothing_are_watched_and_reported(watched: tuple[Lab, dict[str, Any], Path]) -> None:
    lab, top, folder = watched
    assert set(top["hosts"]) == {"a", "b"}
    assert list(top["hosts"]["b"]["samples"][-1]["ranks"]) == ["1"]
    assert "is over: ended well" in lab.run([*NVRUN, "top", "latest"], timeout=60, check=True).stdout

    used: dict[int, float] = {}
    for rank, host in enumerate("ab"):
        found = monitor.read(folder / "logs" / host)
        assert found is not None
        assert found.header.host == host
        reads = [sample.ranks[rank] for sample in found.samples if rank in sample.ranks]
        assert len(reads) >= 4
        used[rank] = (reads[-1].cpu_s or 0.0) - (reads[0].cpu_s or 0.0)
        assert not found.samples[-1].ranks, "the last sample is of the host without the job"
    assert used[1] > 5 * used[0], "the working rank used the CPU"

    result = json.loads((folder / "result.json").read_text())
    for end in result["ranks"]:
        assert result["started"] < end["begun"] < end["first_output"] < end["at"]

    said = lab.run([*NVRUN, "report", "latest"], timeout=60)
    assert said.returncode == 0, said.stderr
    page = (folder / "report.html").read_text()
    assert "all 2 ranks ended well" in page
    for host in lab.hosts:
        wait_for(partial(nothing_left, lab, host), f"no folder of a run on {host}")


def nothing_left(lab: Lab, host: str) -> bool:
    return not any(lab.path(host, "/tmp").glob(f"nvrun-{os.getuid()}/*"))
