"""How the agent ended, as whoever started it sees that."""

from __future__ import annotations

import subprocess
import sys

import pytest

SUPERVISOR = """
import os, signal, sys
from nvrun.agent.keeper import keep
keep(os.dup(0), os.dup(1))
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 137), ("os._exit(0)", 0)]
)
def test_a_supervisor_that_was_killed_ends_as_in_a_shell(end: str, code: int) -> None:
    assert (
        subprocess.run([sys.executable, "-c", SUPERVISOR.format(end=end)], timeout=20, check=False).returncode == code
    )
