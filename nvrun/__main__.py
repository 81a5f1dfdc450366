"""`python -m nvrun` and the console script."""

from __future__ import annotations

import codecs
import os
import signal
import sys


def main() -> None:
    _have_standard_streams()
    from nvrun.cli import main as run

    code = run(sys.argv[1:], dict(os.environ))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # nothing is left that could be ended
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _have_standard_streams() -> None:
    """Closed descriptors 0 to 2 (`nvrun >&-`) would be given to the next file or pipe; closed ones go nowhere instead.
    Any text can be printed, in any locale."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    codecs.register_error("nvrun", _printable)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="nvrun")  # type: ignore[union-attr]


def _printable(error: UnicodeError) -> tuple[bytes, int]:
    """An argument's byte that is no text comes out as it came in; what the locale cannot say, as an escape."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return b"".join(map(_bytes_of, text)), error.end


def _bytes_of(character: str) -> bytes:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return bytes([number - 0xDC00])
    return character.encode("ascii", "backslashreplace")


if __name__ == "__main__":
    main()
