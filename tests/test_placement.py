"""What a plan gets from the facts: variables that the host had otherwise are told."""

from __future__ import annotations

from nvrun import config
from nvrun.facts import HostFacts
from nvrun.model import EnvVar, Host
from nvrun.placement import Wishes, place
from nvrun.plan import Plan, Site, build


def plan(*forwarded: EnvVar) -> Plan:
    args = config.parse(["--nproc-per-node", "1", "train.py"], {}).torchrun
    site = Site(host=Host(name="b"), ranks=1, python="python3", folder="", forwarded=forwarded)
    return build(run_id="r", args=args, sites=[site], cwd="/", fleet=True, master_port=29500, grace=30, lost_after=300)


def test_a_value_that_travels_over_the_hosts_own_is_told() -> None:
    known = HostFacts(host="b", own_env={"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "LD_LIBRARY_PATH": "/opt/lib"})
    travelled = [
        EnvVar(name="NCCL_DEBUG", value="INFO", source="forwarded"),
        EnvVar(name="NCCL_ALGO", value="Ring", source="forwarded"),
        EnvVar(name="LD_LIBRARY_PATH", value="/home/lib", source="forwarded"),
        EnvVar(name="NCCL_PROTO", value="LL", source="forwarded"),
    ]
    args = config.parse(["--nproc-per-node", "1", "train.py"], {}).torchrun
    placed = place(plan(*travelled), {0: known}, Wishes(args=args))
    found = {
        finding.subject: (finding.severity.label, finding.observed, finding.expected)
        for finding in placed.findings
        if finding.code == "env-forwarded-over"
    }
    assert found == {
        "NCCL_DEBUG": ("warning", "WARN", "INFO"),
        "LD_LIBRARY_PATH": ("info", "/opt/lib", "/home/lib"),
    }
