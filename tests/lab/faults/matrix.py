"""The fault matrix: what befalls a job, what nvrun must say and how soon nothing may be left of it.

test_matrix.py runs those that take a moment; `python -m tests.lab.faults` runs all of them, beside bare torchrun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import faults
from tests.lab.faults import setting
from tests.lab.lab import USER, Lab, wait_for
from tests.lab.processes import Process
from tests.spine.jobs import RANK, Job, Way, command, job, lives, result, signal_group, up

LINES = 200
"""What each rank prints before anything happens: no fault may lose a line of it."""
PATIENCE = 20.0
"""Seconds after which what bare torchrun left behind is taken to stay for good."""
BARE_PORT = 29777

Around = Callable[[Lab, Path], AbstractContextManager[None]]


class Fault(NamedTuple):
    """One row: two hosts a and b with two ranks each, unless `whole` runs a job of its own."""

    what: str
    happens: Callable[[Job], object] = Job.go
    """The fault, once all ranks are up. Seconds count from its end."""
    code: int | None = 0
    """nvrun's exit code; None where nobody is left to be told."""
    ended_by: str | None = "success"
    """In result.json; None where it cannot be written."""
    words: Sequence[str] = ()
    """What nvrun says on stderr; in the table the line with the first of them."""
    within: float = 20.0
    """Seconds in which nvrun must have ended and nothing of the run be left on any host."""
    way: Way = "ssh"
    actions: Sequence[str] = ("wait",)
    flags: Sequence[str] = ()
    prefix: Sequence[str] = ()
    user: str = "root"
    around: Sequence[Around] = ()
    """What is wrong before the job starts."""
    terminal: bool = False
    """Started in a terminal, as a user does."""
    starts: bool = True
    """False: nvrun refuses it, so no rank ever runs."""
    stuck: bool = False
    """One process cannot end before the fault is mended."""
    elsewhere: Sequence[str] = ()
    """Hosts whose logs stay with them, since the run's folder takes none."""
    bare: bool = True
    """Bare torchrun can meet it too."""
    by_hand: bool = False
    """Too long for the suite."""


class Seen(NamedTuple):
    """How it went."""

    code: int
    seconds: float | None
    """From the end of the fault until the launcher had ended and nothing was left; None: something stayed."""
    said: str


# ---------------------------------------------------------------------------------------------------- what happens


def hangs(seconds: float, job: Job) -> None:
    with faults.hung_host(job.lab, "b"):
        time.sleep(seconds)
    time.sleep(3.0)  # a heartbeat comes every 2 s
    job.go()


def loses_power(job: Job) -> None:
    """Not even a reset comes from it any more."""
    cable = faults.cut(job.lab, "b")
    cable.__enter__()
    job.mend = lambda: cable.__exit__(None, None, None)
    for pid in job.lab.pids("b"):
        with contextlib.suppress(ProcessLookupError):  # it went with one that it was part of
            os.kill(pid, signal.SIGKILL)


def is_stuck(job: Job) -> None:
    """One rank waits for a device that never answers; then the user has enough of it."""
    ice = faults.frozen([job.processes("b")["rank"][0].pid])
    ice.__enter__()
    job.mend = lambda: ice.__exit__(None, None, None)
    signal_group(leader(job), signal.SIGINT)


def launcher_stops(seconds: float, job: Job) -> None:
    """The ranks go on at their pace: what they print has nowhere to go but the run's folder."""
    before = pace(job, 1.0)
    signal_group(leader(job), signal.SIGSTOP)
    during = pace(job, seconds)
    signal_group(leader(job), signal.SIGCONT)
    job.running.send_signal(signal.SIGCONT)  # the lab's nsenter stops with what it started
    (job.place / "rates").write_text(f"{during / before:.2f} of the pace before")
    if is_nvrun(job):
        assert during > 0.5 * before, f"{during:.0f} steps a second while nvrun was stopped, {before:.0f} before"
    job.go()


def pace(job: Job, seconds: float) -> float:
    """Steps a second of the slowest rank; 0 for one that stands still in the second half."""

    def steps() -> list[int]:
        return [int((job.place / f"ready.{rank}.paced").read_text() or 0) for rank in range(4)]

    wait_for(lambda: all((job.place / f"ready.{rank}.paced").exists() for rank in range(4)), "steps")
    first = steps()
    time.sleep(seconds)
    return min(now - then for now, then in zip(steps(), first, strict=True)) / seconds


def terminal_closes(job: Job) -> None:
    os.close(int((job.place / "terminal").read_text()))


def terminal_closes_and_it_goes_on(job: Job) -> None:
    terminal_closes(job)
    time.sleep(0.5)
    job.go()


