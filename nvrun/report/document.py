"""What `--json` prints: one object whose lists have names. Pure."""

from __future__ import annotations

import msgspec


def document(**parts: object) -> str:
    """`document(findings=[...])` -> indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(parts), indent=1).decode() + "\n"
