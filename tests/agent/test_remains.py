"""What is left of ended runs is removed, also by several at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nvrun.agent import remains


def test_hosts_that_share_a_folder_may_remove_it_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run.0"
    for number in range(200):
        (folder / f"logs{number}").mkdir(parents=True)
        (folder / f"logs{number}" / "rank0.out").write_text("x")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remains.remove, [str(folder)] * 4))
    assert not folder.exists()
