"""nvrun where something is missing around it: descriptors, the working directory, the end of a file, an alphabet."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nvrun import config, records
from nvrun.model import EnvVar, Frozen, Host
from nvrun.plan import Site, build
from nvrun.report import shell

ROOT = Path(__file__).parents[2]


def sh(script: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash, in which `$NVRUN` is nvrun."""
    return subprocess.run(
        ["bash", "-c", script.replace("$NVRUN", shlex.join([sys.executable, "-m", "nvrun"]))],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(cwd), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_go_nowhere(here: Path, closed: str) -> None:
    done = sh(f"$NVRUN --dry-run t.py {closed}; echo $? >code", here)
    assert (here / "code").read_text() == "0\n", done.stderr
    assert b"Traceback" not in done.stderr
    assert (b"t.py" in done.stdout) == (">&-" not in closed.split())


REFUSED = {
    "mkdir gone; cd gone; rmdir ../gone; $NVRUN --dry-run t.py": "working directory",
    "$NVRUN --hostfile /dev/zero t.py": "/dev/zero (--hostfile): longer than",
    "$NVRUN --env-file /dev/zero t.py": "/dev/zero (--env-file): longer than",
    "$NVRUN --bind /dev/zero t.py": "/dev/zero (--bind): longer than",
    "printf 'chdir: \"/tmp/\\\\0\"' >nvrun.yaml; $NVRUN --dry-run t.py": "nvrun.yaml:1: expected chdir",
    "printf '[%.0s' {1..20000} >x.json; $NVRUN plan --from x.json t.py": "x.json: expected the output of nvrun facts",
    "$NVRUN --nproc-per-node 99999999999 t.py": "--nproc-per-node: expected a number of ranks",
    "$NVRUN --run-dir /proc/nowhere t.py": "no place for the run's folder",
}


@pytest.mark.parametrize("script", REFUSED)
def test_what_nvrun_cannot_take_is_one_line(here: Path, script: str) -> None:
    done = sh(script, here)
    assert done.returncode == 2, done.stderr
    assert REFUSED[script] in done.stderr.decode()
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
def test_an_argument_that_is_no_text_comes_out_as_it_went_in(here: Path, locale: str) -> None:
    done = sh("$NVRUN --dry-run t.py $'\\xff' ü", here, LC_ALL=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("'\xff' 'ü'".encode("latin-1").replace(b"\xfc", "ü".encode()))


class Named(Frozen, frozen=True):
    name: str
    parts: tuple[str, ...] = ()


def test_a_record_of_what_is_no_text_is_readable() -> None:
    text = records.to_json(Named(name="a\udcff", parts=("ü",)))
    assert b'"a\\\\udcff"' in text
    assert records.to_json(Named(name="ü")).decode().count("ü") == 1


def test_a_line_break_in_a_reason_is_no_command() -> None:
    variable = EnvVar(name="NCCL_SOCKET_IFNAME", value="eth0", source="nvrun: plan", why="by eth0\nreboot")
    site = Site(host=Host(name="a"), ranks=1, python="/p", folder="/f", address="10.0.0.1")
    args = config.parse(["t.py"], {}).torchrun
    plan = build(run_id="r", args=args, sites=[site], fleet=True, cwd="/", master_port=1, grace=1.0, lost_after=1.0,
                 env=(variable,))  # fmt: skip
    assert "by eth0?reboot" in shell.script(plan)
    assert "reboot" not in shell.script(plan).splitlines()
