"""A verdict as lines: worst first, folded, one line of cause and one of remedy."""

from __future__ import annotations

from nvrun.model import Finding, Severity, Skipped, Verdict
from nvrun.report import findings


def found(code: str, severity: Severity, host: str | None, message: str = "it is broken", subject: str = "") -> Finding:
    return Finding(code=code, severity=severity, host=host, message=message, remedy="mend it", subject=subject)


def text(verdict: Verdict, **options: object) -> list[str]:
    return [line.text for line in findings.lines(verdict, **options)]  # type: ignore[arg-type]


def test_identical_findings_of_many_hosts_are_one() -> None:
    verdict = Verdict(findings=tuple(found("x", Severity.ERROR, f"gpu{n:03}") for n in range(1, 18)))
    assert text(verdict) == [
        "error   17 hosts: gpu[001-017]: it is broken [x]",
        "        -> mend it",
        "1 error",
    ]


def test_worst_comes_first_and_information_is_left_out() -> None:
    verdict = Verdict(
        findings=(
            found("i", Severity.INFO, "a"),
            found("w", Severity.WARNING, "a"),
            found("f", Severity.FATAL, None),
            found("e", Severity.ERROR, "b"),
        )
    )
    heads = [line.style for line in findings.lines(verdict) if line.style not in ("remedy", "total")]
    assert heads == ["fatal", "error", "warning"]
    assert text(verdict)[-1] == "1 fatal, 1 error, 1 warning"
    assert any("[i]" in line for line in text(verdict, least=Severity.INFO))
    assert text(verdict, least=Severity.INFO)[-1] == "1 fatal, 1 error, 1 warning, 1 note"


def test_where_only_information_is_shown_something_was_found() -> None:
    verdict = Verdict(findings=(found("i", Severity.INFO, "a"),))
    assert text(verdict) == ["nothing found"]
    assert text(verdict, least=Severity.INFO)[-1] == "1 note"


def test_different_words_are_not_folded() -> None:
    verdict = Verdict(findings=(found("x", Severity.ERROR, "a", "1 bad"), found("x", Severity.ERROR, "b", "2 bad")))
    assert len(text(verdict)) == 5


def test_words_that_differ_in_the_hosts_own_name_are_one() -> None:
    """A list of 64 hosts with one mistake in it is told once; what names another host, or only looks like the name, is
    not the same."""
    names = [f"gpu{n:03}" for n in range(1, 5)]
    each = tuple(
        Finding(
            code="x", severity=Severity.ERROR, host=name, message=f"{name}: a fault, eth9 leaves {name} nothing",
            remedy=f"ssh {name} true",
        )
        for name in names
    )  # fmt: skip
    assert text(Verdict(findings=each)) == [
        "error   4 hosts: gpu[001-004]: a fault, eth9 leaves HOST nothing [x]",
        "        -> ssh HOST true",
        "1 error",
    ]
    assert text(Verdict(findings=each[:1]))[0] == f"error   gpu001: {each[0].message} [x]"
    about_another = [found("x", Severity.ERROR, name, "gpu001 is not heard") for name in names[:2]]
    assert text(Verdict(findings=tuple(about_another)))[0].startswith("error   2 hosts: gpu[001-002]: gpu001 is")
    longer = [found("x", Severity.ERROR, name, f"{name}.lan is not heard") for name in names[:2]]
    assert text(Verdict(findings=tuple(longer)))[-1] == "2 errors"
    assert (
        text(
            Verdict(findings=(found("x", Severity.ERROR, "a", "a fault"), found("x", Severity.ERROR, "b", "a fault")))
        )[0]
        == "error   2 hosts: a,b: a fault [x]"
    )


def test_findings_about_the_job_stay_apart() -> None:
    verdict = Verdict(findings=(found("x", Severity.ERROR, None), found("x", Severity.ERROR, None)))
    assert text(verdict)[-1] == "2 errors"


def test_subject_is_named_once() -> None:
    named = found("x", Severity.ERROR, "a", "GPU 3 is broken", subject="GPU 3")
    assert text(Verdict(findings=(named,)))[0] == "error   a: GPU 3 is broken [x]"
    other = found("x", Severity.ERROR, "a", subject="GPU 3")
    assert text(Verdict(findings=(other,)))[0] == "error   a: GPU 3: it is broken [x]"


def test_what_was_not_judged_is_shown_by_reason() -> None:
    skipped = tuple(Skipped(code=code, host=host, reason="xids: root only") for code in ("x", "y") for host in "ab")
    assert text(Verdict(skipped=skipped)) == [
        "skipped 2 hosts: a,b: x, y: xids: root only",
        "nothing found; 2 checks could not judge every host",
    ]


def test_control_characters_of_a_host_do_not_reach_the_terminal() -> None:
    verdict = Verdict(findings=(found("x", Severity.ERROR, "a", "\x1b[2Jgone\r\n\x9b1m"),))
    assert all(char.isprintable() for line in text(verdict) for char in line)


def test_a_flood_is_cut_and_says_so() -> None:
    verdict = Verdict(findings=tuple(found("x", Severity.ERROR, "a", f"{n} bad") for n in range(50)))
    lines = text(verdict, most=3)
    assert len(lines) == 3 * 2 + 2
    assert lines[-2].startswith("and 47 more")


def test_waived_findings_are_marked() -> None:
    one = found("x", Severity.ERROR, "a")
    assert "(waived)" in text(Verdict(findings=(one,)), waived=[one])[0]
