"""nvrun's folders of the user's, where the XDG Base Directory Specification has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def config(environ: Mapping[str, str]) -> Path:
    """What the user wrote for nvrun: nvrun.yaml, presets, hooks."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config"), "nvrun")


def state(environ: Mapping[str, str]) -> Path:
    """What nvrun keeps from run to run."""
    return Path(environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/"), ".local/state"), "nvrun")
