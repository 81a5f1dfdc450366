"""Files that the user named, read whole but never without end."""

from __future__ import annotations

from nvrun.errors import UsageError

LARGEST = 16 << 20
"""Bytes of a host list, an environment file or a binding file: a line for each of 65536 hosts is 4 MiB."""


def read_bytes(path: str, named_by: str = "", largest: int = LARGEST) -> bytes:
    """All of a file, or of what comes through a pipe; `named_by` tells who named it. UsageError where it cannot be
    read, or has more than `largest` bytes (/dev/zero has)."""
    shown = f"{path} ({named_by})" if named_by else path
    try:
        with open(path, "rb") as file:
            data = file.read(largest + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{shown}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > largest:
        raise UsageError(f"{shown}: longer than {largest >> 20} MiB")
    return data


def read_text(path: str, named_by: str = "") -> str:
    """`read_bytes` as text. UsageError where it is not UTF-8."""
    try:
        return read_bytes(path, named_by).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} ({named_by}): not UTF-8 text" if named_by else f"{path}: not UTF-8 text") from None
