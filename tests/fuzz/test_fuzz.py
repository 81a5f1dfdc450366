"""Spoilt input of every kind is told in words; `python -m tests.fuzz` tries thousands."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.bombs import BOMBS, Bomb, explode
from tests.fuzz.surfaces import LINES, SURFACES, Surface, spoilt, try_file, try_line

few = settings(max_examples=12, deadline=None, database=None,
               suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
@few
@given(data=st.data())
def test_a_spoilt_file_is_told_in_words(surface: Surface, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try_file(surface, data.draw(spoilt(surface)), Path(folder))


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
def test_the_samples_are_good(surface: Surface, tmp_path: Path) -> None:
    """Else nothing but the first refusal would be tried."""
    for sample in surface.samples():
        try_file(surface, sample, tmp_path)


@few
@given(words=LINES)
def test_any_line_is_told_in_words(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try_line(words, Path(folder))


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name)
def test_a_bomb_costs_little(bomb: Bomb, tmp_path: Path) -> None:
    explode(bomb, tmp_path, bomb.megabytes // 20)
