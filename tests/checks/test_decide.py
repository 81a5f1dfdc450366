"""What is refused, what a waiver lifts, and with which exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvrun import checks
from nvrun.errors import UsageError
from nvrun.model import Finding, Severity, Verdict


def verdict(*found: tuple[str, Severity]) -> Verdict:
    return Verdict(findings=tuple(Finding(code=code, severity=severity, message="m") for code, severity in found))


ERROR = verdict(("nofile-low", Severity.ERROR), ("cpus-few", Severity.WARNING))
FATAL = verdict(("nofile-low", Severity.ERROR), ("torch-missing", Severity.FATAL))
LOST = verdict(("host-silent", Severity.FATAL), ("host-auth", Severity.FATAL), ("system-differs", Severity.INFO))


def test_warnings_refuse_nothing() -> None:
    decision = checks.apply(verdict(("cpus-few", Severity.WARNING)))
    assert (decision.refused, decision.exit_code) == (False, 0)


def test_errors_refuse_with_78_and_the_worst_comes_first() -> None:
    decision = checks.apply(FATAL)
    assert [finding.code for finding in decision.blocking] == ["torch-missing", "nofile-low"]
    assert decision.exit_code == 78


def test_only_unreachable_hosts_give_69() -> None:
    assert checks.apply(LOST).exit_code == 69
    both = Verdict(findings=LOST.findings + ERROR.findings)
    assert checks.apply(both).exit_code == 78


def test_waiver_lifts_an_error_and_says_so() -> None:
    decision = checks.apply(ERROR, waive=["nofile-low"])
    assert not decision.refused
    assert [finding.code for finding in decision.waived] == ["nofile-low"]


def test_waiver_does_not_lift_what_is_fatal_but_force_does() -> None:
    decision = checks.apply(FATAL, waive=["torch-missing", "nofile-low"])
    assert [finding.code for finding in decision.blocking] == ["torch-missing"]
    assert "--force" in decision.notes[0]
    assert not checks.apply(FATAL, force=True).refused


def test_unknown_waiver_is_a_usage_error_with_the_nearest_code() -> None:
    with pytest.raises(UsageError) as caught:
        checks.apply(ERROR, waive=["nofile-lo"])
    assert "nofile-low" in caught.value.hint


def test_codes_of_other_families_may_be_waived() -> None:
    found = verdict(("nccl-value-misread", Severity.ERROR))
    assert not checks.apply(found, waive=["nccl-value-misread"]).refused
    assert not checks.apply(Verdict(), waive=["nccl-list-signs"], also=["nccl-list-signs"]).refused


def test_unknown_code_cannot_be_explained() -> None:
    with pytest.raises(UsageError, match="no finding"):
        checks.explain("memlock")


@pytest.mark.parametrize("code", sorted(checks.unreachable.UNREACHABLE))
def test_unreachable_host_is_a_finding_with_a_remedy(code: str) -> None:
    finding = checks.from_unreachable("n02", code, "n02: it said nothing", "")
    assert (finding.host, finding.message, finding.severity) == ("n02", "it said nothing", Severity.FATAL)
    assert finding.remedy


def test_every_code_of_the_fleet_is_in_the_table() -> None:
    folder = Path(__file__).parents[2] / "nvrun" / "fleet"
    used = {
        code for file in folder.glob("*.py") for code in re.findall(r"\bhost-[a-z]+(?:-[a-z]+)*\b", file.read_text())
    }
    used -= {"host-key"}
    assert used
    assert used <= set(checks.unreachable.UNREACHABLE)


def test_hint_of_the_transport_goes_before_the_general_remedy() -> None:
    assert checks.from_unreachable("n02", "host-auth", "no", "ssh-add").remedy == "ssh-add"
    assert checks.from_unreachable("n02", "host-eaten", "no", "call").code == "host-eaten"
