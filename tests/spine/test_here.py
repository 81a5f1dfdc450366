"""nvrun on this machine alone, where something is wrong beside the job."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.lab import REPOSITORY
from tests.spine.jobs import NVRUN


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(tmp_path / "state"), **more}


def nvrun(tmp_path: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NVRUN, "--nproc-per-node", "1", "--run-dir", tmp_path / "runs", *map(str, arguments)],
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_two_jobs_of_one_machine_run_at_once(tmp_path: Path) -> None:
    """torchrun alone would give both port 29500. Each job waits for the other, so neither can run first."""
    script = tmp_path / "meet.py"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom torch.distributed import TCPStore\n"
        "port = int(os.environ['MASTER_PORT'])\nTCPStore(os.environ['MASTER_ADDR'], port, is_master=False)\n"
        "Path(sys.argv[1]).write_text(str(port))\nend = time.monotonic() + 40\n"
        "while not Path(sys.argv[2]).exists():\n    assert time.monotonic() < end\n    time.sleep(0.05)\n"
    )
    with ThreadPoolExecutor() as both:
        done = list(both.map(lambda names: nvrun(tmp_path, "--check", "off", script, *names), ("ab", "ba")))
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_who_removes_the_runs_folder_gets_the_jobs_exit_code(tmp_path: Path) -> None:
    """The supervisor's files, result.json and the hosts' lists are gone; how the job went is not."""
    script = tmp_path / "remove.py"
    script.write_text("import os, shutil, sys\nshutil.rmtree(os.environ['RUNS'])\nsys.exit(37)\n")
    done = nvrun(tmp_path, script, RUNS=str(tmp_path / "runs"))
    assert done.returncode == 37, done.stderr
    assert "result.json cannot be written" in done.stderr
    assert "exited with 37" in done.stderr


def test_after_a_restart_by_torchrun_ranks_are_told_of_the_end_too(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "again = os.environ['TORCHELASTIC_RESTART_COUNT'] == '1'\n"
        "if not again and os.environ['RANK'] == '1':\n    sys.exit(3)\n"
        "def save(*_):\n    print('saved', flush=True)\n    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save if again else signal.SIG_DFL)\n"
        "print('again' if again else 'first', flush=True)\ntime.sleep(60)\n"
    )
    flags = ["--check", "off", "--nproc-per-node", "2", "--max-restarts", "1", "--run-dir", str(tmp_path / "runs")]
    with subprocess.Popen([*NVRUN, *flags, script], env=environment(tmp_path), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as running:  # fmt: skip
        assert running.stdout
        up = 0
        while up < 2 and (line := running.stdout.readline()):
            up += "again" in line
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        said, stderr = running.communicate(timeout=60)
    assert running.returncode == 143, stderr
    assert said.count("saved") == 2, stderr
    assert time.monotonic() - began < 20, "--grace is 30 s"


def test_what_was_asked_stands_in_the_runs_folder(tmp_path: Path) -> None:
    """The checks are off: a variable of the user that a preset would set stays, and that is said."""
    script = tmp_path / "say.py"
    script.write_text("import os\nprint('value', os.environ['NCCL_IB_DISABLE'])\n")
    flags = ["--grace", "7", "--env", "A=b c", "--lost-after", "never", "--check", "off", "--preset", "ab-no-ib"]
    done = nvrun(tmp_path, *flags, script, "--lr", "0.1", NCCL_IB_DISABLE="0")
    assert done.returncode == 0, done.stderr
    assert "value 0" in done.stdout
    assert "NCCL_IB_DISABLE stays 0" in done.stderr
    run = tmp_path / "runs" / "latest"
    asked = json.loads((run / "request.json").read_text())
    assert asked["torchrun"][-4:] == ["--", str(script), "--lr", "0.1"]
    assert asked["options"]["grace"] == 7.0
    assert asked["options"]["env"][0][:2] == ["A", "b c"]
    assert asked["options"]["lost-after"] is None
    assert asked["mode"].startswith("node: ")
    assert stat.S_IMODE((run / "request.json").stat().st_mode) == 0o600, "it holds values of variables"


def test_a_variable_of_the_user_stays_and_that_is_said(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text("import os\nprint('value', os.environ['NCCL_IB_DISABLE'])\n")
    done = nvrun(tmp_path, "--preset", "ab-no-ib", script, NCCL_IB_DISABLE="0")
    assert done.returncode == 0, done.stderr
    assert "value 0" in done.stdout
    assert "NCCL_IB_DISABLE stays 0" in done.stderr
    names = {path.name for path in (tmp_path / "runs" / "latest").iterdir()}
    assert {"plan.json", "facts.json", "verdict.json", "result.json"} <= names


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU, so the flag means something")
def test_a_run_that_cannot_go_on_has_a_result(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text("print('said')\n")
    done = nvrun(tmp_path, "--nproc-per-node", "gpu", script)
    assert done.returncode == 2, done.stderr
    result = json.loads((tmp_path / "runs" / "latest" / "result.json").read_text())
    assert (result["ended_by"], result["exit_code"]) == ("preflight", 2)
    assert "has no GPU" in result["message"]
    assert "said" not in done.stdout


def test_a_waiver_that_does_nothing_is_said(tmp_path: Path) -> None:
    done = nvrun(tmp_path, "--waive", "path-missing", tmp_path / "nowhere.py")
    assert done.returncode == 78, done.stderr
    assert "path-missing is fatal here" in done.stderr


def test_ctrl_c_where_there_is_no_job_says_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*NVRUN, "topo", "--topo", "-"],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdin
        command.stdin.write("x" * (1 << 20))  # more than a pipe holds: when it is taken, the command is up
        command.stdin.flush()
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=20)
    assert command.returncode == 130, said
    assert said == ""


def test_how_torchrun_itself_ends_is_not_how_the_job_ends(tmp_path: Path) -> None:
    """A sitecustomize without streams and with a function that fails at the end; and -OO, which leaves no docstring."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "if any('torch.distributed.run' in word for word in sys.orig_argv):\n"
        "    atexit.register(lambda: 1 / 0)\n"
        "    sys.stdout = sys.stderr = None\n"
    )
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    done = nvrun(tmp_path, "--check", "off", "--no-python", "--", "true", PYTHONPATH=path, PYTHONOPTIMIZE="2")
    assert done.returncode == 0, done.stderr
