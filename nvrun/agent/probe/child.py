"""Calls that may block for ever, each in a forked child with a deadline, side by side.

A child that cannot be killed (a dead file server, a wedged driver) is left alone and its answer is the time it had.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from .. import procs


class UnreadError(Exception):
    """A fact cannot be read on this host; the message says why, in a few words."""


class Call(NamedTuple):
    """What to run, and the seconds it has."""

    function: Callable[[], Any]
    deadline: float
    child: str = ""
    """Calls of the same child are made one after another in it, within the deadline of the first. A fork costs 1 to
    2 ms of CPU, more than most readings. Empty: a child of its own."""


class Answer(NamedTuple):
    """`value` (what JSON holds), or why there is none; `seconds` it took."""

    value: Any
    error: str | None
    seconds: float


def ask(calls: Mapping[str, Call]) -> dict[str, Answer]:
    """Runs all calls at once and answers within the longest deadline. To be called before threads are started."""
    started = time.monotonic()
    children: dict[str, dict[str, Call]] = {}
    for name, call in calls.items():
        children.setdefault(call.child or f"{name} alone", {})[name] = call
    running = {}
    answers: dict[str, Answer] = {}
    for own in children.values():
        try:
            pid, pipe = _fork(own)
        except OSError as error:  # no process or no descriptor left: what the others read says why
            answers |= dict.fromkeys(own, Answer(None, reason(error), 0.0))
            continue
        running[pipe] = (tuple(own), pid, next(iter(own.values())).deadline)
    received: dict[int, list[bytes]] = {pipe: [] for pipe in running}
    poll = select.poll()
    for pipe in running:
        poll.register(pipe, select.POLLIN)
    while running:
        now = time.monotonic() - started
        for pipe in [pipe for pipe, (_, _, deadline) in running.items() if deadline <= now]:
            names, pid, deadline = running.pop(pipe)
            answers |= _answers(names, received[pipe], Answer(None, f"no answer in {deadline:g} s", now))
            _drop(poll, pipe)
            os.kill(pid, signal.SIGKILL)
            _reap(pid, wait=False)
        if not running:
            break
        patience = min(deadline for _, _, deadline in running.values()) - now
        for pipe, _ in poll.poll(max(0, patience * 1000) + 1):
            chunk = os.read(pipe, 1 << 16)
            if chunk:
                received[pipe].append(chunk)
                continue
            names, pid, _ = running.pop(pipe)
            _drop(poll, pipe)
            answers |= _answers(names, received[pipe], Answer(None, _died(_reap(pid, wait=True)), 0.0))
    return answers


def reason(error: BaseException) -> str:
    """An exception in a few words: `/etc/x: Permission denied`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, UnreadError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _fork(calls: Mapping[str, Call]) -> tuple[int, int]:
    read, write = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if pid:
        os.close(write)
        return pid, read
    try:
        procs.set_pdeathsig(signal.SIGKILL)  # nobody reads on for an agent that is gone
        if os.getppid() != parent:
            os._exit(0)
        _leave_parent(write, next(iter(calls.values())).deadline)
        for call in calls.values():
            data = json.dumps(_reply(call)).encode() + b"\n"
            while data:
                data = data[os.write(write, data) :]
    finally:
        os._exit(0)


def _reply(call: Call) -> dict[str, Any]:
    started = time.monotonic()
    reply: dict[str, Any] = {}
    try:
        reply["value"] = call.function()
    except Exception as error:  # noqa: BLE001 - whatever a reading raises is why the fact is missing
        reply["error"] = reason(error)
    return {**reply, "seconds": round(time.monotonic() - started, 4)}


def _leave_parent(write: int, deadline: float) -> None:
    """Holds nothing of the parent's open, so that one that stays behind keeps no connection alive."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(int(deadline) + 2)  # also ends it where its parent hangs
    os.closerange(3, write)
    os.closerange(write + 1, 4096 if write < 4096 else write + 4096)
    null = os.open(os.devnull, os.O_RDWR)  # only now: there may have been none left
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)


def _answers(names: tuple[str, ...], received: list[bytes], otherwise: Answer) -> dict[str, Answer]:
    """What a child answered, a line each; `otherwise` for the call that it never came back from. The calls behind that
    one were not made."""
    lines = b"".join(received).split(b"\n")[:-1]
    answers: dict[str, Answer] = {}
    for name, line in zip(names, lines):  # noqa: B905 - no strict= in Python 3.9
        reply = json.loads(line)
        answers[name] = Answer(reply.get("value"), reply.get("error"), reply["seconds"])
    for name in names[len(lines) :]:
        answers[name] = otherwise
        otherwise = Answer(None, f"not read, behind {names[len(lines)]}: {answers[names[len(lines)]].error}", 0.0)
    return answers


def _died(status: int | None) -> str:
    if status is None:
        return "the reading process died"
    if os.WIFSIGNALED(status):
        return f"the reading process died (signal {os.WTERMSIG(status)})"
    return f"the reading process died (status {os.WEXITSTATUS(status)})"


def _drop(poll: Any, pipe: int) -> None:
    poll.unregister(pipe)
    os.close(pipe)


def _reap(pid: int, *, wait: bool) -> int | None:
    """The wait status; None where somebody else reaped it or it does not end."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(1 if wait else 50):
            done, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
            if done:
                return status
            time.sleep(0.002)
    return None
