"""A link: bytes to and from the agents of one or more hosts, whatever carries them."""

from __future__ import annotations

import fcntl
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from io import BufferedReader
from typing import Protocol, cast

from nvrun.errors import NvrunError

_KEPT = 16384


class Unreachable(NvrunError):
    """A host that no agent could be started on. `code` names the kind for the finding."""

    exit_code = 69

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


def no_room(message: str) -> Unreachable:
    """A host that is not to blame: this machine has no process or no thread left for it (fork(2): EAGAIN)."""
    hint = "where nvrun runs: raise ulimit -u, or pids.max of the login session or container; a host takes 3 threads"
    return Unreachable(f"not connected: {message}", code="host-no-transport", hint=hint)


class Link(Protocol):
    """Both directions block; `read` is called by one thread and `write` by another."""

    def read(self) -> bytes:
        """What came; empty at the end."""

    def write(self, data: bytes) -> None:
        """All of `data`; OSError when the other side is gone."""

    def close_write(self) -> None:
        """The agents see the end of their input."""

    def close(self) -> None:
        """Drops the link at once, even where the network is silent."""

    def said(self) -> str:
        """What came on standard error so far, the last of it."""

    def last_words(self) -> str:
        """The same at the link's end, and how the far command ended, as far as known. Waits for it a little."""


class ProcessLink:
    """A child process's pipes: the local agent, srun, `--rsh`, the ssh program."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the launcher's to handle; srun has rules of its own for it
            )
        except BlockingIOError as error:
            raise no_room(f"cannot run {argv[0]}: {error.strerror}") from None
        except OSError as error:
            raise Unreachable(f"cannot run {argv[0]}: {error.strerror}", code="host-no-transport") from None
        # Popen makes buffered readers of its pipes; its type does not say so.
        self._out, self._err = cast(BufferedReader, self._process.stdout), cast(BufferedReader, self._process.stderr)
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        try:
            self._listener.start()
        except RuntimeError:  # no thread left: nor is the process to stay
            self.close()
            raise

    def read(self) -> bytes:
        return self._out.read1(1 << 16)

    def write(self, data: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close_write(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def waiting(self, timeout: float) -> int | None:
        """Bytes that can be read; 0 at the end; None where none came in `timeout` seconds."""
        if not select.select([self._out], [], [], timeout)[0]:
            return None
        count = fcntl.ioctl(self._out, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(count, sys.byteorder)

    def said(self) -> str:
        return self._said.decode(errors="replace").strip()

    def last_words(self) -> str:
        self._listener.join(timeout=1.0)
        try:
            code: int | None = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        ended = "" if code is None else f"(ended with {code})"
        return f"{self.said()} {ended}".strip()

    def _listen(self) -> None:
        while data := self._err.read1(4096):
            self._said += data
            del self._said[:-_KEPT]
