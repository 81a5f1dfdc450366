"""Typing mistakes: one clear line and 2, before a run has a folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nvrun.cli import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nproc_per_node=2 train.py", "nvrun --nproc_per_node=2 train.py"),
        ("python train.py", "leave the word python out"),
        ("--nproc-per-node 2 /usr/bin/python3.11 -m tool", "leave the word python3.11 out"),
        ("--hosts a b train.py", "--hosts a,b"),
        ("--hosts a b c train.py --lr d", "--hosts a,b,c"),
        ("check a,b", "did you mean --hosts a,b?"),
        ("check 'gpu[01-04]'", "did you mean --hosts gpu[01-04]?"),
        ("help", "nvrun --help"),
        ("doctor", "doctor is no command, and no file in {here}"),
        ("--preset nvlink plan", "comes before its flags: nvrun plan"),
        ("trian.py", "no such file in {here}; did you mean train.py?"),
        ("{here}/trian.py --lr 1", "trian.py: no such file; did you mean {here}/train.py?"),
        ("--use_env train.py", "leave it out, ranks read LOCAL_RANK"),
        ("--hosts a,b,c --nnodes 2 train.py", "--nodes 2 uses 2 of them, the rest are spares"),
        ("--bind nod train.py", "expected one of none, node, socket, exclusive, or a file, got 'nod'"),
    ],
)
def test_what_was_surely_not_meant_is_said_in_a_line(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    code = main(shlex.split(line.format(here=tmp_path)), {"HOME": str(tmp_path)})
    told = capsys.readouterr().err
    assert code == 2, told
    assert said.format(here=tmp_path) in told
    assert len(told.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("line", ["python", "torchrun", "plan --check off", "-- plan", "./python", "--bind help help"])
def test_a_file_of_that_name_is_the_program(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("python", "torchrun", "plan", "help"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    main(["hosts", *shlex.split(line)], {"HOME": str(tmp_path)})
    assert "leave the word" not in (told := capsys.readouterr().err)
    assert "no such file" not in told
    assert "comes before" not in told


def test_an_excluded_host_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--hosts", "localhost", "--exclude", "z[1-2]"]
    assert main([*line, "--run-dir", "/dev/null/x", "t.py"], {"HOME": str(tmp_path)}) == 2
    assert "nvrun: --exclude: z[1-2]: no host of --hosts\n" in capsys.readouterr().err
    assert main(["hosts", *line], {"HOME": str(tmp_path)}) == 0
    assert "z[1-2]" in capsys.readouterr().out
