"""SECURITY.md promises nothing without a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()
PROMISES = TEXT[TEXT.index("## What it promises") :].split("\n\n")[1:-1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("promise", PROMISES, ids=lambda text: text.splitlines()[0].strip("*")[:40])
def test_a_promise_names_tests_that_exist(promise: str) -> None:
    assert promise.startswith("**")
    named = NAMED.findall(promise)
    assert named, "no test holds nvrun to it"
    assert len(named) == promise.count("::"), "a name that is none"
    for file, name in named:
        functions = ast.walk(ast.parse((ROOT / file).read_text()))
        assert name in [each.name for each in functions if isinstance(each, ast.FunctionDef)], f"{file}::{name}"


def test_all_of_it_was_read() -> None:
    assert len(PROMISES) == TEXT.count("\n**")
