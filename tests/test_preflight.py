"""Where rules of several families meet."""

from __future__ import annotations

from nvrun import job, preflight
from nvrun.config import parse
from nvrun.model import Finding, Severity
from nvrun.prepare import plan_of_facts
from tests.checks.fleets import fleet


def test_a_loopback_endpoint_is_told_once() -> None:
    """Slurm's trap knows more of it than the check."""
    argv = ("--nnodes=2", "--node-rank=0", "--master-addr=localhost", "t.py")
    the_job = job.read(parse(argv, {}, []), {"HOME": "/nowhere"})
    known = list(fleet("cpu_host", 1).values())
    trap = Finding(code="slurm-master-is-loopback", severity=Severity.ERROR, message="2 nodes are told to meet there")
    for found, expected in (([], {"endpoint-loopback"}), ([trap], {trap.code})):
        plan = plan_of_facts(the_job, "20261129-151203-k3x9", known)
        verdict = preflight.decide(the_job, plan, dict(enumerate(known)), found).verdict
        assert {each.code for each in verdict.findings if "loopback" in each.code} == expected
