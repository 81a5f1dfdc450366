"""What `--json` prints: one object whose lists have names. Pure."""

from __future__ import annotations

from nvrun.records import to_json


def document(**parts: object) -> str:
    """`document(findings=[...])` -> indented JSON with a newline at its end."""
    return to_json(parts).decode() + "\n"
