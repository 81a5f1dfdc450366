"""The run's folder as a host sees it: shared where a token shows it, else private and nobody else's."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvrun.agent import folder


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This host's $TMPDIR."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def prepared(run: Path) -> folder.Folder:
    return folder.prepare(str(run), "token", "gpu01", "20261129-151203-k3x9", 1)


def run_folder(tmp_path: Path, token: str | None) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    if token is not None:
        (run / folder.TOKEN).write_text(token)
    return run


def test_shared(tmp_path: Path, temp: Path) -> None:
    run = run_folder(tmp_path, "token")
    found = prepared(run)
    assert found == (str(run / "logs/gpu01"), True)
    assert list(temp.iterdir()) == []
    folder.remove(found)
    assert Path(found.path).is_dir(), "a shared folder is the launcher's"


@pytest.mark.parametrize("token", [None, "another run's", ""])
def test_private(token: str | None, tmp_path: Path, temp: Path) -> None:
    found = prepared(run_folder(tmp_path, token))
    assert found == (str(temp / f"nvrun-{os.getuid()}/20261129-151203-k3x9.1"), False)
    for path in (Path(found.path), Path(found.path).parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    folder.remove(found)
    assert list(temp.iterdir()) == []


def test_a_token_by_way_of_a_link_does_not_count(tmp_path: Path, temp: Path) -> None:
    run = run_folder(tmp_path, None)
    (tmp_path / "secret").write_text("token")
    (run / folder.TOKEN).symlink_to(tmp_path / "secret")
    assert not prepared(run).shared


def test_another_runs_folder_stays(tmp_path: Path, temp: Path) -> None:
    found = prepared(run_folder(tmp_path, None))
    (Path(found.path).parent / "other").mkdir()
    folder.remove(found)
    assert [path.name for path in (temp / f"nvrun-{os.getuid()}").iterdir()] == ["other"]


def test_who_laid_something_there_before(tmp_path: Path, temp: Path) -> None:
    run = run_folder(tmp_path, None)
    mine = temp / f"nvrun-{os.getuid()}"
    (temp / "elsewhere").mkdir(mode=0o700)
    mine.symlink_to("elsewhere")
    with pytest.raises(OSError, match="not a folder of this user's alone"):
        prepared(run)
    mine.unlink()
    mine.mkdir()
    mine.chmod(0o755)
    with pytest.raises(OSError, match="mode 755"):
        prepared(run)
    mine.chmod(0o700)
    (mine / "20261129-151203-k3x9.1").symlink_to(temp / "elsewhere")
    with pytest.raises(FileExistsError):
        prepared(run)
    assert list((temp / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives the folder to another user")
def test_another_users_folder(tmp_path: Path, temp: Path) -> None:
    mine = temp / "nvrun-0"
    mine.mkdir(mode=0o700)
    os.chown(mine, 4711, 4711)
    with pytest.raises(OSError, match="owner 4711"):
        prepared(run_folder(tmp_path, None))


def test_only_regular_files_are_brought_back(tmp_path: Path) -> None:
    (tmp_path / "torchrun/attempt_0").mkdir(parents=True)
    (tmp_path / "torchrun/attempt_0/error.json").write_text("{}")
    (tmp_path / "rank0.out").write_text("out")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    found = sorted(folder.files(folder.Folder(str(tmp_path), False)))
    assert [(name, why) for name, _, why in found] == [("rank0.out", ""), ("torchrun/attempt_0/error.json", "")]


def test_runs_that_come_and_go_do_not_take_each_others_parent_away(tmp_path: Path, temp: Path) -> None:
    def come_and_go(number: int) -> None:
        for again in range(100):
            folder.remove(folder.prepare(str(tmp_path), "token", "gpu01", f"run{number}-{again}", 0))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(come_and_go, range(4))) == [None] * 4
    assert list(temp.iterdir()) == []
