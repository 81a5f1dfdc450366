"""One command on a host: bounded in time and output, told what it must know, nothing left."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nvrun.agent import command
from tests.lab.lab import wait_for


def run(argv: list[str], program: bytes | None = None, **request: Any) -> dict[str, Any]:
    body = {"argv": argv, "stdin": "", "timeout": 10.0, "cwd": "/", "set": {}, "defaults": {},
            "program": None if program is None else base64.b64encode(program).decode(), **request}  # fmt: skip
    return command.run(body, "run.0")


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"nvrun-{os.getuid()}"


def test_its_words_and_its_code() -> None:
    done = run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin="in")
    assert (done["code"], done["stdout"], done["stderr"], done["trouble"]) == (3, "in", "err\n", "")


def test_environment_and_directory(tmp_path: Path) -> None:
    script = 'echo "$A $B $NVRUN_MARK $NVRUN_HOOK_MARK"; pwd'
    done = run(["sh", "-c", script], set={"A": "set"}, defaults={"A": "default", "B": "b"}, cwd=str(tmp_path))
    assert done["stdout"] == f"set b run.0 run.0\n{tmp_path}\n"
    assert run(["pwd"], cwd="/no/such/place")["stdout"] == "/\n"


def test_a_program_travels_and_goes(private: Path) -> None:
    done = run(["hook", "before"], b'#!/bin/sh\necho "$1 $(stat -c %a "$0" "${0%/*}" | tr "\\n" " ")"\n')
    assert done["stdout"] == "before 700 700 \n"
    assert not private.exists()


def test_a_folder_that_refuses_to_execute(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    tried = []

    def noexec(argv: list[str], **options: Any) -> Any:
        tried.append(argv[0])
        if argv[0].endswith("/hook"):
            raise PermissionError(13, "Permission denied", argv[0])
        return real(argv, **options)

    monkeypatch.setattr(subprocess, "Popen", noexec)
    assert run(["hook", "after"], b'#!/bin/sh -e\necho "$1"\n')["stdout"] == "after\n"
    assert tried[1] == "/bin/sh"


def test_a_flood_is_cut_and_does_not_block() -> None:
    done = run(["sh", "-c", "yes | head -c 3000000; yes | head -c 3000000 >&2"])
    assert done["code"] == 0
    assert len(done["stdout"]) == len(done["stderr"]) == command.LIMIT_BYTES
    assert done["cut_bytes"] == 6_000_000 - 2 * command.LIMIT_BYTES


def test_too_long_is_ended_with_its_children() -> None:
    began = time.monotonic()
    done = run(["sh", "-c", "sleep 97.5 & echo $!; wait"], timeout=0.3)
    assert time.monotonic() - began < 3.0
    assert done["trouble"] == "not done in 0.3 s"
    command_line = Path(f"/proc/{done['stdout'].strip()}/cmdline")
    wait_for(lambda: not command_line.exists() or not command_line.read_bytes(), "its child's end")


def test_a_daemon_that_holds_the_pipe_does_not_hold_us() -> None:
    began = time.monotonic()
    done = run(["sh", "-c", "sleep 4 & echo started"], timeout=8.0)
    assert (done["code"], done["stdout"], done["trouble"]) == (0, "started\n", "")
    assert time.monotonic() - began < 2.0


def test_input_that_nobody_reads() -> None:
    assert run(["true"], stdin="x" * 1_000_000)["code"] == 0


def test_what_is_not_there_is_said() -> None:
    done = run(["/no/such/program"])
    assert done["code"] is None
    assert done["trouble"] == "/no/such/program: No such file or directory"
