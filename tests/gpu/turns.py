"""A rung of the ladder whose windows are measured in turn with the others': `turns.py FOLDER ROW ROWS script.py ...`.

All rows of a ladder start at once, and each waits until it is its turn: for its set-up and warm-up, and then for one
window after the other, which its script begins with a barrier. So a round of windows takes seconds, where a round of
whole jobs takes minutes. FOLDER/turn names whose turn it is; a row that has ended is passed over.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

LONGEST = 120.0
"""Seconds that a row waits for its turn; then another one must have hung."""


class Turns:
    """The turns of one row; its rank 0 alone passes them on."""

    def __init__(self, folder: Path, row: str, rows: list[str]) -> None:
        self._folder, self._row, self._rows = folder, row, rows
        self._first = os.environ["RANK"] == "0"
        self._had = -1
        """Number of this row's last turn: rank 1 may look before rank 0 has passed it on."""

    def _now(self) -> tuple[int, str]:
        number, row = (self._folder / "turn").read_text().split()
        return int(number), row

    def wait(self) -> None:
        end = time.monotonic() + LONGEST
        while not (self._now()[1] == self._row and self._now()[0] > self._had):
            if time.monotonic() > end:
                sys.exit(f"{self._row}: no turn for {LONGEST:.0f} s, it is {self._now()[1]}'s")
            time.sleep(0.01)
        self._had = self._now()[0]

    def pass_on(self) -> None:
        if not self._first:
            return
        at = self._rows.index(self._row)
        later = [*self._rows[at + 1 :], *self._rows[: at + 1]]
        following = next((row for row in later if not (self._folder / f"{row}.ended").exists()), None)
        if following is not None:
            new = self._folder / f"{self._row}.new"
            new.write_text(f"{self._now()[0] + 1} {following}")
            new.rename(self._folder / "turn")

    def end(self) -> None:
        if self._first:
            (self._folder / f"{self._row}.ended").touch()
            if self._now()[1] == self._row:
                self.pass_on()


def main() -> None:
    folder, row, rows = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    turns = Turns(folder, row, rows)
    atexit.register(turns.end)
    sys.argv = sys.argv[4:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    barrier = dist.barrier

    def in_turn(*arguments: Any, **keywords: Any) -> Any:
        barrier(*arguments, **keywords)  # both ranks have done their window before the turn is passed on
        turns.pass_on()
        turns.wait()
        return barrier(*arguments, **keywords)

    turns.wait()
    dist.barrier = in_turn
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
