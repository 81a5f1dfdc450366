"""An agent without descriptors to spare: whatever it cannot do then, it ends when its link does."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from nvrun.fleet.bundle import LOADER, bundle


@pytest.mark.parametrize("descriptors", [13, 16, 19, 22, 28])
def test_it_ends_with_its_link(tmp_path: Path, descriptors: int) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    run = f"few-{descriptors}-{time.time_ns()}"
    (tmp_path / ".token").write_text("token")
    messages = [
        {"t": "you", "id": 0, "lost_after": None},
        {"t": "prepare", "run": run, "folder": str(tmp_path), "token": "token", "name": "here", "ports": None},
        {"t": "job", "mark": f"{run}.0", "socket": f"nvrun-{run}-0", "argv": ["/bin/sleep", "60"], "cwd": "/",
         "grace": 1.0, "set": {}, "defaults": {}, "console": "all", "first_stderr": 0},
    ]  # fmt: skip
    agent = subprocess.Popen(
        [sys.executable, "-I", "-c", LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=limit,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
    )
    assert agent.stdin
    try:
        agent.stdin.write(bundle())
        for message in messages:
            agent.stdin.write(json.dumps(message).encode() + b"\n")
        agent.stdin.flush()
        time.sleep(0.8)
        agent.stdin.close()
    except BrokenPipeError:
        agent.stdin = None  # it had too few to come up at all
    agent.wait(timeout=20)
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if run.encode() in _read(path)]


NONE_LEFT = """
import os, resource
from nvrun.agent import main
def run(self):
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    os.open("/dev/null", os.O_RDONLY)
main.Agent.run = run
main.main(os.dup(0), os.dup(1))
"""


def test_why_it_ended_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", NONE_LEFT], capture_output=True, text=True, timeout=20, check=False)
    said = "the agent: OSError: [Errno 24] Too many open files: '/dev/null' (<string>:6)\n"
    assert (done.returncode, done.stderr) == (1, said)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
