"""Whether this host's ranks move: their Python stacks over some seconds, what works for them, NCCL's own count.

py-spy reads the stacks without stopping a rank. It is not part of nvrun: a host that has none says so, and tells of its
ranks only what /proc does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import IO, Any, Dict, List, NamedTuple, Optional, Tuple

from . import procs, ras

SAMPLES = 20
"""Of each rank about so many in one look of a second, more in a longer one: a loop that is at one line for 90 % of its
time shows it in all of 20 with a chance of 12 %, and in those of two ranks with one of 1.5 %."""
START_SECONDS = 20.0
"""What py-spy may take beyond the time that it samples: it reads the interpreter's symbols first."""
MOST_THREADS, MOST_FRAMES = 24, 48
_LIMIT_BYTES = 4 << 20
_TICKS = os.sysconf("SC_CLK_TCK")
_FRAME = re.compile(r"(.+) \((.+?)(?::(\d+))?\)")
_THREAD = re.compile(r"thread \(([^)]*)\)(?:: (.*))?")


def seconds(request: Dict[str, Any]) -> float:
    """What `look` takes at most."""
    return float(request["seconds"]) + START_SECONDS + (2 * ras.SECONDS if request["ras"] else 0.0)


def look(request: Dict[str, Any], ranks: Dict[int, int]) -> Dict[str, Any]:
    """`ranks`: rank -> pid. `request`: `seconds` (whole), `path` (where py-spy is looked for), `ras` (an address, or
    None).

    -> `ranks`: rank -> `pid`, `state` (a letter of proc(5), where it was the same before and after), `samples`,
    `threads` (name, share of the samples with this very stack, frames from the
    innermost on), `own_cpu` and `below_cpu` (CPUs used by its process, and used or waited for below it), `starved`
    (share of the time that it was ready to run and had no CPU), `faults` (page faults a second), `io` (bytes read and
    written a second, None where the kernel does not tell), `trouble` (why there are no threads); `ras`: NCCL's answer
    before and after.
    """
    counts = [ras.ask(request["ras"])] if request["ras"] else []
    program = shutil.which("py-spy", path=request["path"])
    before = {rank: _used(pid) for rank, pid in ranks.items()}
    states = {rank: _state(pid) for rank, pid in ranks.items()}
    began = time.monotonic()
    watched = {rank: _Watched(program, pid, int(request["seconds"])) for rank, pid in ranks.items()}
    if not program:
        time.sleep(request["seconds"])
    deadline = began + request["seconds"] + START_SECONDS - 1.0
    found: Dict[str, Any] = {}
    for rank, pid in ranks.items():
        seen = watched[rank].result(deadline)
        found[str(rank)] = {"pid": pid, "state": states[rank] if states[rank] == _state(pid) else "",
                            **seen, **_rates(before[rank], _used(pid), time.monotonic() - began)}  # fmt: skip
    counts += [ras.ask(request["ras"])] if request["ras"] else []
    return {"ranks": found, "ras": counts}


