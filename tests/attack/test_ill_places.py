"""nvrun where something is missing around it: descriptors, the working directory, the end of a file, an alphabet."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from nvrun import cli, config, records
from nvrun.agent.probe import system
from nvrun.agent.probe.tree import Tree
from nvrun.checks import Job, run
from nvrun.facts import Filesystem, HostFacts
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
    "ulimit -f 0; $NVRUN t.py": "no place for the run's folder",
}


@pytest.mark.parametrize("script", REFUSED)
def test_what_nvrun_cannot_take_is_one_line(here: Path, script: str) -> None:
    done = sh(script, here)
    assert done.returncode == 2, done.stderr
    assert REFUSED[script] in done.stderr.decode()
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("descriptors", "why"),
    [
        (16, b"nothing could be read of it: OSError: [Errno 24] Too many open files [facts-unread]"),
        (20, b"only 20 files may be open, 1024 are needed; the hard limit is 20 [nofile-low]"),
    ],
)
def test_a_host_with_few_descriptors_is_refused_by_what_can_be_read_of_it(
    here: Path, descriptors: int, why: bytes
) -> None:
    done = sh(f"ulimit -n {descriptors}; $NVRUN --nproc-per-node 1 t.py", here)
    assert done.returncode == 78, done.stderr
    assert why in done.stderr


def test_a_fault_that_no_file_can_keep_says_where_it_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    monkeypatch.setattr(cli, "run", lambda *asked: dict[str, int]()["missing"])
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    assert cli.main(["t.py"], {}) == 70
    fault, report = said.getvalue().splitlines()
    assert fault == "nvrun: a fault of nvrun itself: KeyError: 'missing'"
    assert re.fullmatch(r"nvrun: please report it with the place where it was raised: .*test_ill_places.py:\d+", report)


def test_a_file_system_that_counts_nothing_is_not_full() -> None:
    (proc,) = system.filesystems(Tree("/"), ["/proc"])
    assert (proc["total_bytes"], proc["free_bytes"], proc["error"]) == (None, None, None)
    facts = HostFacts(host="n1", filesystems=(msgspec.convert(proc, Filesystem),))
    verdict = run({"n1": facts}, Job())
    assert not [finding for finding in verdict.findings if finding.code == "disk-full"]
    unread = [each.reason for each in verdict.skipped if each.code == "filesystems-fit"]
    assert unread == ["/proc: its file system counts no blocks"]


@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
def test_an_argument_that_is_no_text_comes_out_as_it_went_in(here: Path, locale: str) -> None:
    done = sh("$NVRUN --dry-run t.py $'\\xff' ü", here, LC_ALL=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("'\xff' 'ü'".encode("latin-1").replace(b"\xfc", "ü".encode()))


def test_clean_is_not_stopped_by_a_mistake_in_another_command_s_setting(here: Path) -> None:
    done = sh("printf 'check: often\\nno-such-thing: 1\\n' >nvrun.yaml; $NVRUN clean --dry-run", here)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    assert sh("$NVRUN plan t.py", here).returncode == 2


class Named(Frozen, frozen=True):
    name: str
    parts: tuple[str, ...] = ()


def test_a_record_of_what_is_no_text_is_readable() -> None:
    text = records.to_json(Named(name="a\udcff", parts=("ü",)))
    assert b'"a\\\\udcff"' in text
    assert records.to_json(Named(name="ü")).decode().count("ü") == 1


@pytest.mark.parametrize(
    ("text", "byte"),
    [(r'{"host": "\ud800"}', 10), (r'{"host": "\\\uDC00"}', 12), (r'[{"host": "\ud83d\ude00 \ud83d"}]', 24)],
)
def test_half_a_character_is_named(text: str, byte: int) -> None:
    with pytest.raises(msgspec.DecodeError, match=f"at byte {byte} is half a character"):
        records.from_json(text.encode(), object)
    whole = text.replace(r"\ud800", "a").replace(r"\uDC00", "ud800").replace(r" \ud83d", "")
    assert records.from_json(whole.encode(), object)


def test_half_a_character_in_recorded_facts_is_one_line(here: Path) -> None:
    Path(here, "facts.json").write_text(r'{"host": "\ud800"}')
    for command in ("plan --from facts.json t.py", "check --from facts.json", "nccl ."):
        done = sh(f"$NVRUN {command}", here)
        (line,) = done.stderr.decode().splitlines()
        assert (done.returncode, done.stdout) == (2, b""), line
        assert "facts.json: expected " in line
        assert line.endswith(r": \ud800 at byte 10 is half a character (a lone surrogate)")


def test_a_line_break_in_a_reason_is_no_command() -> None:
    variable = EnvVar(name="NCCL_SOCKET_IFNAME", value="eth0", source="nvrun: plan", why="by eth0\nreboot")
    site = Site(host=Host(name="a"), ranks=1, python="/p", folder="/f", address="10.0.0.1")
    args = config.parse(["t.py"], {}).torchrun
    plan = build(run_id="r", args=args, sites=[site], fleet=True, cwd="/", master_port=1, grace=1.0, lost_after=1.0,
                 env=(variable,))  # fmt: skip
    assert "by eth0?reboot" in shell.script(plan)
    assert "reboot" not in shell.script(plan).splitlines()


AWKWARD = "a\x1b[2J\\b'c\x9b\x7f"


def test_a_pasted_word_commands_no_terminal_and_is_still_the_same(here: Path) -> None:
    done = sh(f"$NVRUN --dry-run t.py {shlex.quote(AWKWARD)}", here)
    last = done.stdout.splitlines()[-1]
    assert not set(b"\x1b\x7f") & set(last)
    word = last[last.index(b"$'") :]
    assert subprocess.check_output(["bash", "-c", b"printf %s " + word]) == AWKWARD.encode()


def test_what_a_command_prints_commands_no_terminal(here: Path) -> None:
    (here / "facts.json").write_text(json.dumps([{"host": "evil\x1b]0;title\x07\x9b5n"}]))
    done = sh("$NVRUN plan --from facts.json t.py; $NVRUN plan --from $'no\\x1b[2J' t.py", here)
    assert b"evil" in done.stdout
    assert not set("\x1b\x07\x9b") & set((done.stdout + done.stderr).decode())


def test_a_torchrun_that_somebody_stopped_is_named(here: Path) -> None:
    script = """$NVRUN --check off --grace 1 t.py & pid=$!
        while ! stopped=$(pgrep -f "distributed.run.*$PWD"); do sleep 0.1; done; kill -STOP $stopped
        sleep 7; kill $pid; wait $pid; echo $? >code; kill -0 $stopped 2>/dev/null && echo alive"""
    done = sh(script, here)
    assert b"was stopped by somebody (SIGSTOP); there: kill -CONT " in done.stderr
    assert (here / "code").read_text() == "143\n"
    assert b"alive" not in done.stdout


SQUATTER = """
import os, pathlib, socket, time
held = []
while not held:
    for folder in pathlib.Path("nvrun-runs").glob("2*"):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].bind("\\0nvrun-%s-0" % folder.name)
