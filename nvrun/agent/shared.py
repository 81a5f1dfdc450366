"""Whether a folder is the same on several hosts: one leaves a token in it, the others look for it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict

from .standing import Say, wait

_LOOKS = (0.0, 0.3, 1.0)
"""Pauses before each look, seconds: NFS keeps what it knows of a folder for a while (nfs(5), acdirmin)."""


def _file(request: Dict[str, str]) -> str:
    return os.path.join(os.path.expanduser(request["path"]), ".nvrun-" + request["token"])


def leave(request: Dict[str, str], say: Say, until: int) -> None:
    """Writes the token, says so or why it cannot, and removes it once `until` can be read."""
    path = _file(request)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except OSError as error:
        say({"error": error.strerror})
        return
    try:
        say({"error": ""})
        wait(until)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def look(request: Dict[str, str]) -> Dict[str, Any]:
    """Whether the token is there, and `error` where the folder itself cannot be read."""
    path = _file(request)
    for pause in _LOOKS:
        time.sleep(pause)
        try:
            names = os.listdir(os.path.dirname(path))  # reading the folder makes a network file system look again
        except OSError as error:
            return {"seen": False, "error": error.strerror}
        if os.path.basename(path) in names:
            return {"seen": True, "error": ""}
    return {"seen": False, "error": ""}
