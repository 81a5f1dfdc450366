"""gpu-clean: which processes it takes for left over. nvidia-smi is a stand-in that names the processes of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nvrun.hooks.load import _module, find

ON_HOST: str = _module("gpu-clean", *find("gpu-clean", {"HOME": "/nobody"})).ON_HOST
SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(pid: int) -> None:
    if alive(pid):
        os.kill(pid, signal.SIGKILL)


class Machine:
    """Processes of three kinds, and an nvidia-smi that finds them on a GPU."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        marked = {**os.environ, "NVRUN_MARK": "20261129-000000-gone.0"}
        self.plain = self._child(stack, dict(os.environ))
        self.running = self._child(stack, marked)
        code = "import os, subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=2).pid)"
        self.orphan = int(subprocess.run([sys.executable, "-c", code, *SLEEP], env=marked, stdout=subprocess.PIPE,
                                         check=True, text=True, stderr=subprocess.DEVNULL).stdout)  # fmt: skip
        stack.callback(end, self.orphan)
        lines = "".join(f"{pid}, 1024\\n" for pid in (self.plain, self.running, self.orphan, 2**22 + 1))
        tool = place / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
        tool.chmod(0o755)
        self.env = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}

    @staticmethod
    def _child(stack: ExitStack, env: dict[str, str]) -> int:
        process = stack.enter_context(subprocess.Popen(SLEEP, env=env))
        stack.callback(process.kill)
        return process.pid

    def run(self, which: str, action: str) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-I", "-", which, action], input=ON_HOST, env=self.env, text=True,
                              capture_output=True, timeout=30, check=True)  # fmt: skip
        return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        machine = Machine(tmp_path, stack)
        parent = int(Path(f"/proc/{machine.orphan}/stat").read_text().rpartition(")")[2].split()[1])
        if parent != 1 and Path(f"/proc/{parent}/comm").read_text().strip() != "systemd":
            pytest.skip(f"orphans go to process {parent} here, neither init nor systemd")
        yield machine


def pids(entries: list[dict[str, Any]]) -> set[int]:
    return {entry["pid"] for entry in entries}


def test_only_what_a_dead_run_left_is_ended(machine: Machine) -> None:
    seen = machine.run("leftover", "look")
    assert pids(seen["ended"]) == {machine.orphan}
    assert alive(machine.orphan)
    found = machine.run("leftover", "end")
    assert pids(found["ended"]) == {machine.orphan}
    assert pids(found["left"]) == {machine.plain, machine.running}
    assert found["stuck"] == found["others"] == []
    assert not alive(machine.orphan)
    assert alive(machine.plain)
    assert alive(machine.running)


def test_mine_are_all_of_this_user(machine: Machine) -> None:
    found = machine.run("mine", "look")
    assert pids(found["ended"]) == {machine.plain, machine.running, machine.orphan}


def test_it_is_one_line_where_there_is_no_nvidia_smi(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "nvrun", "--run-dir", str(place), "--hook", "gpu-clean", "--no-python", "true"],
        env={**os.environ, "PATH": "/bin"}, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False,
        timeout=60,
    )  # fmt: skip
    if Path("/bin/nvidia-smi").exists():
        pytest.skip("nvidia-smi is installed here")
    assert done.returncode == 78
    assert "hook gpu-clean, before the job: " in done.stderr
    assert "nvidia-smi" in done.stderr
    assert time.monotonic() - began < 20
