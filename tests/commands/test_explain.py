"""Every finding that nvrun can have is explained."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrun.cli import main
from nvrun.commands.explain import page
from nvrun.diagnose.scan import RULES
from nvrun.errors import UsageError

ROOT = Path(__file__).parents[2]
FINDERS = {"found", "_grew"}
"""Functions that make a finding: of its code, or of a setting or host and its code."""
NO_FINDING = {"Skipped", "Refused"}
"""What takes a `code` that is no finding's: a check's name."""


def literals(node: ast.expr) -> Iterator[str]:
    """Texts that an expression can be, of those written in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)


def codes_of(tree: ast.Module) -> Iterator[str]:
    """Codes of findings as they are written in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            defaults = node.args.kw_defaults
            for argument, default in zip(node.args.kwonlyargs, defaults, strict=True):
                if argument.arg == "code" and default is not None:
                    yield from literals(default)
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in NO_FINDING:
            yield from (code for key in node.keywords if key.arg == "code" for code in literals(key.value))
        if isinstance(node.func, ast.Name) and name in FINDERS:
            yield from (code for argument in node.args[:2] for code in literals(argument))


@functools.cache
def written() -> frozenset[str]:
    """The codes that stand in nvrun's modules and hooks."""
    paths = (path for top in ("nvrun", "hooks") for path in (ROOT / top).rglob("*.py"))
    return frozenset(code for path in paths for code in codes_of(ast.parse(path.read_text())))


COMPUTED = ("xid-79", "xid-9999", "sxid-12028", "rank-cpus-differ", "rank-memory-differs", "rank-gpu-differs",
            "node-command-differs", "rank-killed", "segfault", "taken-down", "host-no-folder", "ports-taken",
            "nvlink-errors-grew", "ecc-uncorrected-grew", "port-down", "gpu-lost")  # fmt: skip
"""Codes that are put together, or stand in a table."""


def test_codes_are_found_where_they_are_written() -> None:
    text = "found(setting, 'a' if x else 'b', ERROR, 'm')\nfound('f', ERROR, 'm')\nFinding(code='c')\n" \
           "CODE.found('words')\nSkipped(code='d')\ndef warn(m, *, code='e'): ..."  # fmt: skip
    assert set(codes_of(ast.parse(text))) == {"a", "b", "c", "e", "f"}
    assert {"nccl-value-misread", "slurm-het-job", "node-not-heard", "flight-rank-missing"} <= written()
    assert len(written()) > 60


def test_every_finding_is_explained() -> None:
    pages = {code: page(code, {}) for code in sorted({*written(), *COMPUTED})}
    assert [code for code, text in pages.items() if not text.startswith(f"{code}: ") or "read:" not in text] == []


def test_what_only_a_log_says_is_left_general() -> None:
    pages = [page(rule.code, {}) for rule in RULES]
    assert [text for text in pages if re.search(r"{\w+}", text)] == []
    assert "A network card is failing: WHAT\n" in page("nic-failing", {})
    assert "The GPU's memory was used up\n" in page("gpu-out-of-memory", {})


def test_the_nearest_is_named() -> None:
    with pytest.raises(UsageError) as raised:
        page("nccl-value-misred", {})
    assert "nccl-value-misread" in raised.value.hint


@pytest.mark.parametrize("code", ["more-ranks-than-gpus", "nccl-value-misread", "nofile-low"])
def test_what_was_not_found_may_be_waived(tmp_path: Path, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A job script names what it can live with, whether it is there today or not."""
    facts = ROOT / "tests" / "data" / "facts" / "h200x2.json"
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert main(["check", "--from", str(facts), "--chdir", "/", "--waive", code], environ) == 0, capsys.readouterr()
    assert main(["check", "--from", str(facts), "--waive", f"{code}s"], environ) == 2
    assert code in capsys.readouterr().err
