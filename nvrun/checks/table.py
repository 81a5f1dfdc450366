"""What the declared codes and checks say of themselves: `nvrun check --list` and `nvrun explain CODE`."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from nvrun.checks.active import ACTIVE
from nvrun.checks.check import CHECKS
from nvrun.checks.code import CODES, Code
from nvrun.errors import UsageError
from nvrun.torchrun import nearest

RECORDED = "from recorded facts only"
"""Mark of a rule that never ran on the hardware it is about."""


class Row(NamedTuple):
    """One line of `nvrun check --list`."""

    check: str
    family: str
    what: str
    """What holds where nothing is found."""
    codes: str
    note: str


def codes() -> tuple[Code, ...]:
    """All finding codes of the preflight."""
    return tuple(CODES.values())


def rows() -> tuple[Row, ...]:
    """All checks of facts in the order in which they run, then the tests between hosts."""
    return (*_of_facts(), *_between_hosts())


def _between_hosts() -> tuple[Row, ...]:
    return tuple(
        Row(
            check=test.name,
            family="active",
            what=test.what,
            codes=", ".join(f"{code.code} ({severity_of(code)})" for code in test.codes),
            note=test.how if all(code.real for code in test.codes) else f"{test.how}; {RECORDED}",
        )
        for test in ACTIVE
    )


def _of_facts() -> tuple[Row, ...]:
    return tuple(
        Row(
            check=check.name,
            family=check.family,
            what=check.summary,
            codes=", ".join(f"{code.code} ({severity_of(code)})" for code in check.codes),
            note="" if all(code.real for code in check.codes) else RECORDED,
        )
        for check in CHECKS
    )


def severity_of(code: Code) -> str:
    """`error`, or `fatal, by the plan`."""
    return code.severity.label + (", by the plan" if code.depends else "")


def explain(name: str) -> str:
    """A page on one code. Raises UsageError for an unknown one, with the nearest."""
    code = CODES.get(name)
    if code is None:
        near = nearest(name, CODES)
        raise UsageError(
            f"no finding is called {name}", hint=f"did you mean {near}?" if near else "nvrun check --list shows all"
        )
    checks = [check.name for check in CHECKS if code in check.codes]
    checks += [f"{test.name} ({test.how})" for test in ACTIVE if code in test.codes]
    fields = (
        ("severity", code.severity.label + (f"; {code.depends}" if code.depends else "")),
        ("read", code.read),
        ("why it matters", code.why),
        ("remedy", code.remedy),
        ("source", code.source),
        ("check", ", ".join(checks)),
        ("note", "" if code.real else RECORDED),
    )
    lines = [f"{code.code}: {code.summary}", ""]
    for title, text in fields:
        if text:
            lines += textwrap.wrap(
                text,
                width=100,
                initial_indent=f"{title + ':':<16}",
                subsequent_indent=" " * 16,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines) + "\n"
