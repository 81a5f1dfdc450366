"""`python -m tests.fuzz [--examples N]`: many spoilt inputs of every kind, and the bombs at full size. By hand."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.bombs import BOMBS, Bomb, explode
from tests.fuzz.surfaces import LINES, SURFACES, Surface, spoilt, try_file, try_line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, metavar="N", help="inputs of each kind (2000)")
    options = parser.parse_args()
    many = settings(
        max_examples=options.examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for surface in SURFACES:
            failed += not told(surface.name, partial(_files, surface, folder, many))
        failed += not told("argument lists", many(given(words=LINES)(lambda words: try_line(words, folder))))
        for bomb in BOMBS:
            failed += not told(bomb.name, partial(_bomb, bomb, folder))
    return int(failed > 0)


def told(name: str, work: Callable[[], str | None]) -> bool:
    """Runs it and prints how it went."""
    began = time.monotonic()
    try:
        more = work()
    except Exception as error:  # noqa: BLE001 - each kind is told, whatever befell another
        print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"{name}: well, {time.monotonic() - began:.0f} s{more or ''}", flush=True)
    return True


def _files(surface: Surface, folder: Path, many: settings) -> None:
    @many
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        try_file(surface, data.draw(spoilt(surface)), folder)

    run()


def _bomb(bomb: Bomb, folder: Path) -> str:
    seconds, peak = explode(bomb, folder, bomb.megabytes)
    (folder / bomb.file).unlink()
    return f", {seconds:.1f} s, at most {peak >> 20} MiB"


if __name__ == "__main__":
    raise SystemExit(main())