def flaps(times: int, job: Job) -> None:
    for _ in range(times):
        with faults.cut(job.lab, "b"):
            time.sleep(0.2)
        time.sleep(0.1)
    job.go()


def clock_jumps(job: Job) -> None:
    """By the launcher's clock the run ends before it began."""
    job.lab.path("launcher", setting.CLOCK).write_text("-2h")
    job.go()


def fills(place: str, directory: str, job: Job) -> None:
    """The last byte of that disk is taken, and then the ranks print on."""
    path = str(job.place / directory) if not directory.startswith("/") else directory
    job.lab.exec(place, ["dd", "if=/dev/zero", f"of={path}/filler", "bs=4k"])
    job.go()


def turns_read_only(job: Job) -> None:
    job.lab.exec("launcher", ["mount", "-o", "remount,ro", str(job.place / "runs")], check=True)
    job.go()


# ------------------------------------------------------------------------------------------- what is wrong before it


def disk(place: str, directory: str, options: str = "size=2m") -> Around:
    """A small disk of its own for that directory (of the test's place, unless absolute) on that place alone."""

    @contextlib.contextmanager
    def around(lab: Lab, where: Path) -> Iterator[None]:
        path = where / directory
        path.mkdir(mode=0o700, exist_ok=True)
        if not directory.startswith("/"):
            path.chmod(0o755)
        # Another host sees the same folder without the disk, and may remove an empty one: its mounts go with it.
        kept = path / "kept"
        kept.mkdir(exist_ok=True)
        try:
            with faults.mounted(lab, place, str(path), options):
                yield
        finally:
            kept.rmdir()

    return around


@contextlib.contextmanager
def the_same_port(lab: Lab, where: Path) -> Iterator[None]:
    """Another run has the port on a, and its ranks are up."""
    (where / "first").mkdir()
    (where / "first").chmod(0o777)
    with job(lab, where / "first", ["sleep"], hosts=("a",), ranks=1, flags=["--master-port", str(BARE_PORT)]) as first:
        yield
        assert first.running.poll() is None, "the run that came first goes on"
        first.running.kill()
        wait_for(lambda: not first.processes("a"), "the end of the first run")


MATRIX = (
    Fault("b hangs for 12 s and is back", partial(hangs, 12.0), by_hand=True,
          words=("nothing heard from b for", "b is heard again")),
    Fault("b loses its power, --lost-after 10", loses_power, 69, "lost", by_hand=True, within=25.0,
          words=("lost b: nothing heard for",), flags=("--lost-after", "10")),
    Fault("a rank in uninterruptible wait, then Ctrl-C, --grace 2", is_stuck, 130, "signal", stuck=True,
          words=("cannot be ended (uninterruptible wait)",), flags=("--grace", "2"), actions=("sleep",)),
    Fault("the launcher is stopped for 3 s", partial(launcher_stops, 3.0), actions=("pace",), bare=False),
    Fault("the launcher is stopped for 60 s", partial(launcher_stops, 60.0), actions=("pace",), by_hand=True),
    Fault("nvrun and srun are stopped for 30 s", partial(launcher_stops, 30.0), actions=("pace",), by_hand=True,
          way="srun", bare=False),
    Fault("the terminal is closed", terminal_closes, None, "signal", terminal=True, actions=("sleep",)),
    Fault("the terminal is closed, under nohup", terminal_closes_and_it_goes_on, None, terminal=True, bare=False,
          prefix=("nohup",)),
    Fault("the disk of the run's folder fills up", partial(fills, "launcher", "runs"), ended_by=None, bare=False,
          words=("logs of a could not be written here", "result.json cannot be written"), elsewhere=("a", "b"),
          around=(disk("launcher", "runs"),)),
    Fault("the disk of b's logs fills up", partial(fills, "b", "/tmp/nvrun-0"), bare=False,
          words=("bytes of output could not be written to", "nvrun: b: "), actions=("wait", "lines:20000"),
          around=(disk("launcher", "runs", "size=16m"), disk("b", "/tmp/nvrun-0", "size=1m"))),
    Fault("the run's folder is read-only", code=2, ended_by=None, starts=False, bare=False,
          words=("no place for the run's folder",), around=(disk("launcher", "runs", "ro"),)),
    Fault("the run's folder turns read-only", turns_read_only, ended_by=None, bare=False, by_hand=True,
          words=("could not be written here: ", "Read-only file system"), elsewhere=("a", "b"),
          around=(disk("launcher", "runs"),)),
    Fault("the launcher's clock jumps back by two hours, then rank 3 exits with 37", clock_jumps, 37, "rank",
          bare=False, words=("rank 3 on b (local rank 1)",), actions=("wait", "fail:3:37", "sleep"),
          around=(setting.own_clock,), prefix=setting.OWN_CLOCK),
    Fault("two runs want the same port", code=78, ended_by="preflight", starts=False,
          words=("port 29777 is taken by",), around=(the_same_port,),
          flags=("--master-port", str(BARE_PORT))),
    Fault("b has Python 3.9, a another", code=78, ended_by="preflight", starts=False, bare=False,
          words=("python-version-differs",), flags=setting.OTHER_PYTHON, around=(setting.other_python,)),
    Fault("all of the next at once", user=USER, within=15.0, bare=False,
          around=(setting.slow_login, setting.noise, setting.no_home, setting.noexec)),
    Fault("b's sshd takes 3 s for a login", around=(setting.slow_login,), by_hand=True),
    Fault("b's sshd drops connections (MaxStartups)", around=(setting.crowded,), by_hand=True),
    Fault("a banner, and .bashrc that prints", user=USER, around=(setting.noise,), by_hand=True),
    Fault("no home folder on b", user=USER, around=(setting.no_home,), by_hand=True),
    Fault("/tmp of b is noexec", around=(setting.noexec,), by_hand=True),
    Fault("b's cable is out for 0.2 s, 100 times", partial(flaps, 100), by_hand=True),
)  # fmt: skip


