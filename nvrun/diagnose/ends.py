"""How a process ended, in words."""

from __future__ import annotations

import signal
from typing import NamedTuple

from nvrun.diagnose.rule import Stage
from nvrun.model import RankEnd

MEMORY = (
    "Ask for more memory (--mem, the container's limit), or use less: fewer data loader workers, a model that is "
    "loaded once per host, no pinned copies"
)


class Ending(NamedTuple):
    """What an exit status says."""

    code: str
    stage: Stage
    text: str
    """`exit code 1`, `signal 9 (SIGKILL)`."""
    meaning: str
    remedy: str
    confidence: float


_SIGNALS: dict[int, tuple[str, Stage, str, str, float]] = {
    signal.SIGKILL: (
        "rank-killed",
        Stage.SYMPTOM,
        "killed from outside: most often by the kernel because the host's memory ran out",
        "dmesg -T | grep -i 'killed process' on that host; ask for more memory or use fewer data loader workers",
        0.6,
    ),
    signal.SIGSEGV: (
        "segfault",
        Stage.PROGRAM,
        "it crashed in native code",
        "Its stderr has Python's stack (with PYTHONFAULTHANDLER=1, as nvrun sets it); look for mixed library versions",
        0.8,
    ),
    signal.SIGBUS: (
        "bus-error",
        Stage.SYMPTOM,
        "a bus error: /dev/shm or a mapped file ran out of space",
        "df -h /dev/shm; --shm-size=8g or --ipc=host for a container",
        0.7,
    ),
    signal.SIGFPE: (
        "native-crash",
        Stage.PROGRAM,
        "an arithmetic error in native code",
        "Its stderr has Python's stack (with PYTHONFAULTHANDLER=1, as nvrun sets it)",
        0.7,
    ),
    signal.SIGILL: (
        "native-crash",
        Stage.SETUP,
        "an instruction that this CPU does not have: built for another CPU",
        "Rebuild or install packages for this CPU",
        0.8,
    ),
    signal.SIGABRT: (
        "rank-aborted",
        Stage.CONSEQUENCE,
        "it aborted itself: NCCL's watchdog after a failed collective, or an assertion in native code",
        "The lines just before in its stderr say why",
        0.5,
    ),
    signal.SIGXCPU: (
        "ended-by-signal",
        Stage.SETUP,
        "the limit of CPU time was used up (ulimit -t), as login nodes and schedulers set it",
        "Run it where there is no such limit, or raise it: ulimit -t unlimited",
        0.9,
    ),
    signal.SIGXFSZ: (
        "ended-by-signal",
        Stage.SETUP,
        "a file grew beyond the limit of file sizes (ulimit -f)",
        "Raise it: ulimit -f unlimited",
        0.9,
    ),
    signal.SIGSYS: (
        "ended-by-signal",
        Stage.SETUP,
        "it made a system call that seccomp forbids, as the profile of a container has it",
        "Allow that call, or try it with --security-opt seccomp=unconfined: its name is in the host's audit log",
        0.9,
    ),
    signal.SIGTERM: ("taken-down", Stage.CONSEQUENCE, "it was asked to end", "", 0.8),
    signal.SIGINT: ("taken-down", Stage.CONSEQUENCE, "it was interrupted (Ctrl-C)", "", 0.8),
    signal.SIGHUP: ("taken-down", Stage.CONSEQUENCE, "its terminal or session was closed", "Use tmux or nohup", 0.8),
}


def decode(status: int) -> Ending:
    """What an exit status means: -n and 128+n are signal n."""
    number = -status if status < 0 else status - 128 if 128 < status < 128 + 65 else 0
    if number == 0:
        text = f"exit code {status}"
        if status == 2:
            meaning, remedy = "bad arguments, or the script's own code", "The first lines of its stderr say which"
        elif status in (126, 127):  # POSIX, sh(1)
            what = "could not be run" if status == 126 else "was not found"
            meaning, remedy = f"a command {what}, or the script's own code", "The last line of its stderr names it"
        else:
            meaning, remedy = "the script raised an exception or called exit", "Its stderr has the traceback"
        return Ending("script-failed", Stage.SYMPTOM, text, meaning, remedy, 0.5)
    try:
        name = f" ({signal.Signals(number).name})"
    except ValueError:
        name = ""
    unknown = ("ended-by-signal", Stage.SYMPTOM, "it was ended by a signal", "Look who sent it", 0.4)
    code, stage, meaning, remedy, confidence = _SIGNALS.get(number, unknown)
    return Ending(code, stage, f"signal {number}{name}", meaning, remedy, confidence)


def decode_end(end: RankEnd) -> Ending:
    """What the end of a rank means, with what it last wrote to stderr, and what the kernel counted meanwhile: SIGKILL
    by itself does not say who sent it."""
    ending = decode(end.code or 0)
    if ending.code == "script-failed" and not end.tail:
        return ending._replace(
            meaning="it ended itself with that code, and wrote nothing to stderr",
            remedy=f"Look where the program ends with {end.code} (sys.exit, os._exit, exit in a library); its stdout "
            "may say more",
            confidence=0.9,
        )
    if end.oom is None or ending.code != "rank-killed":
        return ending
    if end.oom.kills == 0:
        return ending._replace(
            meaning="killed from outside, and not by the kernel for want of memory: its OOM killer killed nothing in "
            f"{end.oom.where} meanwhile",
            remedy="Look who sent it: the scheduler, a container's runtime, an operator, systemd-oomd (journalctl)",
            confidence=0.8,
        )
    several = "a process" if end.oom.kills == 1 else f"{end.oom.kills} processes"
    return ending._replace(
        code="oom-killed",
        stage=Stage.HOST,
        meaning=f"the kernel's OOM killer killed {several} of {end.oom.where} while it ran: the memory was used up",
        remedy=MEMORY,
        confidence=0.97 if end.oom.where == "its cgroup" or end.oom.line else 0.85,
    )
