"""Where a run's files are: in the run's folder at the end, and on no host that does not share it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.lab.lab import USER, Lab, needed_paths, wait_for
from tests.spine.jobs import NVRUN, RANK, job, result

pytestmark = pytest.mark.lab


def test_shared(lab: Lab, place: Path) -> None:
    with job(lab, place, ["print:1:1"], ranks=1, user=USER) as running:
        assert running.finish()[0] == 0
    runs = place / "runs"
    assert (runs / ".gitignore").read_text() == "*\n"
    assert (runs / "latest").readlink() == Path(result(place)["run_id"])
    plan = json.loads((runs / "latest/plan.json").read_text())
    assert [host["host"]["name"] for host in plan["hosts"]] == ["a", "b"]
    assert (runs / "latest/logs/b/rank1.out").stat().st_size == 1_000_000
    assert (runs / "latest/logs/a/rank0.err").read_bytes() == b""
    assert not (runs / "latest/.token").exists()
    assert not list(Path("/tmp").glob(f"nvrun-4711/{plan['run_id']}.*")), "a shared folder needs no other"


def test_a_launcher_that_is_killed_before_it_has_written_how_a_rank_failed(lab: Lab, place: Path) -> None:
    """The host's agent has noted that, of a rank without a word too, and apart from those that it ended itself."""
    with job(lab, place, ["wait", "quit:3:41", "sleep"]) as running:
        running.running.send_signal(signal.SIGSTOP)
        running.go()
        noted = place / "runs/latest/logs/b/ends.jsonl"
        wait_for(lambda: noted.exists() and b"\n" in noted.read_bytes(), "the end of rank 3")
        left = {host: running.processes(host) for host in ("a", "b")}
        running.running.kill()
        os.kill(running.running.pid, signal.SIGCONT)  # nsenter stopped itself with nvrun
        running.watch(left, within=20)
    done = lab.run([*NVRUN, "diagnose", str(place / "runs/latest")])
    assert "Its launcher was killed" in done.stdout, done.stderr
    assert "First to fail: rank 3 on b (local rank 1" in done.stdout
    assert "exit code 41: it ended itself with that code, and wrote nothing to stderr" in done.stdout
    assert "not known of all" not in done.stdout, "a and b have noted the ends of all ranks"
    (place / "runs/latest/logs/a/ends.jsonl").unlink()
    done = lab.run([*NVRUN, "diagnose", str(place / "runs/latest")])
    assert f"a may have it still; on a: nvrun diagnose {place}/runs/" in " ".join(done.stdout.split())


def test_no_shared_file_system(make_lab: Callable[..., Lab]) -> None:
    """Files come back and nothing stays; who puts a link where the host's folder goes is not followed."""
    lab = make_lab(["a", "b"], split=True, own_pids=True)
    home = lab.path("launcher", lab.home())
    program = "import os; print('out', os.environ['RANK']); os.write(2, bytes(range(256)))"
    argv = [
        *NVRUN,
        "--hosts",
        "a,b",
        "--nproc-per-node",
        "2",
        "--no-python",
        "--",
        "sh",
        "-c",
        f'python3 -c "{program}"',
    ]
    done = lab.run(argv, timeout=60)
    assert done.returncode == 0, done.stderr
    run = home / "nvrun-runs/latest"
    for rank in range(4):
        logs = run / "logs" / "ab"[rank // 2]
        assert (logs / f"rank{rank}.out").read_text() == f"out {rank}\n"
        assert (logs / f"rank{rank}.err").read_bytes() == bytes(range(256))
    assert "not_fetched" not in json.loads((run / "result.json").read_text())
    for host in lab.hosts:
        wait_for(partial(is_empty, lab, host), f"an empty /tmp on {host}")
    unreadable_logs(lab)

    lab.exec("b", ["sh", "-c", "mkdir /tmp/elsewhere && ln -s elsewhere /tmp/nvrun-0"], check=True)
    done = lab.run(argv, timeout=60)
    assert done.returncode == 78
    assert "b: /tmp/nvrun-0 is not a folder of this user's alone" in done.stderr
    assert "Traceback" not in done.stderr
    assert lab.exec("b", ["ls", "-A", "/tmp/elsewhere"]).stdout == ""
    told = json.loads((run / "result.json").read_text())
    assert told["ended_by"] == "preflight"
    assert [finding["code"] for finding in told["findings"]] == ["host-no-folder"]
    wait_for(lambda: is_empty(lab, "a"), "an empty /tmp on a")


def unreadable_logs(lab: Lab) -> None:
    """What a host itself cannot read is named, and stays there; the rest comes."""
    program = """
import glob, os
print("out", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    (logs,) = glob.glob("/tmp/nvrun-4711/*.1")
    os.mkdir(logs + "/deep")
    os.chmod(logs + "/deep", 0)
    os.chmod(logs + "/rank1.err", 0)
"""
    argv = [*NVRUN, "--hosts", "a,b", "--nproc-per-node", "1", "--no-python", "--", "python3", "-c", program]
    done = lab.run(argv, user=USER, timeout=60)
    assert done.returncode == 0, done.stderr
    run = lab.path("launcher", lab.home(USER)) / "nvrun-runs/latest"
    told = json.loads((run / "result.json").read_text())
    where = f"b:/tmp/nvrun-4711/{told['run_id']}.1"
    assert sorted(told["not_fetched"]) == [f"{where}/{file} (Permission denied)" for file in ("deep", "rank1.err")]
    assert f"could not be brought back: {where}/rank1.err (Permission denied)" in done.stderr
    assert (run / "logs/b/rank1.out").read_text() == "out 1\n"
    assert not (run / "logs/b/rank1.err").exists(), "an empty file would say that nothing was written"
    assert {"rank1.out", "torchrun.err"} <= {path.name for path in (run / "logs/b").iterdir()}
    assert lab.exec("b", ["find", "/tmp/nvrun-4711", "-name", "rank1.err"]).stdout, "it may be mended there"
    lab.exec("b", ["rm", "-r", "/tmp/nvrun-4711"], check=True)


def is_empty(lab: Lab, host: str) -> bool:
    """Nothing in its /tmp but, where they lie there, the checkout and its interpreter."""
    kept = {Path(path).relative_to("/tmp").parts[0] for path in needed_paths() if path.startswith("/tmp/")}
    return set(lab.exec(host, ["ls", "-A", "/tmp"], check=True).stdout.split()) <= kept


def test_working_directory_that_cannot_be_written(lab: Lab) -> None:
    done = lab.run([*NVRUN, "--nproc-per-node", "1", RANK], user=USER, cwd="/", timeout=30)
    assert done.returncode == 0, done.stderr
    folder = lab.path("launcher", lab.home(USER)) / ".local/state/nvrun/runs/latest"
    assert (folder / "result.json").exists()


def test_all_ports_taken(lab: Lab, place: Path) -> None:
    holder = "import socket, time; s = socket.create_server(('', 29500)); print('held', flush=True); time.sleep(60)"
    with lab.popen(["python3", "-c", holder], place="a") as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        argv = [*NVRUN, "--hosts", "a,b", "--port-range", "29500", "--run-dir", str(place / "runs"), str(RANK)]
        done = lab.run(argv, timeout=30)
        held.kill()
    assert done.returncode == 78
    assert "a: port 29500 is taken by" in done.stderr
    assert "--port-range" in done.stderr
