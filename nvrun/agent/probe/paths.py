"""The script, the working directory and other paths that the job needs here; a child for each mount asks for them."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import Any

from . import system
from .child import Call, ask
from .tree import Tree

HASH_LIMIT = 64 << 20
PATIENCE = 2.0
"""Seconds for one path; a dead file server never answers."""


def paths(tree: Tree, wanted: list[str]) -> list[dict[str, Any]]:
    """The `PathFact` of each path."""
    mounts = system.mount_table(tree)
    answers = ask(
        {path: Call(partial(_path, tree, path), PATIENCE, system.mount_of(mounts, path)[0]) for path in wanted}
    )
    facts = []
    for path in wanted:
        fact = {"path": path, "exists": False, "filesystem": system.mount_of(mounts, path)[1] or None}
        facts.append({**fact, **(answers[path].value or {"error": answers[path].error})})
    return facts


def _path(tree: Tree, path: str) -> dict[str, Any]:
    real = tree.path(path)
    try:
        status = os.stat(real)
    except OSError as error:
        return {"exists": False, "error": error.strerror}
    if stat.S_ISDIR(status.st_mode):
        return {"exists": True, "kind": "directory", "readable": os.access(real, os.R_OK | os.X_OK)}
    if not stat.S_ISREG(status.st_mode):
        return {"exists": True, "kind": "other", "readable": os.access(real, os.R_OK)}
    fact = {"exists": True, "kind": "file", "size": status.st_size, "readable": os.access(real, os.R_OK)}
    if fact["readable"] and status.st_size <= HASH_LIMIT:
        fact["sha256"] = _sha256(real)
    return fact


def _sha256(path: str) -> str:
    import hashlib  # 5 ms, and only this child needs it

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