# -------------------------------------------------------------------------------------------------- how it is watched


def is_nvrun(job: Job) -> bool:
    return (job.place / "runs").exists()


def leader(job: Job) -> Process:
    """nvrun, or the shell that started both torchruns: its group is what a terminal's signals reach."""
    return next(p for p in job.lab.processes("launcher") if p.pid == job.running.target)


def launched(lab: Lab, place: Path, fault: Fault, **options: Any) -> AbstractContextManager[Job]:
    return job(lab, place, [f"lines:{LINES}", *fault.actions], way=fault.way, flags=fault.flags, prefix=fault.prefix,
               user=fault.user, **options)  # fmt: skip


@contextlib.contextmanager
def bare(lab: Lab, place: Path, fault: Fault, **options: Any) -> Iterator[Job]:
    """The same ranks by torchrun itself, one ssh a host, as a shell script does it. Exit code: the first bad one."""
    lines = []
    for node, host in enumerate(("a", "b")):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}"]
        torchrun += ["--nproc-per-node=2", "--master-addr=a", f"--master-port={BARE_PORT}", "--redirects=3"]
        torchrun += [f"--log-dir={place}/bare", str(RANK), "ready", f"lines:{LINES}", *fault.actions]
        inner = f"cd {shlex.quote(str(place))}; READY={place}/ready exec {shlex.join(torchrun)}"
        lines.append(f"ssh {host} {shlex.quote(inner)} & p{node}=$!")
    script = "\n".join([*lines, "wait $p0; r0=$?; wait $p1; r1=$?; [ $r0 = 0 ] || exit $r0; exit $r1"])
    argv = [*fault.prefix, "sh", "-c", script]
    with up(lab, place, argv, ("a", "b"), 2, "ssh", user=fault.user, **options) as running:
        yield running


def suffer(lab: Lab, place: Path, fault: Fault) -> Seen:
    """nvrun meets the fault. AssertionError where a promise does not hold."""
    with ExitStack() as stack:
        for around in fault.around:
            stack.enter_context(around(lab, place))
        if not fault.starts:
            return refused(lab, place, fault)
        running, err = start(stack, launched, lab, place, fault)
        code, seconds = endure(running, fault, fault.within)
        stderr = err.read_text()
        assert seconds is not None, f"left: {[running.processes(host) for host in running.hosts]}; {stderr}"
        assert fault.code in (None, code), f"nvrun ended with {code}: {stderr}"
        if fault.ended_by:
            told = result(lab.path("launcher", place))
            assert told["ended_by"] == fault.ended_by, stderr
            assert 0 < told["seconds"] < 600, told["seconds"]
        for words in fault.words:
            assert words in stderr, f"expected {words!r}: {stderr}"
        said = next((line for line in stderr.splitlines() if fault.words and fault.words[0] in line), "")
        no_line_is_lost(lab, place, fault)
    if fault.ended_by and fault.code == 0 and not fault.words:
        said = (place / "rates").read_text() if (place / "rates").exists() else ""
    return Seen(code, seconds, said.removeprefix("nvrun: "))


