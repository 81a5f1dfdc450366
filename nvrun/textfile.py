"""Files that the user named, read whole but never without end, and who else could have written them."""

from __future__ import annotations

import os
import stat

from nvrun.errors import UsageError

LARGEST = 16 << 20
"""Bytes of a host list, an environment file or a binding file: a line for each of 65536 hosts is 4 MiB."""


_PIECE = 1 << 20


def read_bytes(path: str, named_by: str = "", largest: int = LARGEST) -> bytes:
    """All of a file, or of what comes through a pipe; `named_by` tells who named it. UsageError where it cannot be
    read, or has more than `largest` bytes (/dev/zero has)."""
    shown = f"{path} ({named_by})" if named_by else path
    try:
        with open(path, "rb") as file:
            pieces, left = [], largest + 1
            while left and (piece := file.read(min(left, _PIECE))):  # a read of `largest` would take that much memory
                pieces.append(piece)
                left -= len(piece)
        data = b"".join(pieces)
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


def written_by_others(status: os.stat_result) -> str:
    """Why somebody else could have put there what has this status; empty where only this user and root could.

    In a sticky folder (/tmp) nobody can replace what is another's.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}"
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky else ""
