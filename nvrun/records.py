"""JSON as nvrun writes it. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def to_json(value: object) -> bytes:
    """Indented JSON. A byte of an argument or a file name that is not UTF-8 is shown as `\\udcff`, in six letters: a
    record of it, where JSON has no way to hold the byte itself."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = json.dumps(_readable(msgspec.to_builtins(value))).encode()
    return msgspec.json.format(data, indent=1)


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    return value
