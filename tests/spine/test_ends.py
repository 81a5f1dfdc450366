"""Whatever ends a run, nothing of it is left on any host, and nvrun says what it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spine.ends import ENDS, End, suffer


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.way}: {end.what}")
def test_nothing_is_left(end: End, place: Path, request: pytest.FixtureRequest) -> None:
    lab = request.getfixturevalue("slurm_lab" if end.way in ("srun", "sbatch") else "lab")
    outcome = suffer(lab, place, end)
    for words in end.words:
        assert words in outcome.stderr
    assert re.match(end.looked_back, outcome.looked_back), outcome.looked_back
    assert "Cause" not in outcome.looked_back
    if outcome.result is not None:
        assert outcome.result["ended_by"] == end.ended_by
        assert end.code in (None, outcome.result["exit_code"])
