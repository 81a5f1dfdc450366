"""What stops nvrun itself. Bad news about a cluster is never an exception: it is a `model.Finding`."""

from __future__ import annotations


class NvrunError(Exception):
    """nvrun cannot go on. `message` is one line for the user; `hint`, where there is one, says what to do."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NvrunError):
    """The command line, a file or a variable says something nvrun cannot take (exit 2)."""

    exit_code = 2
