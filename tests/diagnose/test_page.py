"""The page of a failed job."""

from __future__ import annotations

from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.page import LINES, WIDTH, one_page
from nvrun.diagnose.scan import Source
from nvrun.model import Finding, RankEnd, Severity

END = RankEnd(rank=12, host="gpu02", local_rank=4, pid=4711, code=-9, at=1.0)


def test_the_page_says_who_why_and_what_to_do() -> None:
    dmesg = Source("dmesg", ["Out of memory: Killed process 4711 (python3)"], host="gpu02")
    page = one_page(
        diagnose([dmesg], ends=(END,)),
        first=END,
        warnings_before=["gpu02:4711:1 [4] NCCL WARN something"],
        changed=["gpu02: 1 new out-of-memory kill"],
        logs="runs/x/logs",
    )
    lines = page.splitlines()
    assert lines[0] == "First to fail: rank 12 on gpu02 (local rank 4, pid 4711)"
    assert "signal 9 (SIGKILL)" in lines[1]
    assert lines[2].startswith("Cause (almost certain, 95%): on gpu02")
    assert "  | Out of memory: Killed process 4711 (python3)" in lines
    assert "Do" in lines
    assert "NCCL warned before" in lines
    assert "Changed since the preflight" in lines
    assert lines[-1] == "Logs: runs/x/logs"


def test_the_page_is_bounded_and_cannot_move_the_cursor() -> None:
    many = [
        Finding(
            code="x",
            severity=Severity.ERROR,
            message="m" * 900,
            evidence=tuple(f"\x1b[2J{'e' * 900}" for _ in range(50)),
            remedy="r " * 900,
            confidence=0.1,
        )
        for _ in range(100)
    ]
    page = one_page(many, first=END, warnings_before=["w"] * 99, changed=["c"] * 99, logs="l")
    assert len(page.splitlines()) <= LINES
    assert max(map(len, page.splitlines())) <= WIDTH
    assert "\x1b" not in page
    assert page.endswith("Logs: l")


def test_nothing_found_is_said() -> None:
    assert one_page([]) == "No known cause was found in the logs."


def test_a_traceback_is_shown_by_its_end() -> None:
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "/home/u/deep.py", line {i}, in f' for i in range(30)]
    lines += ["ZeroDivisionError: division by zero"]
    page = one_page(diagnose([Source("rank0", lines, rank=0)]))
    assert "  | ZeroDivisionError: division by zero" in page.splitlines()
