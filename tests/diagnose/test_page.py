"""The page of a failed job."""

from __future__ import annotations

import pytest

from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.page import LINES, WIDTH, one_page
from nvrun.diagnose.python_error import START, shortened
from nvrun.diagnose.scan import Source
from nvrun.facts import HostFacts, Software
from nvrun.model import Finding, RankEnd, RunResult, Severity
from nvrun.report.text import result_lines

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


def test_what_the_page_says_is_said_once() -> None:
    message = "srun's step on all 2 nodes ended: " + "task 1: Killed | " * 9 + "ended with 137"
    finding = Finding(code="step-ended", severity=Severity.ERROR, message=message)
    result = RunResult(run_id="r", ended_by="lost", exit_code=69, started=1.0, seconds=2.0, message=message,
                       findings=(finding,))  # fmt: skip
    said = "\n".join(result_lines(result, "runs/r", one_page([finding], first=None, logs="runs/r/logs")))
    assert said.count("ended with 137") == 1
    assert "\n".join(result_lines(result, "runs/r", "")).count("ended with 137") == 2, "no page: the finding, the end"


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


FRAME = ['  File "/home/u/t.py", line 7, in step', "    return f(", "           ^^"]


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 30])
def test_a_quoted_traceback_begins_where_it_begins(prefix: str, frames: int) -> None:
    """However its length falls on what is kept and shown, and although other ranks raise the same."""
    lines = [f"{prefix}{line}" for line in (f"{START}:", *FRAME * frames, "ZeroDivisionError: division by zero")]
    others = [line.replace("line 7", "line 8") for line in lines]
    findings = diagnose(
        [Source("rank1", lines, "a", 1), Source("rank2", others, "a", 2), Source("rank3", others, "a", 3)]
    )
    assert len(findings) == 1
    quoted = [line[4:] for line in one_page(findings).splitlines() if line.startswith("  | ")]
    for shown in (list(findings[0].evidence), quoted):
        assert shown[0] == lines[0]
        assert shown[-1] == lines[-1]
        after_gap = shown[2] if shown[1] == f"{prefix}  ..." else shown[1]
        assert after_gap == lines[1], "a whole frame"
        assert (shown[1] == f"{prefix}  ...") == (len(lines) > len(shown))


def test_last_words_begin_with_a_whole_frame() -> None:
    assert shortened([*FRAME * 3, "E: x"], 6) == (*FRAME, "E: x")
    assert shortened(["old", f"{START}:", *FRAME, "E: x"], 6) == (f"{START}:", *FRAME, "E: x")
    assert shortened(["a", "  b", "c"], 2) == ("  b", "c"), "lines of something else stay as they are"
    assert shortened(["   ^^^", "E: x"], 6) == ("E: x",)


@pytest.mark.parametrize("code", [-9, -11, -7, 3])
def test_what_the_page_begins_with_is_not_its_cause_again(code: int) -> None:
    end = RankEnd(rank=1, host="a", local_rank=1, pid=7, code=code, at=1.0)
    (finding,) = findings = diagnose([], ends=(end,))
    page = one_page(findings, first=end)
    said = finding.message.rpartition(": ")[2]
    assert " ".join(page.split()).count(said) == 1
    assert "Cause" not in page
    assert "%)" in page.splitlines()[1] + page.splitlines()[2], "how certain it is, stays"
    assert "line, first in" not in page
    assert "\nDo\n" in page


@pytest.mark.parametrize("code", [1, 2, 3, 127])
def test_a_rank_that_wrote_nothing_is_not_sent_to_its_stderr(code: int) -> None:
    silent = RankEnd(rank=1, host="a", local_rank=1, pid=7, code=code, at=1.0)
    page = one_page(diagnose([], ends=(silent,)), first=silent)
    assert f"exit code {code}: it ended itself with that code, and wrote nothing to stderr" in page
    assert "traceback" not in page
    told = RankEnd(rank=1, host="a", local_rank=1, pid=7, code=code, at=1.0, tail=("no config",))
    assert "wrote nothing" not in one_page(diagnose([], ends=(told,)), first=told)


def test_a_remedy_names_the_host() -> None:
    finding = Finding(
        code="x", severity=Severity.ERROR, message="m", host="gpu7", remedy="nvrun check --hosts HOST; ssh U@HOST"
    )
    assert "nvrun check --hosts gpu7; ssh U@gpu7" in one_page([finding])


def test_a_missing_module_is_missing_for_an_interpreter() -> None:
    lines = [f"{START}:", '  File "/t.py", line 1, in <module>', "ModuleNotFoundError: No module named 'apex'"]

    def told(**pythons: str) -> str:
        facts = {
            host: HostFacts(host=host, software=Software(python="3.12.1", executable=path))
            for host, path in pythons.items()
        }
        (finding,) = diagnose([Source("rank0.err", lines, "a", 0)], facts=facts)
        return f"{finding.message} -> {finding.remedy}"

    assert "The module 'apex' is not installed for the Python that ran: /v/bin/python (Python 3.12.1) ->" in told(
        a="/v/bin/python"
    )
    assert "/v/bin/python -m pip install" in told(a="/v/bin/python")
    assert "environment you meant" not in told(a="/v/bin/python", b="/v/bin/python") + told()
    differs = told(a="/v/bin/python", b="/usr/bin/python3")
    assert "; on b it is /usr/bin/python3 (Python 3.12.1)" in differs
    assert "environment you meant" in differs
