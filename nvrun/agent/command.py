"""One command of a hook on this host: its output bounded, its time bounded, nothing of it left behind but daemons."""

from __future__ import annotations

import base64
import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional

from . import folder, procs

LIMIT_BYTES = 64 << 10
"""What is kept of each of stdout and stderr."""
_LAST_SECONDS = 0.2
"""For output that is still in the pipe when the command has ended; a daemon may hold the pipe open for good."""


def run(request: Dict[str, Any], mark: str) -> Dict[str, Any]:
    """Runs `argv` (or, in place of argv[0], `program`) to its end or for `timeout` seconds.

    -> `code` (-n for signal n; None where it never started), `stdout`, `stderr`, `cut_bytes`, `seconds`, `trouble`.
    """
    home: Optional[str] = None
    argv: List[str] = list(request["argv"])
    try:
        if request["program"] is not None:
            data = base64.b64decode(request["program"])
            home = folder.in_base(lambda base: tempfile.mkdtemp(prefix=_prefix(mark), dir=base))
            argv[0] = os.path.join(home, os.path.basename(argv[0]))
            with open(os.open(argv[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as file:
                file.write(data)
        return _run(argv, request, mark)
    finally:
        if home is not None:
            remove_programs(mark)


def remove_programs(mark: str) -> None:
    """Removes what a run's hooks put on this host, and the user's folder if that is empty then."""
    where = folder.place()
    with contextlib.suppress(OSError):
        for name in os.listdir(where):
            if name.startswith(_prefix(mark)):
                shutil.rmtree(os.path.join(where, name), ignore_errors=True)
        os.rmdir(where)  # refused where another run of this user's lives there


def _prefix(mark: str) -> str:
    return "hook-%s." % mark


def _run(argv: List[str], request: Dict[str, Any], mark: str) -> Dict[str, Any]:
    environment = {**request["defaults"], **os.environ, **request["set"], procs.MARK: mark, procs.HOOK_MARK: mark}
    began = time.monotonic()
    try:
        process = _start(argv, environment, request["cwd"])
    except OSError as error:
        return {"code": None, "trouble": "%s: %s" % (error.filename or argv[0], error.strerror)}
    deadline = began + request["timeout"]
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    cut = _pump(process, request["stdin"].encode(), kept, deadline)
    trouble = ""
    if process.poll() is None:
        trouble = "not done in %g s" % request["timeout"]
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return {
        "code": process.poll(),
        "stdout": kept["stdout"].decode("utf-8", "replace"),
        "stderr": kept["stderr"].decode("utf-8", "replace"),
        "cut_bytes": cut,
        "seconds": time.monotonic() - began,
        "trouble": trouble,
    }


def _start(argv: List[str], environment: Dict[str, str], cwd: str) -> "subprocess.Popen[bytes]":
    def in_child() -> None:
        procs.set_pdeathsig(signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # the agent ignores them
            signal.signal(number, signal.SIG_DFL)

    def start(line: List[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(line, env=environment, cwd=cwd if os.path.isdir(cwd) else "/", stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                preexec_fn=in_child)  # fmt: skip

    try:
        return start(argv)
    except PermissionError:
        interpreter = _interpreter(argv[0])
        if not interpreter:
            raise
        return start(interpreter + argv)  # a /tmp that is mounted noexec


def _interpreter(path: str) -> List[str]:
    """What the first line of a script names (execve(2): one argument at most)."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return []
    return [part.decode() for part in first[2:].strip().split(None, 1)] if first.startswith(b"#!") else []


def _pump(process: "subprocess.Popen[bytes]", stdin: bytes, kept: Dict[str, bytearray], deadline: float) -> int:
    """Feeds and reads until the command has ended; returns the bytes that were not kept."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    cut = 0
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, name)
        os.set_blocking(process.stdin.fileno(), False)
        if stdin:
            selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        else:
            process.stdin.close()
        while selector.get_map() and time.monotonic() < deadline:
            if process.poll() is not None:
                deadline = min(deadline, time.monotonic() + _LAST_SECONDS)
            for key, _ in selector.select(0.05):
                if key.data == "stdin":
                    try:
                        stdin = stdin[os.write(process.stdin.fileno(), stdin) :]
                    except BrokenPipeError:  # it does not want the rest
                        stdin = b""
                    if not stdin:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                room = LIMIT_BYTES - len(kept[key.data])
                kept[key.data] += data[:room]
                cut += max(0, len(data) - room)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    return cut