time.sleep(30)
"""


def test_a_socket_that_somebody_took_is_named(here: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SQUATTER], cwd=here) as squatter:
        done = sh("$NVRUN --check off t.py", here)
        squatter.kill()
    assert done.returncode == 127, done.stderr
    assert b"torchrun could not be started: the socket @nvrun-" in done.stderr


def test_a_program_whose_interpreter_is_not_there_is_told_as_that(here: Path) -> None:
    done = sh("printf '#!/nowhere/sh\\n' >p; chmod +x p; $NVRUN --check off --no-python ./p", here)
    assert done.returncode == 127, done.stderr
    assert b"cannot run ./p: the interpreter that it names is not there" in done.stderr


def test_a_signal_that_comes_when_all_is_over_changes_nothing(here: Path) -> None:
    (here / "sitecustomize.py").write_text(
        "import atexit, os, signal\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    atexit.register(os.kill, os.getpid(), number)\n"
    )
    done = sh("PYTHONPATH=$PYTHONPATH:. $NVRUN --version", here)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("line", "code", "stderr"),
    [
        ("--help-all >/dev/full", 74, "nvrun: standard output: No space left on device\n"),
        ("--version >/dev/full", 74, "nvrun: standard output: No space left on device\n"),
        ("--nonsense 2>/dev/full", 2, ""),
        ("--help-all >&3", 141, ""),
        ("--version >&3", 141, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_nobody_takes_is_no_fault_of_nvrun(
    here: Path, line: str, code: int, stderr: str, unbuffered: str
) -> None:
    done = sh(f"exec 3> >(:); wait $!; $NVRUN {line}", here, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr.decode()) == (code, stderr)


def test_a_run_whose_folder_is_gone_points_to_no_file_in_it(here: Path) -> None:
    (here / "t.py").write_text("import shutil; shutil.rmtree('nvrun-runs'); raise SystemExit(4)")
    done = sh("$NVRUN --check off t.py", here)
    assert done.returncode == 4
    assert b"result.json cannot be written" in done.stderr
    assert done.stderr.decode().splitlines()[-1].endswith("(local rank 0) exited with 4")
