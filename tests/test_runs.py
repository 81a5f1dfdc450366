"""The index of runs, and RUN on a command line."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvrun import runs
from nvrun.errors import UsageError
from nvrun.job import Job
from nvrun.mode import Mode
from nvrun.model import Host, RunResult
from nvrun.options import Options
from nvrun.torchrun import TorchrunArgs

JOB = Job(
    mode=Mode(kind="fleet", why="test"),
    hosts=(Host(name="a"), Host(name="b", user="u", port=2222)),
    hosts_from="--hosts",
    kinds=("local", "ssh"),
    args=TorchrunArgs(),
    options=Options(python="/opt/python", connect_timeout=3.0, grace=7.0),
    cwd="/",
    lost_after=300.0,
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def add(environ: dict[str, str], folder: Path, run_id: str) -> Path:
    path = folder / run_id
    path.mkdir(parents=True)
    assert runs.remember(JOB, run_id, path, 1.0, environ) == ""
    return path


def test_a_run_is_remembered_with_the_way_to_its_hosts(environ: dict[str, str], tmp_path: Path) -> None:
    add(environ, tmp_path, "20260101-000000-aaaa")
    (entry,) = runs.known(environ)
    again = runs.job_of(entry)
    assert (again.hosts, again.kinds) == (JOB.hosts, JOB.kinds)
    assert again.options == Options(python="/opt/python", connect_timeout=3.0, grace=7.0)
    assert runs.lives(entry.launcher) is True
    assert runs.lives(msgspec.structs.replace(entry.launcher, start=entry.launcher.start - 1)) is False, "pid reused"
    assert runs.lives(msgspec.structs.replace(entry.launcher, kernel="another boot")) is None


def test_a_run_is_named_by_id_prefix_path_and_latest(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no run yet"):
        runs.resolve("latest", environ)
    old = add(environ, tmp_path, "20260101-000000-aaaa")
    new = add(environ, tmp_path / "elsewhere", "20260102-000000-bbbb")
    assert runs.resolve("latest", environ).path == new
    assert runs.resolve("20260101", environ).path == old
    assert runs.resolve(old.name, environ).path == old
    found = runs.resolve(f"./{old.name}", environ)
    assert found.remembered is not None
    assert found.remembered.id == old.name
    with pytest.raises(UsageError, match=r"is the beginning of 2 runs: 20260102-000000-bbbb, 20260101-000000-aaaa$"):
        runs.resolve("2026", environ)
    for wrong in ("2027", "", "./nowhere", "\x1b[31m"):
        with pytest.raises(UsageError) as error:
            runs.resolve(wrong, environ)
        assert "\x1b" not in error.value.message
    entry = next(runs.known(environ))
    new.rmdir()
    assert runs.resolve("latest", environ).path == old
    with pytest.raises(UsageError, match=r"its folder .* is gone"):
        runs.resolve(new.name, environ)
    monkeypatch.setattr("socket.gethostname", lambda: "n2")
    with pytest.raises(UsageError, match=rf"its folder .* is not here; it was started on {entry.launcher.host}$"):
        runs.resolve(new.name, environ)


def test_a_sandbox_whose_kernel_has_no_boot_id_is_a_place_to_launch_from(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def without(path: Path, *args: Any, **more: Any) -> str:
        if path.name == "boot_id":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", without)
    add(environ, tmp_path, "20260101-000000-aaaa")
    (entry,) = runs.known(environ)
    assert runs.lives(entry.launcher) is True


def test_the_latest_is_first_that_of_the_folder_here(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvrun-runs/x").mkdir(parents=True)
    (tmp_path / "nvrun-runs/latest").symlink_to("x")
    assert runs.resolve("latest", environ).path == tmp_path / "nvrun-runs/x"
    add(environ, tmp_path / "another-job", "20260103-000000-cccc")
    assert runs.resolve("latest", environ).path == tmp_path / "nvrun-runs/x"


def test_a_broken_file_costs_only_itself(environ: dict[str, str], tmp_path: Path) -> None:
    add(environ, tmp_path, "20260101-000000-aaaa")
    folder = runs.index(environ)
    (folder / "20260103-000000-cccc.json").write_bytes(b"{")
    (folder / "20260104-000000-dddd.json").write_bytes((folder / "20260101-000000-aaaa.json").read_bytes())
    (folder / "notes.json").write_text("[]")
    assert [entry.id for entry in runs.known(environ)] == ["20260101-000000-aaaa"]


def test_the_index_is_bounded_and_survives_runs_at_once(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST", 20)
    names = [f"20260101-0000{number:02d}-aaaa" for number in range(40)]
    threads = [threading.Thread(target=add, args=(environ, tmp_path, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    add(environ, tmp_path, "20260101-000099-aaaa")
    assert [entry.id for entry in runs.known(environ)] == ["20260101-000099-aaaa", *reversed(names[21:])]


def test_a_state_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = runs.remember(JOB, "20260101-000000-aaaa", tmp_path, 1.0, {"XDG_STATE_HOME": str(tmp_path / "file")})
    assert said.startswith("this run is not in the index")


def test_what_a_run_wrote_is_read_back(tmp_path: Path) -> None:
    assert runs.result_of(tmp_path) is None
    assert runs.plan_of(tmp_path) is None
    assert runs.facts_of(tmp_path) == {}
    result = RunResult(run_id="x", ended_by="success", exit_code=0, started=1.0, seconds=2.0)
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(result))
    assert runs.result_of(tmp_path) == result
    for name, read in (("result", runs.result_of), ("plan", runs.plan_of), ("facts", runs.facts_of)):
        (tmp_path / f"{name}.json").write_text("{")
        with pytest.raises(UsageError, match=rf"{name}\.json: "):
            read(tmp_path)
