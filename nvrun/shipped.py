"""Where the data that comes with nvrun lies: presets and hooks."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """The folder of `presets` or `hooks`: inside an installed wheel, else at the top of the checkout.

    Nothing is checked: a folder that is not there holds no presets.
    """
    inside = _PACKAGE / "_shipped" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