class _Watched:
    """py-spy beside one rank."""

    def __init__(self, program: Optional[str], pid: int, duration: int) -> None:
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._trouble = ""
        self._pid = _python_of(pid)
        if not program:
            self._trouble = "py-spy is not installed"
        elif self._pid is None:
            self._trouble = "no Python runs in it"
        else:
            self._start(program, self._pid, duration)

    def _start(self, program: str, pid: int, duration: int) -> None:
        # Both live as long as this child does, which is as long as the look.
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        argv = [program, "record", "--pid", str(pid), "--nonblocking", "--idle", "--threads", "--full-filenames",
                "--format", "raw", "--duration", str(duration), "--rate", str(max(2, -(-SAMPLES // duration))),
                "--output", "/proc/self/fd/%d" % self._out.fileno()]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=self._err, stderr=self._err, pass_fds=[self._out.fileno()],
                preexec_fn=lambda: procs.set_pdeathsig(signal.SIGKILL),
            )  # fmt: skip
        except OSError as error:
            self._trouble = "%s: %s" % (program, error.strerror)

    def result(self, deadline: float) -> Dict[str, Any]:
        """Waits for it until `deadline` (monotonic)."""
        if self._process:
            try:
                code = self._process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._trouble = "py-spy did not end in time"
            else:
                self._trouble = reason(_text(self._err)) if code else ""
        samples, threads = (0, []) if self._trouble else stacks(_text(self._out), self._pid)
        if not self._trouble and not threads:
            self._trouble = "py-spy saw no stack"
        return {"samples": samples, "threads": threads, "trouble": self._trouble}


def stacks(text: str, pid: Optional[int]) -> "Tuple[int, List[Dict[str, Any]]]":
    """py-spy's raw form, a line `thread (ID): NAME;outermost (FILE:LINE);...;innermost COUNT` a stack -> samples of the
    main thread, and of each thread the stack that was seen most; the main thread first. Nothing where that has no frame
    that is understood: what looks alike because it cannot be read must not pass for a rank that stands still."""
    counts: Dict[Tuple[str, str], Dict[str, int]] = {}
    for line in text.splitlines():
        head, _, number = line.rpartition(" ")
        thread, _, stack = head.partition(";")
        label = _THREAD.fullmatch(thread)
        if label and number.isdigit():
            # A name with a semicolon in it is cut there; what follows is no frame, and passed over below.
            of_thread = counts.setdefault((label[1], label[2] or ""), {})
            of_thread[stack] = of_thread.get(stack, 0) + int(number)
    found = []
    for (ident, name), of_thread in counts.items():
        total = sum(of_thread.values())
        most = max(of_thread, key=lambda stack: of_thread[stack])
        found.append((ident == str(pid) or name == "MainThread", total, {
            "name": name, "share": of_thread[most] / total, "frames": _frames(most)}))  # fmt: skip
    found.sort(key=lambda each: not each[0])
    if not found or not found[0][2]["frames"]:
        return 0, []
    return found[0][1], [each[2] for each in found[:MOST_THREADS]]


def _frames(stack: str) -> "List[List[Any]]":
    matches = [_FRAME.fullmatch(part) for part in stack.split(";")]
    frames = [[match[1], match[2], int(match[3] or 0)] for match in matches if match]
    return frames[::-1][:MOST_FRAMES]


def reason(words: str) -> str:
    """Why py-spy failed, in one line."""
    if re.search(r"permission denied|operation not permitted|os error (1|13)\b", words, re.IGNORECASE):
        return "py-spy may not read this process (Yama's ptrace_scope, or a rank that made itself not dumpable)"
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("py-spy>")]
    return "py-spy: " + (lines[0][:200] if lines else "it failed without a word")


def _text(file: "IO[bytes]") -> str:
    return os.pread(file.fileno(), _LIMIT_BYTES, 0).decode("utf-8", "replace")


def _python_of(pid: int) -> Optional[int]:
    """The rank's process, or the first below it in which Python runs: a shell or a profiler may stand before it."""
    return next((each for each in (pid, *sorted(procs.descendants(pid))) if _is_python(each)), None)


def _is_python(pid: int) -> bool:
    try:
        if os.path.basename(os.readlink("/proc/%d/exe" % pid)).startswith("python"):
            return True
        with open("/proc/%d/maps" % pid) as file:
            return "libpython" in file.read()
    except PermissionError:  # py-spy shall say so
        return True
    except OSError:
        return False


class _Used(NamedTuple):
    """Counters of a rank: seconds of CPU time, page faults, and bytes."""

    own: float
    below: float
    starved: float
    faults: int
    io: Optional[int]


def _used(pid: int) -> "Optional[_Used]":
    """None where it is gone."""
    first = _stat(pid)
    if first is None:
        return None
    (faults, own, below), io, wanted = first, _bytes(pid), 0.0
    for child in procs.descendants(pid):
        _, its, of_ended = _stat(child) or (0, 0, 0)
        below += its + of_ended
        wanted += _waited(child)
        io = None if io is None else io + (_bytes(child) or 0)
    return _Used(own / _TICKS, below / _TICKS + wanted, _waited(pid), faults, io)


def _stat(pid: int) -> "Optional[Tuple[int, int, int]]":
    """Page faults, CPU ticks, and those of its children that have ended (proc(5))."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read()
        fields = text[text.rindex(b")") + 2 :].split()
        minor, major, user, system, of_ended, system_of_ended = (int(fields[at]) for at in (7, 9, 11, 12, 13, 14))
        return minor + major, user + system, of_ended + system_of_ended
    return None


def _state(pid: int) -> str:
    found = procs.stat(pid)
    return found.state if found else ""


def _waited(pid: int) -> float:
    """Seconds that its main thread was ready to run and had no CPU (kernel, sched-stats.rst): where CPUs are short, a
    compiler gets few and wants them all the same."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/%d/schedstat" % pid) as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


def _bytes(pid: int) -> Optional[int]:
    """What it has read and written, of files, pipes and sockets, as far as read(2) and write(2) count it, and what came
    from a disk for it, mapped files too (proc(5))."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/%d/io" % pid) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar", "read_bytes")))
    return None


def _rates(before: Optional[_Used], after: Optional[_Used], elapsed: float) -> Dict[str, Any]:
    if before is None or after is None:
        return {"own_cpu": 0.0, "below_cpu": 0.0, "starved": 0.0, "faults": 0.0, "io": None,
                "trouble": "it has ended meanwhile"}  # fmt: skip
    return {
        "own_cpu": (after.own - before.own) / elapsed,
        "below_cpu": max(0.0, after.below - before.below) / elapsed,
        "starved": (after.starved - before.starved) / elapsed,
        "faults": (after.faults - before.faults) / elapsed,
        "io": None if before.io is None or after.io is None else max(0, after.io - before.io) / elapsed,
    }
