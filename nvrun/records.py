"""JSON as nvrun writes it, and reads what somebody may have edited. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_ESCAPES = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)")
"""A backslash itself, a character beyond 16 bits, and the half of one."""


def to_json(value: object) -> bytes:
    """Indented JSON. A byte of an argument or a file name that is not UTF-8 is shown as `\\udcff`, in six letters: a
    record of it, where JSON has no way to hold the byte itself."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = json.dumps(_readable(msgspec.to_builtins(value))).encode()
    return msgspec.json.format(data, indent=1)


def from_json(data: bytes, kind: type[_T]) -> _T:
    """`data` as a value of that type. Raises msgspec.DecodeError, or its ValidationError, in words that say what is
    wrong where."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # of half a character msgspec says that the input was cut off there
        half = next((found for found in _ESCAPES.finditer(data) if found["half"]), None)
        if half is None:
            raise
        shown = half["half"].decode(errors="replace")
        raise msgspec.DecodeError(f"{shown} at byte {half.start()} is half a character (a lone surrogate)") from None


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    return value
