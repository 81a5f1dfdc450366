"""A host's own folder for a run: it stays where ranks may have written into it, and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nvrun.fleet.bundle import LOADER, bundle
from nvrun.nccl.heard import NOTED
from tests.lab.lab import wait_for

PREPARE = {"t": "prepare", "folder": "/nowhere", "token": "x", "name": "here", "ports": None}
JOB = {"t": "job", "cwd": "/", "grace": 1.0, "set": {}, "defaults": {}, "console": "all", "first_stderr": 0}
GO: dict[str, Any] = {"t": "go", "ranks": {}, "echo": [], "noted": NOTED, "monitor": None, "hang": None}
FETCH = {"t": "fetch"}


@pytest.mark.parametrize(
    ("messages", "stays"),
    [((PREPARE,), False), ((PREPARE, JOB), False), ((PREPARE, JOB, GO), True), ((PREPARE, JOB, FETCH), True)],
    ids=["prepared", "torchrun started", "ranks let go", "torchrun failed and its words are asked for"],
)
def test_what_is_left_of_it_when_the_launcher_is_gone(
    tmp_path: Path, messages: tuple[dict[str, Any], ...], stays: bool
) -> None:
    run, up = f"20261130-000000-{time.time_ns() % 10000:04d}", tmp_path / "up"
    torchrun = ["/bin/sh", "-c", f"touch {up}; sleep 60"]
    own = {"run": run, "mark": f"{run}.0", "socket": f"nvrun-{run}-0", "argv": torchrun}
    sent = [{"t": "you", "id": 0, "lost_after": None}, *({**own, **message} for message in messages)]
    folder = tmp_path / f"nvrun-{os.getuid()}" / f"{run}.0"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
    ) as agent:
        assert agent.stdin
        agent.stdin.write(bundle() + b"".join(json.dumps(each).encode() + b"\n" for each in sent))
        agent.stdin.flush()
        wait_for(up.exists if JOB in messages else folder.exists, "the agent is so far")
        assert folder.exists()
    assert agent.returncode == 0
    assert folder.exists() is stays
