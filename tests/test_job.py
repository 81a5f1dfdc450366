"""A job as it is read: which variables are orders and which are defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrun import config, job


@pytest.mark.parametrize("name", ["nvrun.yaml", "site.yml", "site.conf"])
def test_a_configuration_file_gives_defaults_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("env:\n  NCCL_DEBUG: INFO\n  NCCL_PROTO: LL\n")
    (tmp_path / "job.yaml").write_text("NCCL_ALGO=Ring\n")
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    argv = ["--config", str(tmp_path / name), "--env-file", str(tmp_path / "job.yaml"), "--env", "NCCL_PROTO=LL128",
            "train.py"]  # fmt: skip
    read = job.read(config.load(argv, environ), environ)
    assert {variable.name: variable.value for variable in read.defaults} == {"NCCL_DEBUG": "INFO"}
    assert {variable.name: variable.value for variable in read.env} == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--hosts a,b", True),
        ("--hosts a,b --env CUDA_VISIBLE_DEVICES", False),
        ("--hosts a,b --env CUDA_VISIBLE_DEVICES=1", False),
        ("--hosts localhost", False),
        ("--nproc-per-node 2", False),
    ],
)
def test_gpus_chosen_here_are_not_taken_to_be_chosen_elsewhere(line: str, told: bool) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    notices = job.read(config.load([*line.split(), "train.py"], environ), environ).notices
    assert bool(notices) is told
    assert job.read(config.load([*line.split()[:2], "train.py"], {}), {}).notices == ()
