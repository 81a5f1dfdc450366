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
