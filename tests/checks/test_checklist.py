"""The ten-line list: ok, failed or not checked, and why."""

from __future__ import annotations

from nvrun.checks import CHECKS, Job, checklist
from nvrun.checks.active import ACTIVE
from nvrun.checks.checklist import LINT, TOPICS
from nvrun.facts import SECTIONS, HostFacts, PathFact
from nvrun.model import Finding, Severity, Skipped, Verdict
from nvrun.report import findings
from tests.checks.fleets import changed, fleet, judge, section, with_


def states(verdict: Verdict) -> dict[str, str]:
    return {item.title.partition(":")[0].partition(" ")[0]: item.state for item in checklist(verdict, Job())}


def test_ten_lines_and_every_name_is_known() -> None:
    assert len(TOPICS) == 10
    known = (
        {check.name for check in CHECKS} | {check.family for check in CHECKS} | {test.name for test in ACTIVE} | {LINT}
    )
    assert {name for topic in TOPICS for name in topic.checks} <= known


def test_healthy_fleet_is_ok_where_it_was_judged() -> None:
    found = states(judge(fleet("h100x8", 3)))
    assert found.pop("data") == "not checked"
    assert set(found.values()) == {"ok"}


def test_of_one_host_lint_has_judged_the_variables() -> None:
    """There is no other host to compare them with."""
    verdict = judge(fleet("cpu_host", 1))
    assert states(verdict)["NCCL's"] == "not checked"
    assert states(with_(verdict, judged=(*verdict.judged, LINT)))["NCCL's"] == "ok"


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


def lines(verdict: Verdict, facts: dict[str, HostFacts], level: str = "full") -> dict[str, tuple[str, str]]:
    items = checklist(verdict, Job(hosts=tuple(facts)), tuple(facts.values()), level)
    return {item.title.partition(":")[0].partition(" ")[0]: (item.state, item.why) for item in items}


def test_what_is_not_there_is_not_ok() -> None:
    hosts = fleet("cpu_host", 2)
    found = lines(judge(hosts), hosts)
    assert found["GPUs"] == found["RDMA"] == ("not checked", "none on any host")


def test_a_host_that_fell_silent_is_named_in_every_line_that_needs_it() -> None:
    why = "nothing is heard from it for 5 s"
    hosts = {**fleet("cpu_host", 2), "n03": HostFacts(host="n03", missing=dict.fromkeys(SECTIONS, why))}
    verdict = judge(hosts)
    verdict = with_(
        verdict, skipped=(*verdict.skipped, Skipped(code="connections", host=None, reason="n03 fell silent"))
    )
    found = lines(verdict, hosts)
    assert {state for title, (state, _) in found.items() if title != "GPUs"} == {"not checked"}
    assert found["limits,"] == ("not checked", f"n03: {why}")


def test_what_was_not_tried_has_its_true_reason() -> None:
    def untried(count: int, level: str) -> str:
        hosts = fleet("cpu_host", count)
        return lines(judge(hosts), hosts, level)["network"][1]

    assert untried(1, "full") == "not tried: path-mtu, latency (one host only), bandwidth (--check deep)"
    assert untried(2, "quick") == "not tried: path-mtu, latency (--check full), bandwidth (--check deep)"
    assert untried(2, "") == "not tried: path-mtu, latency, bandwidth (no hosts to try it on)"


def test_notes_say_where_they_are() -> None:
    hosts = fleet("cpu_host", 2)
    verdict = judge(hosts)
    code = next(code.code for check in CHECKS if check.name == "memlock" for code in check.codes)
    note = Finding(code=code, severity=Severity.INFO, message="a note")
    noted = with_(verdict, findings=(*verdict.findings, note))
    assert lines(noted, hosts)["limits,"] == ("ok", "1 warning or note: --json")
    assert findings.lines(with_(noted, skipped=()), rest="--json")[-1].text == "nothing found; 1 note: --json"
