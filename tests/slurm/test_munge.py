"""munge binds a proof to the user: the same user gets in, another one of the same cluster does not."""

from __future__ import annotations

import sys

import pytest

from tests.lab.lab import REPOSITORY, USER, Lab

pytestmark = pytest.mark.lab

STEP = "Step(job_id={job}, step_id=0, node={node}, names=('a', 'b'))"
FIRST = """
from nvrun.gather.meeting import First; from nvrun.gather.proof import Munge; from nvrun.gather.step import Step
import os
first = First({step}, [Munge(os.geteuid())]); print(flush=True); print(first.events.get(timeout=20).data.decode())
"""
OTHER = """
from nvrun.gather.meeting import Other; from nvrun.gather.proof import Munge; from nvrun.gather.step import Step
import os, sys, time
other = Other({step}, [Munge(int(sys.argv[1]))], sys.argv[2].encode()); time.sleep(0.5)
print(other.events.get_nowait().data.decode() if not other.events.empty() else "")
"""


def code(text: str, node: int) -> list[str]:
    return [sys.executable, "-c", text.format(step=STEP.format(job=4711, node=node))]


def test_only_the_same_user_gets_in(slurm_lab: Lab) -> None:
    env = {"PYTHONPATH": str(REPOSITORY)}
    with slurm_lab.popen(code(FIRST, 0), place="a", env=env) as first:
        assert first.stdout
        assert first.stdout.readline() == "\n"
        for user, uid in ((USER, "4711"), (USER, "0")):
            said = slurm_lab.run([*code(OTHER, 1), uid, "forged"], place="b", user=user, env=env).stdout
            assert "the proof by munge was refused" in said
        slurm_lab.run([*code(OTHER, 1), "0", "genuine"], place="b", env=env)
        assert first.stdout.readline() == "genuine\n"
        first.kill()
