"""The commands of nvrun.numactl, run: a process really is where its binding says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from nvrun.facts import HostFacts, Software
from nvrun.model import Binding
from nvrun.numactl import prefix

NUMACTL = shutil.which("numactl")
CPUS = sorted(os.sched_getaffinity(0))
FACTS = HostFacts(
    host="here",
    software=Software(python="3", executable=sys.executable, numactl=NUMACTL, mempolicy_allowed=True),
)
SHOW = (
    "import json, os, re; text = open('/proc/self/numa_maps').read(); "
    "print(json.dumps([sorted(os.sched_getaffinity(0)), re.search(r'(default|prefer|bind|local)\\S*', text)[0]]))"
)

pytestmark = [
    pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed"),
    pytest.mark.skipif(len(CPUS) < 2, reason="one CPU only"),
]


def where(argv: tuple[str, ...]) -> tuple[list[int], str]:
    """CPUs and memory policy of a process started under this command."""
    done = subprocess.run([*argv, sys.executable, "-S", "-c", SHOW], capture_output=True, text=True, timeout=30)
    if "perm" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"memory policy is forbidden here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    cpus, policy = json.loads(done.stdout)
    return cpus, policy


def rank(cpu: int) -> Binding:
    return Binding(local_rank=0, cpus=(cpu,), memory_node=0, memory="preferred")


def test_cpus_and_memory_are_as_planned() -> None:
    cpus, policy = where(prefix(rank(CPUS[-1]), FACTS).argv)
    assert cpus == [CPUS[-1]]
    assert policy.startswith("prefer")


def test_a_rank_leaves_the_mask_of_its_job() -> None:
    """torchrun of a host whose ranks are all on one CPU, and a rank on another: `--all` lets it out."""
    outer = (str(NUMACTL), f"--physcpubind={CPUS[0]}")
    cpus, _ = where((*outer, *prefix(rank(CPUS[-1]), FACTS).argv))
    assert cpus == [CPUS[-1]]


@pytest.mark.parametrize(("memory", "policy"), [("strict", "bind"), ("local", "local")])
def test_other_policies(memory: str, policy: str) -> None:
    binding = Binding(local_rank=0, cpus=tuple(CPUS), memory_node=0 if memory == "strict" else None, memory=memory)  # type: ignore[arg-type]
    assert where(prefix(binding, FACTS).argv)[1].startswith(policy)
