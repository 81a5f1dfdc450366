"""`nvrun explain CODE`: what a finding means, where it comes from, what to do."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

import nvrun.checks.grown
import nvrun.diagnose.meanings
import nvrun.fleet.crew
import nvrun.hang.judge
import nvrun.hooks.around
import nvrun.hosts.meanings
import nvrun.launch
import nvrun.nccl.meanings
import nvrun.placement
import nvrun.readback
import nvrun.traces.advice  # noqa: F401 - these are imported for the codes that they declare
from nvrun import checks
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.diagnose.rule import Rule
from nvrun.diagnose.scan import RULES
from nvrun.diagnose.xid import XIDS, Action, Xid
from nvrun.errors import UsageError
from nvrun.hooks.load import listing
from nvrun.meanings import MEANINGS, Meaning
from nvrun.report.document import document
from nvrun.torchrun import nearest

_UNKNOWN_XID = Xid(0, "not in the table of known codes", Action.RESET)


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if not invocation.words:
        raise UsageError("nvrun explain: which code?", hint="it stands in brackets behind a finding: [port-taken]")
    pages = {code: page(code, environ) for code in invocation.words}
    if invocation.options.json:
        return Said(document(codes=[{"code": code, "text": text} for code, text in pages.items()]))
    return Said("\n".join(pages.values()))


def codes(environ: Mapping[str, str]) -> set[str]:
    """All that there is a page of, but for Xids beyond the table."""
    listing(environ)  # hooks declare what they find as they are read
    return {
        *(each.code for each in checks.codes()),
        *(rule.code for rule in RULES),
        *MEANINGS,
        *(f"xid-{number}" for number in XIDS),
    }


def page(code: str, environ: Mapping[str, str]) -> str:
    """All that is known of a code. UsageError with the nearest where there is none."""
    preflight = {each.code for each in checks.codes()}
    rules: dict[str, list[Rule]] = {}
    for rule in RULES:
        rules.setdefault(rule.code, []).append(rule)
    if code in preflight:
        return checks.explain(code)
    if code in rules:
        return _of_rules(code, rules[code])
    if number := re.fullmatch(r"xid-(\d+)", code):
        return _of_xid(code, XIDS.get(int(number[1]), _UNKNOWN_XID))
    if re.fullmatch(r"sxid-\d+", code):
        return _of_meaning(code, MEANINGS["sxid"])
    known = codes(environ) if code not in MEANINGS else ()
    if code in MEANINGS:
        return _of_meaning(code, MEANINGS[code])
    near = nearest(code, known)
    raise UsageError(
        f"no finding is called {code if code.isprintable() else repr(code)}, or nothing more is known of it",
        hint=f"did you mean {near}?" if near else "nvrun check --list shows those of the preflight",
    )


def _of_rules(code: str, rules: list[Rule]) -> str:
    """A diagnosis: each rule that leads to this code."""
    lines = [f"{code}: found in logs of a failed job", ""]
    for rule in rules:
        lines += _field("means", _general(rule.message))
        lines += _field("read", "a line with " + " or ".join(f"“{anchor}”" for anchor in rule.anchors))
        lines += _field(
            "how near", rule.stage.name.lower() + ("" if rule.stage.is_cause else ", not a cause by itself")
        )
        lines += _field("confidence", f"{rule.confidence:.0%}")
        lines += [*_field("remedy", _general(rule.remedy)), ""]
    return "\n".join(lines)


def _general(text: str) -> str:
    """Without the line that fills its gaps: `{port}` is PORT, and what a line adds to a word is left out."""
    return re.sub(r"\{(\w+)\}", lambda gap: gap[1].upper(), re.sub(r"(?<=\w)\{\w+\}", "", text))


def _of_meaning(code: str, meaning: Meaning) -> str:
    lines = [f"{code}: {meaning.summary}", ""]
    lines += _field("read", meaning.read)
    lines += _field("why it matters", meaning.why)
    lines += _field("remedy", meaning.remedy)
    return "\n".join([*lines, *_field("source", meaning.source), ""])


def _of_xid(code: str, xid: Xid) -> str:
    lines = [f"{code}: {xid.meaning}", ""]
    lines += _field("read", f"the kernel's log: NVRM: Xid (PCI:...): {code.removeprefix('xid-')}")
    lines += _field("remedy", _general(xid.action.value))
    return "\n".join([*lines, ""])


def _field(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=f"{title + ':':<16}", subsequent_indent=" " * 16) if text else []
