"""One line of each kind of fault, as the software prints it (lines.tsv), and the code that it must get."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import RULES, Source
from nvrun.model import Severity

LINES = [
    (line, code)
    for code, line in (
        row.split("\t", 1) for row in (Path(__file__).parent / "lines.tsv").read_text(encoding="utf-8").splitlines()
    )
]


def codes(*lines: str, **where: str) -> list[str]:
    return [finding.code for finding in diagnose([Source("log", lines, **where)])]  # type: ignore[arg-type]


@pytest.mark.parametrize(("line", "code"), LINES, ids=[f"{i}-{code}" for i, (_, code) in enumerate(LINES)])
def test_a_line_gets_its_code(line: str, code: str) -> None:
    assert codes(line) == [code]


@pytest.mark.parametrize("prefix", ["0: ", "[rank0]:", "[1,0]<stderr>:", "gpu07:3 ", "(Worker pid=12) ", "\x1b[31m"])
def test_a_launcher_s_prefix_changes_nothing(prefix: str) -> None:
    for line, code in LINES:
        if code != "command-missing":
            assert codes(prefix + line) == [code], line


def test_every_row_is_met_by_a_line_here() -> None:
    met = {code for _, code in LINES}
    assert {rule.code for rule in RULES} <= met


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rows_are_well_formed(rule) -> None:  # type: ignore[no-untyped-def]
    groups = dict.fromkeys(rule.pattern.groupindex if rule.pattern else (), "x")
    assert rule.message.format_map(groups)
    assert rule.subject.format_map(groups) is not None
    assert 0 < rule.confidence < 1
    assert all(any(character.isalpha() for character in anchor) for anchor in rule.anchors)
    if rule.stage.is_cause and rule.code != "cancelled":
        assert rule.remedy
    if rule.stage is Stage.CONSEQUENCE:
        assert not rule.remedy


HEALTHY = (Path(__file__).parent / "healthy.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_line_gives_at_most_a_note(line: str) -> None:
    assert [finding.code for finding in diagnose([Source("log", [line])]) if finding.severity > Severity.INFO] == []


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("gpu07:1:2 [3] net_ib.cc:95 NCCL WARN NET/IB : mlx5_2:1 async fatal event: port error", "mlx5_2:1"),
        ("gpu07:1:2 [3] net_ib.cc:95 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error", "mlx5_2:1"),
        ("gpu07:1:2 [3] net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error", ""),
        ("[ 9.1] mlx5_core 0000:9a:00.0 ens3np0: Link down", "ens3np0"),
        ("[ 9.1] bnxt_en 0000:9a:00.0 ens4f0np0: NIC Link is Down", "ens4f0np0"),
        ("[ 9.1] ixgbe 0000:9a:00.0: eth2: NIC Link is Down", "eth2"),
    ],
)
def test_the_port_that_lost_its_link_is_named(line: str, subject: str) -> None:
    (finding,) = diagnose([Source("log", [line])])
    assert (finding.code, finding.subject) == ("link-down", subject)
