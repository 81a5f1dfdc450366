"""Facts read on real hosts of the lab: no false alarm when they are well, and the right finding for real faults."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvrun import facts
from nvrun.checks import Job, run
from nvrun.facts import HostFacts
from nvrun.model import Severity, Verdict
from tests.lab import faults
from tests.lab.lab import Lab

ROOT = Path(__file__).parents[2]
HOSTS = ("a", "b", "c")
PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nvrun.agent.probe import collect
print(json.dumps(collect(json.loads(sys.argv[2]))))
"""
pytestmark = pytest.mark.lab


def collect(lab: Lab, host: str) -> HostFacts:
    """The facts of one host, read in the chain of an ssh session."""
    script = ROOT / "examples" / "train_ddp.py"
    request = {"host": host, "peers": [h for h in HOSTS if h != host], "script": str(script), "cwd": str(ROOT)}
    argv = [sys.executable, "-c", PROBE, str(ROOT), json.dumps(request)]
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)
    return facts.decode(json.loads(lab.run(["ssh", host, quoted]).stdout))


def judge(lab: Lab) -> Verdict:
    with ThreadPoolExecutor(3) as threads:
        fleet = dict(zip(HOSTS, threads.map(lambda host: collect(lab, host), HOSTS), strict=True))
    return run(fleet, Job(script=str(ROOT / "examples" / "train_ddp.py"), cwd=str(ROOT), port=29500))


def above_information(verdict: Verdict) -> set[tuple[str, str | None]]:
    return {(f.code, f.host) for f in verdict.findings if f.severity > Severity.INFO}


def test_three_healthy_hosts_give_nothing_above_information(lab: Lab) -> None:
    verdict = judge(lab)
    assert above_information(verdict) == set(), verdict.findings
    assert len(verdict.judged) > 40


Fault = Callable[[Lab], contextlib.AbstractContextManager[object]]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda lab: faults.name_to_loopback(lab, "b"), "own-name-loopback"),
        (lambda lab: faults.name_unknown(lab, "b", "c"), "peer-name-unknown"),
        (lambda lab: faults.low_limits(lab, "b", nofile=64), "nofile-low"),
        (lambda lab: faults.small_shm(lab, "b"), "shm-small"),
        (lambda lab: faults.mtu(lab, "b", 1300), "mtu-differs"),
        (lambda lab: faults.full_disk(lab, "b", "/tmp"), "disk-full"),
        (lambda lab: faults.mounted(lab, "b", "/tmp", "noexec"), "cache-noexec"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault_on_b_is_found_and_b_is_named(lab: Lab, fault: Fault, code: str) -> None:
    with fault(lab):
        verdict = judge(lab)
    assert (code, "b") in above_information(verdict), verdict.findings
    assert {host for _, host in above_information(verdict)} <= {"b", None}
