"""A launcher whose own machine has no process or no thread left: that is no fault of a host's, nor of nvrun's."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import errno, sys, threading
from nvrun.fleet.link import ProcessLink
from nvrun.fleet.session import Route, Session

listener, writer, fork = map(int, sys.argv[1:])

def connect():
    if fork:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    threading.stack_size(listener)
    link = ProcessLink([sys.executable, "-c", "input()"], {})
    threading.stack_size(writer)
    return link

session = Session([Route((0,), connect)], lost_after=60.0, show=print)
while (event := session.events.get(timeout=10)).kind == "stage":
    pass
session.close()
print(event.kind, event.body.code, event.body.message, event.body.hint, sep="|")
"""
TOO_LARGE = str(1 << 46)
"""A thread's stack for which there is no address space."""


@pytest.mark.parametrize(
    ("listener", "writer", "fork", "why"),
    [
        (TOO_LARGE, "0", "0", "can't start new thread"),
        ("0", TOO_LARGE, "0", "can't start new thread"),
        ("0", "0", "1", "[Errno 11] Resource temporarily unavailable"),
    ],
    ids=["listener", "writer", "fork"],
)
def test_it_is_named_with_its_limit(listener: str, writer: str, fork: str, why: str) -> None:
    argv = [sys.executable, "-c", SCRIPT, listener, writer, fork]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    kind, code, message, hint = done.stdout.strip().split("|")
    assert (kind, code, message) == ("unreachable", "host-no-transport", f"not connected: {why}")
    assert "ulimit -u" in hint
    assert done.stderr == ""
