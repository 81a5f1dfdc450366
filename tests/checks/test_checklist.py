"""The ten-line list: ok, failed or not checked, and why."""

from __future__ import annotations

from nvrun.checks import CHECKS, Job, checklist
from nvrun.checks.active import ACTIVE
from nvrun.checks.checklist import TOPICS
from nvrun.facts import PathFact
from nvrun.model import Finding, Severity, Verdict
from tests.checks.fleets import changed, fleet, judge, section, with_


def states(verdict: Verdict) -> dict[str, str]:
    return {item.title.partition(":")[0].partition(" ")[0]: item.state for item in checklist(verdict, Job())}


def test_ten_lines_and_every_name_is_known() -> None:
    assert len(TOPICS) == 10
    known = {check.name for check in CHECKS} | {check.family for check in CHECKS} | {test.name for test in ACTIVE}
    assert {name for topic in TOPICS for name in topic.checks} <= known


def test_healthy_fleet_is_ok_where_it_was_judged() -> None:
    found = states(judge(fleet("h100x8", 3)))
    assert found.pop("data") == "not checked"
    assert set(found.values()) == {"ok"}


def test_required_data_is_judged_where_it_was_asked_for() -> None:
    job = Job(require_path=("/data",))
    missing = PathFact(path="/data", exists=False, error="No such file or directory")
    hosts = {host: with_(facts, paths=(missing,)) for host, facts in fleet("cpu_host", 2).items()}
    assert {item.title: item.state for item in checklist(judge(hosts, job), job)}["data and checkpoints"] == "failed"


def test_fault_shows_in_its_own_line_only() -> None:
    hosts = changed(fleet("h100x8", 3), "n02", section("software", torch="2.1.0"))
    items = [item for item in checklist(judge(hosts), Job()) if item.state == "failed"]
    assert len(items) == 1
    assert items[0].why.startswith("n02: torch 2.1.0")


def test_active_findings_are_told_from_those_of_facts() -> None:
    verdict = judge(fleet("cpu_host", 3))
    dropped = Finding(code="port-dropped", severity=Severity.FATAL, host="n01", message="no answer")
    more = with_(verdict, findings=(*verdict.findings, dropped))
    failed = [item.title for item in checklist(more, Job()) if item.state == "failed"]
    assert failed == ["names, ports and firewall"]


def test_unread_is_not_ok() -> None:
    hosts = {host: with_(facts, software=None) for host, facts in fleet("cpu_host", 2).items()}
    versions = next(item for item in checklist(judge(hosts), Job()) if item.title.startswith("versions"))
    assert versions.state == "not checked"
    assert "software" in versions.why
