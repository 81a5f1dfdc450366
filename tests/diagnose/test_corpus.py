"""The recorded cases beside the checkout, where they are: the first finding names the known cause."""

from __future__ import annotations

import csv
from fnmatch import fnmatch
from pathlib import Path

import pytest

from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import Source

CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
KINDS = ("nccl", "elastic", "xid")

# Name of the case -> code that names its known cause. Which cases are missed, and why, is in README.md here.
CAUSES = {
    "address_in_use*": "address-in-use",
    "child_failed_*exit1*": "script-failed",
    "child_failed_signal9*": "rank-killed",
    "exit_minus9*": "rank-killed",
    "client_hostname*": "reverse-lookup-failed",
    "client_timeout*": "store-unreachable",
    "ptr_name*": "name-unresolvable",
    "torchrun_reverse_lookup*": "no-route",
    "cannot_assign*": "address-unusable",
    "connect_network_unreachable*": "no-route",
    "cuda802*": "fabric-manager-down",
    "duplicate_gpu*": "duplicate-gpu",
    "gid_index_wrong*": "roce-gid-wrong",
    "roce_gid*": "roce-gid-wrong",
    "hang_amd*": "acs-enabled",
    "*different_fabrics*": "rdma-no-answer",
    "link_flapping*": "link-down",
    "memlock*": "memlock-limit",
    "message_truncated*": "ranks-disagree",
    "mismatched_collective*": "ranks-disagree",
    "no_route*": "no-route",
    "no_socket_interface*": "no-socket-interface",
    "nvls_*": "nvls-unusable",
    "ofi_plugin_missing*": "net-plugin-missing",
    "oom_nccl*": "gpu-out-of-memory",
    "rccl_oom*": "gpu-out-of-memory",
    "rccl_no_route*": "no-route",
    "roce_error12*": "rdma-no-answer",
    "shm_*": "shm-full",
    "veth_interface*": "connect-timeout",
    "watchdog_broadcast_first*": "first-collective-timeout",
    "watchdog_*": "collective-timeout",
    "*xid119*": "xid-119",
    "xid13_*": "xid-13",
    "xid144*": "xid-144",
    "xid145*": "xid-145",
    "xid63*": "xid-63",
    "xid79*": "xid-79",
}


def cases(suffix: str) -> list[Path]:
    index = CORPUS / "index.tsv"
    if not index.exists():
        return []
    with index.open(newline="") as file:
        names = [row["file"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return [CORPUS / name for name in names if name.split("/")[0] in KINDS and name.endswith(suffix)]


def expected(case: Path) -> str | None:
    return next((code for pattern, code in CAUSES.items() if fnmatch(case.stem, pattern)), None)


def first_code(case: Path) -> str | None:
    with case.open("rb") as lines:
        findings = diagnose([Source(case.name, lines)])
    return findings[0].code if findings else None


FAULTS = [case for case in cases(".txt") if not case.stem.startswith("ok_") and case.stem != "socket_only_eth0"]
HEALTHY = [case for case in cases(".txt") if case.stem.startswith("ok_") or case.stem == "socket_only_eth0"]


@pytest.mark.skipif(not FAULTS, reason="no corpus beside the checkout")
def test_machine_output_is_named() -> None:
    missed = {case.stem: first_code(case) for case in FAULTS if first_code(case) != expected(case)}
    assert len(missed) <= len(FAULTS) // 10, missed


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.stem)
def test_healthy_logs_give_nothing(case: Path) -> None:
    assert first_code(case) is None


@pytest.mark.skipif(not CORPUS.exists(), reason="no corpus beside the checkout")
def test_recorded_h200_runs_give_nothing() -> None:
    for log in sorted((CORPUS / "h200").glob("*.log")):
        assert first_code(log) is None, log


def test_stages_are_in_reading_order() -> None:
    assert [stage for stage in Stage if stage.is_cause] == sorted(stage for stage in Stage if stage.is_cause)
    assert max(stage for stage in Stage if stage.is_cause) < Stage.SYMPTOM < Stage.TIMEOUT < Stage.CONSEQUENCE
