"""The run's folder on the launcher, and that nothing a host says leads out of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun import rundir
from nvrun.errors import NvrunError
from nvrun.model import RunResult

RUN = "20261129-151203-k3x9"


@pytest.fixture
def folder(tmp_path: Path) -> rundir.RunFolder:
    return rundir.RunFolder(RUN, tmp_path / "nvrun-runs")


def test_a_folder_of_somebody_elses_that_is_called_latest_stays(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    rundir.RunFolder(RUN, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", RUN, "latest"]
    assert not list((tmp_path / "latest").iterdir())


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_hosts_name_is_one_plain_component(name: str) -> None:
    found = rundir.file_name(name)
    assert re.fullmatch(r"[A-Za-z0-9._%-]+", found)
    assert found.strip(".")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_different_hosts_have_different_folders(one: str, other: str) -> None:
    assert (rundir.file_name(one) == rundir.file_name(other)) == (one == other)


@pytest.mark.parametrize(("host", "name"), [("gpu01.example", "gpu01.example"), ("..", "%2e%2e"), ("a/b", "a%2fb")])
def test_names(host: str, name: str) -> None:
    assert rundir.file_name(host) == name


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = {rundir.new_run_id(1796000000.0) for _ in range(50)}
    assert len(ids) > 45
    assert all(re.fullmatch(r"20261129-\d{6}-[a-z2-9]{4}", run) or run.startswith("2026") for run in ids)


def test_what_stands_in_it(folder: rundir.RunFolder) -> None:
    parent = folder.path.parent
    assert (parent / ".gitignore").read_text() == "*\n"
    assert (parent / "latest").readlink() == Path(RUN)
    later = rundir.RunFolder("20261129-151204-aaaa", parent)
    assert (parent / "latest").resolve() == later.path
    assert stat.S_IMODE((folder.path / ".token").stat().st_mode) == 0o600


def test_what_the_user_put_there_stays(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pt\n")
    rundir.RunFolder(RUN, tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "*.pt\n"


def test_files_from_a_host(folder: rundir.RunFolder) -> None:
    for relative in ("rank0.out", "torchrun/attempt_0/0/error.json"):
        folder.begin_file(0, "gpu01", relative)
        folder.append(0, b"one ")
        folder.append(0, b"two")
    folder.end_file(0)
    assert (folder.logs("gpu01") / "torchrun/attempt_0/0/error.json").read_bytes() == b"one two"


@pytest.mark.parametrize(
    "relative", ["../../../evil", "/etc/evil", "a/../../../../evil", "..", "./.", "logs/..%2f/evil"]
)
def test_no_path_leads_out(relative: str, folder: rundir.RunFolder, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if folder.path not in path.parents}
    folder.begin_file(0, "../../host", relative)
    folder.append(0, b"x")
    folder.end_file(0)
    assert {path for path in tmp_path.rglob("*") if folder.path not in path.parents} == before


def test_bytes_of_no_file_are_dropped(folder: rundir.RunFolder) -> None:
    folder.append(3, b"x")
    assert [path.name for path in folder.path.rglob("*") if path.is_file()] == [".token"]


def test_a_full_disk_costs_the_logs_of_a_host_not_the_run(folder: rundir.RunFolder) -> None:
    """As in any launcher's /dev/full; another host's file, on a disk with room, is whole."""
    folder.logs("gpu01").mkdir()
    (folder.logs("gpu01") / "rank0.out").symlink_to("/dev/full")
    folder.begin_file(0, "gpu01", "rank0.out")
    folder.begin_file(1, "gpu02", "rank1.out")
    for host in (0, 1, 0):
        folder.append(host, b"epoch")
    folder.end_file(0)
    folder.end_file(1)
    assert list(folder.unfetched) == [0]
    assert "No space left" in folder.unfetched[0]
    assert (folder.logs("gpu02") / "rank1.out").read_bytes() == b"epoch"


def test_a_folder_that_was_removed(folder: rundir.RunFolder) -> None:
    shutil.rmtree(folder.path.parent)
    folder.path.parent.write_text("in the way, also for root")
    folder.begin_file(0, "gpu01", "rank0.out")
    folder.append(0, b"epoch")
    assert list(folder.unfetched) == [0]
    assert "result.json" in folder.finish(
        RunResult(run_id=RUN, ended_by="rank", exit_code=37, started=1.0, seconds=2.0)
    )
    with pytest.raises(NvrunError, match=r"plan\.json"):
        folder.write("plan.json", b"{}")


def test_result(folder: rundir.RunFolder) -> None:
    folder.finish(RunResult(run_id=RUN, ended_by="success", exit_code=0, started=1.0, seconds=2.0))
    written = folder.path / "result.json"
    assert json.loads(written.read_text())["ended_by"] == "success"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert not (folder.path / ".token").exists()


def test_where_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert rundir.create(RUN, None, {}).path == tmp_path / "here/nvrun-runs" / RUN
    assert rundir.create(RUN, "../there", {}).path.resolve() == tmp_path / "there" / RUN


def test_where_it_goes_when_that_is_not_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvrun-runs").write_text("in the way, also for root")
    monkeypatch.chdir(tmp_path)
    assert rundir.create(RUN, None, {"XDG_STATE_HOME": str(tmp_path / "s")}).path == tmp_path / "s/nvrun/runs" / RUN
    home = tmp_path / "home"
    assert rundir.create(RUN, None, {"HOME": str(home)}).path == home / ".local/state/nvrun/runs" / RUN
    with pytest.raises(NvrunError, match="nvrun-runs") as raised:
        rundir.create(RUN, str(tmp_path / "nvrun-runs"), {})
    assert "--run-dir" in raised.value.hint
    assert os.listdir(tmp_path / "s/nvrun/runs")  # noqa: PTH208


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives the folder to another user")
def test_what_a_stranger_laid_in_tmp_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is one where anybody may write, and somebody was there first."""
    tmp_path.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    environ = {"XDG_STATE_HOME": str(tmp_path / "mine" / "state")}
    trap = tmp_path / "nvrun-runs"
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    (trap / ".gitignore").symlink_to(tmp_path / "victim")
    for owner in (4711, 0):  # his, and one of this user's that he may write to
        os.chown(trap, owner, owner)
        assert rundir.create(f"{RUN[:-1]}{owner % 10}", None, environ).path.parent == tmp_path / "mine/state/nvrun/runs"
    shutil.rmtree(trap)
    trap.symlink_to(tmp_path / "mine")
    assert rundir.create(f"{RUN[:-1]}x", None, environ).path.parent == tmp_path / "mine/state/nvrun/runs"
    trap.unlink()
    assert rundir.create(RUN, None, environ, "tune").path.parent == trap / "tune"
    assert stat.S_IMODE(trap.stat().st_mode) == 0o700
    assert not (tmp_path / "victim").exists()
