"""Hooks on hosts of the lab: on every one of them, and undone where they began."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.lab.lab import Lab, wait_for
from tests.spine.jobs import NVRUN, command, kind

pytestmark = pytest.mark.lab


@pytest.fixture
def place(lab: Lab) -> Iterator[Path]:
    """A directory that every host of the lab may write to, under one name."""
    with tempfile.TemporaryDirectory(prefix="nvrun-hooks-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def nvrun(lab: Lab, place: Path, *arguments: str) -> CompletedProcess[str]:
    argv = [*NVRUN, "--hosts", "a,b", "--run-dir", str(place / "runs"), *arguments]
    return lab.run(argv, timeout=120, env={"PYTHONPATH": str(Path(__file__).parents[2])}, cwd=str(place))


def hook(place: Path, text: str) -> str:
    path = place / "hook.sh"
    path.write_text(f"#!/bin/sh\nexec 2>&1\n{text}")
    path.chmod(0o755)
    return str(path)


def moments(place: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().split() for path in sorted(place.glob("calls.*"))}


CALL = 'echo "$1" >>{place}/calls."$NVRUN_HOST"\n'


def test_before_and_after_on_every_host(lab: Lab, place: Path) -> None:
    text = CALL.format(place=place) + 'echo "$(hostname) node $NVRUN_NODE_RANK of $NVRUN_NODE_COUNT"\n'
    script = f"[ -e {place}/calls.a ] && [ -e {place}/calls.b ] || exit 9"
    done = nvrun(lab, place, "--hook", hook(place, text), "--no-python", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert moments(place) == {"calls.a": ["before", "after"], "calls.b": ["before", "after"]}
    for words in ("hook: a: a node 0 of 2", "hook: b: b node 1 of 2"):
        assert (done.stderr + done.stdout).count(words) == 2


def test_through_srun(slurm_lab: Lab, place: Path) -> None:
    text = CALL.format(place=place) + 'head -c 100000 /dev/zero | tr "\\0" x\n'
    argv = command(slurm_lab, "srun", ["a", "b"], ["--run-dir", place / "runs", "--hook", hook(place, text),
                                                   "--no-python", "true"], place)  # fmt: skip
    done = slurm_lab.run(argv, timeout=120, env={"PYTHONPATH": str(Path(__file__).parents[2])}, cwd=str(place))
    assert done.returncode == 0, done.stderr
    assert moments(place) == {"calls.a": ["before", "after"], "calls.b": ["before", "after"]}
    assert done.stderr.count("34464 bytes more") + done.stdout.count("34464 bytes more") == 4


@pytest.mark.parametrize("who", ["nvrun", "keeper", "nobody"])
def test_nothing_is_left_of_a_before_part_when_somebody_is_killed(lab: Lab, place: Path, who: str) -> None:
    text = CALL.format(place=place) + "sleep 95.75 & sleep 95.75\n"
    argv = [
        *NVRUN,
        "--hosts",
        "a,b",
        "--run-dir",
        str(place / "runs"),
        "--hook",
        hook(place, text),
        "--no-python",
        "true",
    ]
    running = lab.popen(argv, env={"PYTHONPATH": str(Path(__file__).parents[2])}, cwd=str(place))
    with running:
        wait_for(lambda: len(moments(place)) == 2 and bool(lab.pids("a", "95.75")), "the hook on both hosts")
        if who == "nvrun":
            running.send_signal(signal.SIGKILL)
        for pid in [keeper(lab, host) for host in "ab"] if who == "keeper" else ():
            with suppress(ProcessLookupError):  # the job ends on b because a is gone
                os.kill(pid, signal.SIGKILL)
        if who == "nobody":
            running.send_signal(signal.SIGINT)
        _, stderr = running.communicate()
    assert ("SIGINT: no rank ran yet" in stderr) is (who == "nobody")
    wait_for(lambda: not lab.pids("a", "95.75") and not lab.pids("b", "95.75"), "the end of the hook on both hosts")
    (run,) = [
        path.name for path in (place / "runs").iterdir() if path.name != "latest" and not path.name.startswith(".")
    ]
    wait_for(lambda: not list(Path("/tmp/nvrun-0").glob(f"hook-{run}.*")), "removal of the program")


def keeper(lab: Lab, host: str) -> int:
    """The outermost process of the agent there."""
    living = lab.processes(host)
    agents = {process.pid: process for process in living if "nvrun-agent/boot.py" in " ".join(process.argv)}
    (found,) = [process.pid for process in living if kind(process, agents) == "keeper"]
    return found


def test_undone_where_it_had_begun(lab: Lab, place: Path) -> None:
    text = CALL.format(place=place) + '[ "$NVRUN_HOST" != b ] || { echo "b cannot"; exit 6; }\n'
    done = nvrun(lab, place, "--hook", hook(place, text), "--no-python", "touch", str(place / "ran"))
    assert done.returncode == 78
    assert moments(place) == {"calls.a": ["before", "after"], "calls.b": ["before"]}
    assert "hook hook, before the job: b: exit code 6: b cannot" in done.stderr
    assert not (place / "ran").exists()


def test_one_that_hangs_on_a_host_is_ended_there(lab: Lab, place: Path) -> None:
    text = CALL.format(place=place) + '[ "$1$NVRUN_HOST" != beforeb ] || exec sleep 96.5\n'
    done = nvrun(lab, place, "--hook", hook(place, text) + ":timeout=1", "--no-python", "true")
    assert done.returncode == 78
    assert "b: not done in 1 s" in done.stderr
    assert moments(place)["calls.a"] == ["before", "after"]
    assert not lab.pids("b", "96.5")


def test_after_a_failure_only_the_implicated_hosts_keep_nccl_logs(lab: Lab, place: Path) -> None:
    """The hook's own after-part over files that ranks wrote under its names; there is no NCCL here."""
    (place / "nccl.py").write_text(
        "from nvrun.hooks import Contribution, EnvVar\n"
        "def contribute(plan, facts, options):\n"
        "    var = EnvVar(name='NCCL_DEBUG_FILE', value='x', source='hook nccl-debug')\n"
        "    return Contribution(env={host.node: (var,) for host in plan.hosts})\n"
    )
    (place / "nccl.py").chmod(0o644)
    script = f"touch {place}/runs/latest/logs/$(hostname)/nccl.x.1.log; sleep 1; [ $RANK = 0 ] || exit 5; sleep 20"
    done = nvrun(lab, place, "--hook", str(place / "nccl.py"), "--no-python", "sh", "-c", script)
    assert done.returncode == 5, done.stderr
    assert [path.parent.name for path in place.glob("runs/latest/logs/*/nccl.x.1.log")] == ["b"]
    assert json.loads((place / "runs/latest/result.json").read_text())["ended_by"] == "rank"


@pytest.mark.parametrize("code", [0, 5])
def test_what_changed_on_a_host_is_told_once(lab: Lab, place: Path, code: int) -> None:
    """By the hook, or after a failure by nvrun's own look."""
    gone = "eth0 192.0.2.9: present before the job, gone after it"
    one, other = (["ip", "address", verb, "192.0.2.9/32", "dev", "eth0"] for verb in ("add", "delete"))
    script = f"[ $RANK = 0 ] || {{ {' '.join(other)}; exit {code}; }}; sleep {code and 20}"
    lab.exec("b", one, check=True)
    try:
        done = nvrun(lab, place, "--hook", "nvlink-errors", "--no-python", "sh", "-c", script)
    finally:
        lab.exec("b", other)  # where the rank never came to it
    assert done.returncode == code, done.stderr
    assert done.stderr.count(gone) == 1, done.stderr
    result = json.loads((place / "runs/latest/result.json").read_text())
    told = [key for key in ("findings", "changed") for each in result.get(key, ()) if gone in each["message"]]
    assert told == ["changed" if code else "findings"]
