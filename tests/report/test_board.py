"""The live preflight table: rows for few hosts, counts for many, only in a terminal, and nothing of it left there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from nvrun.report import board


def test_few_hosts_have_a_row_each() -> None:
    assert board.rows(["a", "b"], ["python", "facts"], [1.25, 0.04]) == [
        ("a", "Python starts", "1.2 s"),
        ("b", "facts read", "0.0 s"),
    ]


def test_many_hosts_are_counted_by_stage_in_the_order_of_the_stages() -> None:
    names = [f"gpu{number:03}" for number in range(100)]
    stages = ["facts"] * 97 + ["connecting"] * 2 + ["unreachable"]
    assert board.rows(names, stages, [0.0] * 100) == [
        ("2 hosts", "connecting", ""),
        ("97 hosts", "facts read", ""),
        ("1 host", "not reached", ""),
    ]


SCRIPT = """
import time
from nvrun.report import board
with board.shown(["a", "b"]) as watch:
    watch(0, "hello")
    time.sleep(0.9)
    watch(0, "facts")
    watch(1, "unreachable")
    time.sleep(0.3)
print("after")
"""


def shown(terminal: bool) -> bytes:
    """What SCRIPT leaves on its standard error and output."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm", "COLUMNS": "80"}
    running = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # a terminal's other end is gone
            data = b""
        if not data:
            break
        said += data
    os.close(ours)
    assert running.wait() == 0
    return said


def test_it_lives_in_a_terminal_alone() -> None:
    said = shown(terminal=True)
    assert b"agent answers" in said
    assert b"not reached" in said
    assert said.rstrip().endswith(b"after")
    assert shown(terminal=False) == b"after\n"
