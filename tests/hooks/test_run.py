"""Hooks around real jobs on this machine: order, failures, what is left behind, traces of a DDP job."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nvrun.traces.files import summary

ROOT = Path(__file__).parents[2]
NOTE = """
from pathlib import Path
LOG = Path(__file__).with_name("log")

def note(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")

def around(job, options):
    note("{name} before {{}}".format(job.result))
    {before}
    yield
    note("{name} after {{}} {{}}".format(job.result.ended_by, job.result.exit_code))
    {after}
"""


class Ran(NamedTuple):
    code: int
    stderr: str
    stdout: str
    result: Mapping[str, Any]
    logs: Path


def nvrun(place: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "nvrun", "--run-dir", "runs", *arguments],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    folder = place / "runs" / "latest"
    (logs,) = [*folder.glob("logs/*")] or [folder]
    return Ran(done.returncode, done.stderr, done.stdout, json.loads((folder / "result.json").read_text()), logs)


def hook(place: Path, name: str, before: str = "pass", after: str = "pass") -> str:
    path = place / f"{name}.py"
    path.write_text(NOTE.format(name=name, before=before, after=after))
    path.chmod(0o644)
    return f"./{name}.py"


def program(place: Path, name: str, text: str) -> str:
    path = place / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return f"./{name}"


def log(place: Path) -> list[str]:
    return (place / "log").read_text().splitlines()


def test_parts_run_in_order_and_backwards_and_hide_nothing(tmp_path: Path) -> None:
    hooks = [
        hook(tmp_path, "one"),
        hook(tmp_path, "two", after="raise OSError('after two')"),
        program(tmp_path, "three", 'echo "three $1 $NVRUN_RANKS $NVRUN_HOOK_X" | tee "$NVRUN_FOLDER/three.$1"\n'
                                   '[ "$1" = before ] || { echo "$NVRUN_ENDED_BY $NVRUN_EXIT_CODE"; exit 4; }\n')
        + ":x=a,b",
    ]  # fmt: skip
    flags = [part for each in hooks for part in ("--hook", each)]
    ran = nvrun(tmp_path, *flags, "--nproc-per-node", "2", "--no-python", "sh", "-c", "exit 37")
    assert ran.code == 37
    assert log(tmp_path) == ["one before None", "two before None", "two after rank 37", "one after rank 37"]
    said = {finding["message"].partition(":")[0]: finding["message"] for finding in ran.result["findings"]}
    assert "hook two, after the job: OSError: after two" in said.values()
    assert any("three after, on" in each and "exit code 4: rank 37" in each for each in said.values())
    assert (ran.logs / "three.before").read_text() == "three before 2 a,b\n"
    assert (ran.logs / "three.after").read_text() == "three after 2 a,b\n"
    assert not list(tmp_path.glob("runs/*/logs/*/*.hooks*"))


def test_a_failing_before_part_stops_the_run_and_unwinds(tmp_path: Path) -> None:
    hooks = [hook(tmp_path, "one"), program(tmp_path, "two", "echo cannot >&2; exit 5\n"), hook(tmp_path, "three")]
    flags = [part for each in hooks for part in ("--hook", each)]
    ran = nvrun(tmp_path, *flags, "--no-python", "touch", str(tmp_path / "ran"))
    assert ran.code == 78
    assert ran.result["ended_by"] == "preflight"
    assert log(tmp_path) == ["one before None", "one after preflight 78"]
    assert "hook two, before the job: " in ran.stderr
    assert "exit code 5: cannot" in ran.stderr
    assert not (tmp_path / "ran").exists()
    assert "Traceback" not in ran.stderr


def test_an_after_part_has_the_facts_where_the_checks_let_nothing_run(tmp_path: Path) -> None:
    after = "note(str([facts.memory.total_bytes > 0 for facts in job.facts.values()])); job.changes()"
    wrong = {"NCCL_BUFFSIZE": "4M"}
    ran = nvrun(tmp_path, "--hook", hook(tmp_path, "one", after=after), "--no-python", "true", env=wrong)
    assert (ran.code, ran.result["ended_by"]) == (78, "preflight")
    assert log(tmp_path) == ["one before None", "one after preflight 78", "[True]"]


def test_an_interrupted_before_part_unwinds(tmp_path: Path) -> None:
    hooks = [hook(tmp_path, "one"), program(tmp_path, "two", f"touch {tmp_path}/began; sleep 20\n")]
    flags = [part for each in hooks for part in ("--hook", each)]
    running = subprocess.Popen(
        [sys.executable, "-m", "nvrun", "--run-dir", "runs", *flags, "--no-python", "true"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "began").exists():
        time.sleep(0.05)
    running.terminate()
    _, stderr = running.communicate(timeout=15)
    assert running.returncode == 143
    assert log(tmp_path) == ["one before None", "one after signal 143"]
    assert "hook two" not in stderr


def test_a_daemon_of_a_before_part_lives_until_the_after_part(tmp_path: Path) -> None:
    text = f"""
if [ "$1" = before ]; then
    sleep 98.25 </dev/null >/dev/null 2>&1 &
    echo $! >{tmp_path}/pid
else
    kill -0 "$(cat {tmp_path}/pid)" && echo alive >{tmp_path}/alive
fi
"""
    began = time.monotonic()
    ran = nvrun(tmp_path, "--hook", program(tmp_path, "daemon", text), "--no-python", "true")
    assert ran.code == 0, ran.stderr
    assert (tmp_path / "alive").exists()
    assert "left" not in ran.stderr
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists() and time.monotonic() - began < 60:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_trace_of_a_ddp_job(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nprint('the site was here', file=sys.stderr)\n")
    script = ROOT / "examples" / "train_ddp.py"
    ran = nvrun(tmp_path, "--hook", "torch-profiler:ranks=1,wait=2,warmup=1,active=3", "--nproc-per-node", "2",
                str(script), "--steps", "20", env={"PYTHONPATH": f"{site}:{ROOT}"})  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert "2 ranks, gloo" in ran.stdout
    names = sorted(path.name for path in (ran.logs / "torch-profiler").iterdir())
    assert names == ["rank1.pt.trace.json.gz"]
    with gzip.open(ran.logs / "torch-profiler" / "rank1.pt.trace.json.gz") as file:
        events = {str(event.get("name")) for event in json.load(file)["traceEvents"]}
    assert {"ProfilerStep#3", "ProfilerStep#5", "gloo:all_reduce"} <= events
    assert "ProfilerStep#6" not in events
    found = summary(ran.logs / "torch-profiler" / "rank1.pt.trace.json.gz")
    assert found is not None
    assert (found.device, found.rank, found.steps) == ("cpu", 1, 3)
    assert [each.name for each in found.collectives] == ["all_reduce"]
    assert 0 < found.exposed <= found.communication <= found.busy <= found.total
    assert found.accumulation is not None
    assert (found.accumulation.forwards, found.accumulation.needless) == (3, 0)
    assert "the site was here" in (ran.logs / "rank0.err").read_text()
    assert (ran.logs / "rank1.err").read_text().count("the site was here") == 1


def test_a_missing_trace_is_said(tmp_path: Path) -> None:
    (script := tmp_path / "own.py").write_text(
        "import os\nif os.environ['RANK'] == '0':\n    import torch\n    with torch.profiler.profile(): pass\n"
    )
    ran = nvrun(tmp_path, "--hook", "torch-profiler:ranks=all", "--nproc-per-node", "2", str(script))
    assert ran.code == 0, ran.stderr
    said = [finding["message"] for finding in ran.result["findings"] if "no trace" in finding["message"]]
    assert said[0] == "torch-profiler: no trace of rank 0: the script profiles itself"
    assert "of rank 1: it made at most 6 optimizer steps, was killed, or" in said[1]


NSYS = """
case $1 in
    profile)
        while [ "$1" != -o ]; do shift; done
        printf '%s' "$2" >{place}/output
        shift 2
        session=${{1#--session-new=}}
        shift
        mkfifo {place}/$session
        "$@" &
        child=$!
        trap 'kill $child; wait; exit 143' TERM
        wait $child ;;
    stop)
        [ -p {place}/${{2#--session=}} ] || exit 1
        touch "$(cat {place}/output).nsys-rep"
        echo stopped ;;
esac
"""


@pytest.mark.parametrize("per", ["rank", "host"])
def test_nsys_is_finalised_before_the_rank_is_told_to_end(tmp_path: Path, per: str) -> None:
    """A stand-in for nsys, of the same command lines: what is tested is when nvrun calls it, not what it does."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools, "nsys", NSYS.format(place=tmp_path))
    up = tmp_path / "up"
    script = f'if [ "$RANK" = 1 ]; then until [ -e {up} ]; do sleep 0.1; done; exit 9; fi; touch {up}; exec sleep 30'
    ran = nvrun(tmp_path, "--hook", f"nsys:per={per}", "--nproc-per-node", "2", "--no-python", "sh", "-c", script,
                env={"PATH": f"{tools}:{os.environ['PATH']}"})  # fmt: skip
    assert ran.code == 9, ran.stderr
    assert (ran.logs / "rank0.nsys.txt").read_text() == "stopped\n"
    assert [path.suffix for path in (ran.logs / "nsys").iterdir()] == [".nsys-rep"]
    assert not any("no report" in finding["message"] for finding in ran.result.get("findings", ()))


def test_a_missing_nsys_is_said_before_the_launch(tmp_path: Path) -> None:
    if any(Path(folder, "nsys").exists() for folder in os.environ["PATH"].split(":")):
        pytest.skip("nsys is installed here")
    ran = nvrun(tmp_path, "--hook", "nsys", "--no-python", "touch", str(tmp_path / "ran"))
    assert ran.code == 78
    assert "nsys is not on PATH on" in ran.stderr
    assert not (tmp_path / "ran").exists()


def test_warnings_in_nccl_files_reach_the_console(tmp_path: Path) -> None:
    """No NCCL here: a rank writes such a file itself, and a hook asks for its warnings as nccl-debug does."""
    (tmp_path / "echo.py").write_text(
        "from nvrun.hooks import Contribution, Echoed\n"
        "def contribute(plan, facts, options):\n"
        "    return Contribution(echo={0: (Echoed(files='nccl.*.log', text=' NCCL WARN '),)})\n"
    )
    (tmp_path / "echo.py").chmod(0o644)
    script = program(tmp_path, "job", """
f=$(echo runs/latest/logs/*)/nccl.h.$$.log
echo "h:$$:1 [0] NCCL INFO quiet" >$f
printf "h:$$:1 [0] x.cc:1 NCCL WA" >>$f
sleep 1.5
echo "RN loud" >>$f
echo "h:1:1 [0] x.cc:1 NCCL WARN of no rank" >${f%.*.log}.1.log
""")  # fmt: skip
    ran = nvrun(tmp_path, "--hook", "./echo.py", "--no-python", script)
    assert ran.code == 0
    shown = [line for line in (ran.stderr + ran.stdout).splitlines() if "NCCL" in line]
    assert len(shown) == 1
    assert shown[0].endswith("NCCL WARN loud")
    assert ":0: " in shown[0]


def test_stacks_of_the_ranks_that_still_live(tmp_path: Path) -> None:
    if not shutil.which("py-spy", path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])):
        pytest.skip("py-spy is not installed here")
    (tmp_path / "job.py").write_text(
        "import os, time\n"
        "def waits_for_the_other():\n"
        "    time.sleep(30)\n"
        "if os.environ['RANK'] == '1':\n"
        "    time.sleep(1)\n"
        "    raise ValueError('on purpose')\n"
        "waits_for_the_other()\n"
    )
    ran = nvrun(tmp_path, "--hook", "py-spy", "--nproc-per-node", "3", "job.py")
    assert ran.code == 1
    assert ran.result["first_failure"]["rank"] == 1
    for rank in (0, 2):
        assert "waits_for_the_other (" in (ran.logs / f"rank{rank}.py-spy.txt").read_text()
    assert not (ran.logs / "rank1.py-spy.txt").exists()
    assert ran.result["seconds"] < 25


def test_a_missing_py_spy_is_said_and_the_job_runs(tmp_path: Path) -> None:
    """The same environment without its programs, and a PATH without py-spy."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), tmp_path / "venv")
    (tmp_path / "venv" / "lib").symlink_to(Path(sys.prefix, "lib"))
    path = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "py-spy").exists()]
    ran = nvrun(tmp_path, "--hook", "py-spy", "--python", str(python), "--no-python", "true",
                env={"PATH": ":".join(path)})  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert any("py-spy is not installed on" in finding["message"] for finding in ran.result["findings"])


@pytest.mark.parametrize("hook", ["nsys", "py-spy", "torch-profiler"])
def test_ranks_that_the_job_does_not_have_are_refused(tmp_path: Path, hook: str) -> None:
    """After hours nobody wants to learn that nothing was recorded."""
    ran = nvrun(tmp_path, "--hook", f"{hook}:ranks=7", "--nproc-per-node", "2", "--no-python", "true")
    assert ran.code == 78, ran.stderr
    assert f"hook {hook}, before the job: ranks: the job has 2 ranks, none of them chosen" in ran.stderr