def suffer_bare(lab: Lab, place: Path, fault: Fault) -> Seen:
    """torchrun meets it."""
    with ExitStack() as stack:
        for around in fault.around:
            stack.enter_context(around(lab, place))
        if not fault.starts:
            return bare_refused(lab, place, fault)
        stack.callback(end_all, lab, place)  # what torchrun left behind is not the next fault's
        try:
            running, _ = start(stack, bare, lab, place, fault)
        except TimeoutError:
            return Seen(-9, None, "its ranks never came up")
        code, seconds = endure(running, fault, PATIENCE)
        end_all(lab, place)
    said = (place / "rates").read_text() if (place / "rates").exists() else ""
    return Seen(code, seconds, said)


def end_all(lab: Lab, place: Path) -> None:
    """KILLs what carries the place's name on any host."""
    for pid in (pid for host in lab.hosts for pid in lab.pids(host, str(place))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(stack: ExitStack, how: Callable[..., AbstractContextManager[Job]], lab: Lab, place: Path, fault: Fault
          ) -> tuple[Job, Path]:  # fmt: skip
    """The job with all its ranks up, and the file that takes its standard error."""
    err = place / "stderr"
    stderr = stack.enter_context(err.open("wb"))
    options: dict[str, Any] = {"cwd": place, "stdout": subprocess.DEVNULL, "stderr": stderr}
    if fault.terminal:
        ours, theirs = os.openpty()
        stack.callback(os.close, theirs)
        (place / "terminal").write_text(str(ours))
        options |= {"stdin": theirs, "stdout": theirs, "preexec_fn": in_a_terminal}
    try:
        return stack.enter_context(how(lab, place, fault, **options)), err
    except AssertionError as error:
        raise AssertionError(f"{error}: {err.read_text()}") from None


def in_a_terminal() -> None:
    """Standard input is the terminal of this session, and its end is told, whoever started the test."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def endure(job: Job, fault: Fault, patience: float) -> tuple[int, float | None]:
    """Exit code, and seconds until all was gone, or None."""
    try:
        fault.happens(job)
        began = time.monotonic()
        while time.monotonic() - began < patience:
            left = [each for host in job.hosts for kind in job.processes(host).values() for each in kind]
            if len([each for each in left if lives(each.pid)]) <= fault.stuck and job.running.poll() is not None:
                break
            time.sleep(0.02)
        else:
            job.running.kill()
            return job.running.wait(), None
        seconds = time.monotonic() - began
    finally:
        job.mend()
    wait_for(lambda: not any(job.processes(host) for host in job.hosts), "the end of what was stuck")
    return job.running.wait(), seconds


def refused(lab: Lab, place: Path, fault: Fault) -> Seen:
    began = time.monotonic()
    arguments: list[str | Path] = ["--nproc-per-node", "2", "--run-dir", place / "runs", *fault.flags, RANK, "ready"]
    done = lab.run(command(lab, fault.way, ("a", "b"), arguments, place), user=fault.user, timeout=60)
    seconds = time.monotonic() - began
    assert done.returncode == fault.code, done.stderr
    assert not (place / "ready.0").exists(), "a rank ran"
    for words in fault.words:
        assert words in done.stderr, done.stderr
    if fault.ended_by:
        assert result(place)["ended_by"] == fault.ended_by
    said = next(line for line in done.stderr.splitlines() if fault.words[0] in line)
    return Seen(done.returncode, seconds, said.removeprefix("nvrun: "))


def bare_refused(lab: Lab, place: Path, fault: Fault) -> Seen:
    """torchrun looks at nothing before it starts: it is given as long as a user would wait."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--master-addr=a",
            f"--master-port={BARE_PORT}", str(RANK), "ready"]  # fmt: skip
    ready = f"READY={place}/ready"
    with lab.popen(["env", ready, *argv], place="a") as running:
        try:
            running.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            return Seen(running.returncode, None, "")
    return Seen(running.returncode, time.monotonic() - began, "")


def no_line_is_lost(lab: Lab, place: Path, fault: Fault) -> None:
    """Each rank's file has what it printed before anything happened: in the run's folder, or where its host has it."""
    for rank in range(4):
        host = "ab"[rank // 2]
        wanted = "".join(f"line {number} of rank {rank}\n" for number in range(LINES))
        if host in fault.elsewhere:
            run = lab.path("launcher", place / "runs/latest").readlink()
            folder = Path(f"/tmp/nvrun-0/{run}.{rank // 2}")
            assert (folder / f"rank{rank}.out").read_text().startswith(wanted), f"rank {rank}: lines are missing"
            if rank % 2:  # the last of its host: what was left there for the user goes with the test
                shutil.rmtree(folder)
        else:
            path = lab.path("launcher", place / f"runs/latest/logs/{host}/rank{rank}.out")
            assert path.read_text().startswith(wanted), f"rank {rank}: lines are missing in {path}"
