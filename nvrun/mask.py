"""What looks like a secret, by its name or by its shape, and is never shown. Pure."""

from __future__ import annotations

import re

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL|PRIVATE", re.IGNORECASE)
_SECRET_SHAPE = re.compile(r"(hf_|sk-|ghp_|gho_|AKIA|xox[bp]-|eyJ)[A-Za-z0-9_.-]{8,}|://[^/@:]+:[^/@]+@")


def masked(name: str, value: str) -> str:
    """`***` for what looks like a secret, by its name or by its shape."""
    return "***" if _SECRET.search(name) or _SECRET_SHAPE.search(value) else value
