"""`nvrun bundle`: what is in the archive, and what must not be."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from pathlib import Path

import pytest

from nvrun import packed
from nvrun.agent.folder import TOKEN
from nvrun.cli import main
from tests.report import made

SECRETS = ("hf_abcdefghijklmnop", "from-my-shell", "outside-of-the-run", "made-for-one-run")
"""The first is HF_TOKEN in the plan that `made` writes."""


def bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> tuple[int, str, str]:
    code = main(["bundle", *words], {"HOME": str(tmp_path), "WANDB_API_KEY": "from-my-shell"})
    return code, *capsys.readouterr()


def members(archive: Path) -> dict[str, bytes]:
    """Name without the top folder -> content; every member is a plain file of mode 0600."""
    with tarfile.open(archive) as tar:
        found = tar.getmembers()
        assert all(member.isreg() and member.mode == 0o600 for member in found)
        tops = {member.name.partition("/")[0] for member in found}
        assert tops == {archive.name.removesuffix(".tar.gz")}
        return {member.name.partition("/")[2]: tar.extractfile(member).read() for member in found}  # type: ignore[union-attr]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A failed run's folder with everything in it that a bundle has to deal with."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "20261129-151203-k3x9"
    plan = made.write(folder)
    logs = folder / "logs" / plan.hosts[1].host.name
    (logs / "rank13.err").write_text(
        "hello from-my-shell\nTraceback (most recent call last):\n"
        '  File "/job/train.py", line 3, in <module>\nValueError: hf_abcdefghijklmnop is refused\n'
    )
    (logs / "flight_13").write_bytes(b"\x80\x04\0from-my-shell\0")
    with gzip.open(logs / "rank13.log.gz", "wb") as file:
        file.write(b"packed from-my-shell\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("outside-of-the-run")
    (logs / "link").symlink_to(outside / "key")
    (folder / "logs" / "host").symlink_to(outside)
    os.mkfifo(logs / "pipe")
    (folder / TOKEN).write_text("made-for-one-run")
    (folder / "report.html").write_text("<p>")
    return folder


def test_all_of_a_run_but_no_secret_and_nothing_from_outside(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = bundle(capsys, tmp_path, str(run))
    assert code == 0
    archive = tmp_path / "nvrun-20261129-151203-k3x9.tar.gz"
    assert out.startswith(f"{archive}: ")
    assert archive.stat().st_mode & 0o777 == 0o600
    found = members(archive)
    there = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and not path.is_symlink()}
    assert found.keys() == there - {TOKEN, "report.html"} | {"failure.txt", "findings.json", "bundle.json"}
    logs = next(name.rpartition("/")[0] for name in found if name.endswith("rank13.err"))
    for name, data in found.items():
        data = gzip.decompress(data) if name.endswith(".gz") else data
        assert not [secret for secret in SECRETS if secret.encode() in data], name
    assert found[f"{logs}/flight_13"] == b"\x80\x04\0*************\0"
    assert gzip.decompress(found[f"{logs}/rank13.log.gz"]) == b"packed ***\n"
    assert b"ValueError: *** is refused" in found["failure.txt"]
    assert json.loads(found["findings.json"])["findings"][0]["code"] == "python-exception"
    assert json.loads(found["plan.json"])["run_id"] == run.name, "still the record that it was"
    notes = json.loads(found["bundle.json"])["notes"]
    assert f"{logs}/link: left out: a link" in notes
    assert "logs/host: left out: a link" in notes
    assert f"{logs}/pipe: left out: no regular file" in notes
    assert str(archive) == json.loads(bundle(capsys, tmp_path, str(run), "--json")[1])["path"], (
        "made anew, over the old"
    )


def test_long_files_are_cut_and_all_together_bounded(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = run / "logs" / "n01" / "rank0.out"
    log.parent.mkdir(exist_ok=True)
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    bomb = run / "logs" / "n01" / "trace.json.gz"
    bomb.write_bytes(gzip.compress(b" " * 3_000_000))
    (run / "logs" / "n01" / "dump").write_bytes(b"\0" * 3_000_000)
    monkeypatch.setattr(packed, "END", 10_000)
    monkeypatch.setattr(packed, "WHOLE", 2_000_000)
    code, out, _ = bundle(capsys, tmp_path, str(run), "--output", "small.tar.gz")
    assert code == 0
    found = members(tmp_path / "small.tar.gz")
    cut = found["logs/n01/rank0.out"].decode()
    assert cut.startswith("line 0\n")
    assert cut.endswith("line 99999\n")
    assert len(cut) < 21_000
    size = log.stat().st_size
    assert f"of its {size} bytes are left out in the middle" in out
    left = int(cut.partition("[nvrun bundle: ")[2].partition(" ")[0])
    kept = len(cut) - len(f"\n[nvrun bundle: {left} bytes are left out here]\n")
    assert kept + left == size
    assert not {"logs/n01/trace.json.gz", "logs/n01/dump"} & found.keys()
    assert b"logs/n01/dump: left out: 3000000 bytes" in found["bundle.json"]
    monkeypatch.setattr(packed, "ALL", 5_000)
    notes = json.loads(bundle(capsys, tmp_path, str(run), "--json")[1])["notes"]
    assert any("the bundle is full" in note for note in notes)


def test_what_cannot_be_packed_is_one_line(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "device")
    for words in (
        ["./empty"],
        ["nowhere"],
        [str(run), "--output", "device"],
        [str(run), "--output", "/proc/x.tar.gz"],
        [str(run), str(run)],
    ):
        code, out, err = bundle(capsys, tmp_path, *words)
        assert (code, out) == (2, "")
        assert err.count("\n") <= 2
    assert (tmp_path / "device").is_fifo(), "what is no file is not replaced by one"
    (run / "result.json").write_text("{")
    assert bundle(capsys, tmp_path, str(run))[0] == 0
    assert b"result.json" in members(tmp_path / f"nvrun-{run.name}.tar.gz")["failure.txt"]
