"""A job with secrets: none is in a command line, in what nvrun prints, in a file that others can read, in a bundle."""

from __future__ import annotations

import signal
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import USER, Lab
from tests.spine.jobs import NVRUN, job, signal_group

pytestmark = pytest.mark.lab

SECRET = "geheim0123456789"


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvrun-secrets-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_no_secret_leaves_the_users_hands(lab: Lab, place: Path) -> None:
    given = place / "variables"
    given.write_text(f"HF_TOKEN=hf_{SECRET}\nSTORE=redis://:{SECRET}@store\nLICENSE_PASSWORD={SECRET}\n")
    forwarded = {"WANDB_API_KEY": SECRET, "XDG_STATE_HOME": str(place / "state")}
    with job(lab, place, ["sleep"], flags=["--env-file", str(given)], env=forwarded, user=USER) as running:
        for name in ("launcher", *lab.hosts):
            for process in lab.processes(name):
                assert SECRET not in " ".join(process.argv), process.argv
        signal_group(running.nvrun(), signal.SIGINT)
        code, stdout, stderr = running.finish()
    assert code == 130, stderr
    assert SECRET not in stdout + stderr
    run = place / "runs/latest"
    for path in (each for each in [*run.rglob("*"), *(place / "state").rglob("*")] if each.is_file()):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert SECRET.encode() not in path.read_bytes() or mode == 0o600, (path, oct(mode))
    options = {"user": USER, "env": forwarded, "cwd": place, "timeout": 60}
    for command in (
        ["plan", "--show-env", "--env-file", str(given), "t.py"],
        ["env", "--env-file", str(given), "t.py"],
    ):
        told = lab.run([*NVRUN, *command, "--json"], **options)  # type: ignore[arg-type]
        assert told.returncode == 0, told.stderr
        assert SECRET not in told.stdout + told.stderr
    assert lab.run([*NVRUN, "report", str(run.resolve())], **options).returncode == 0  # type: ignore[arg-type]
    assert SECRET not in (run / "report.html").read_text()
    assert lab.run([*NVRUN, "bundle", str(run.resolve()), "--output", "x.tar.gz"], **options).returncode == 0  # type: ignore[arg-type]
    assert stat.S_IMODE((place / "x.tar.gz").stat().st_mode) == 0o600
    with tarfile.open(place / "x.tar.gz") as bundle:
        for member in bundle:
            file = bundle.extractfile(member)
            assert file is None or SECRET.encode() not in file.read(), member.name
