"""known_hosts: which keys a host may show. Pure; the format of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.

Read line by line: one that is not understood costs nobody else (paramiko's own reader raises at a @cert-authority).
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Judgement = Literal["known", "unknown", "changed", "revoked", "authority"]
"""`authority`: only a @cert-authority line speaks for the host, and a plain key was shown."""


class Entry(NamedTuple):
    """One line that speaks of the host."""

    marker: str
    """Empty, `@cert-authority` or `@revoked`."""
    kind: str
    """Type of key: `ssh-ed25519` ..."""
    key: bytes


def entries(text: str, name: str) -> Iterator[Entry]:
    """The lines for a host as ssh looks it up: `name`, or `[name]:port` where the port is not 22."""
    for line in text.splitlines():
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@cert-authority", "@revoked"):
            continue
        patterns, kind, encoded = fields[:3]
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            continue
        if matches(patterns, name):
            yield Entry(marker, kind, key)


def matches(patterns: str, name: str) -> bool:
    """Whether a line's first field means this host: names with `*`, `?` and `!`, or one hashed name."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    found = False
    for pattern in patterns.split(","):
        plain = pattern.removeprefix("!").lower().replace("[", "[[]")  # brackets stand for themselves
        if fnmatch.fnmatchcase(name.lower(), plain):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def judge(lines: Iterable[Entry], key: bytes) -> Judgement:
    """What known_hosts says of the key that a host showed. A key of another type is `unknown`, as for ssh, only where
    there is none of any type; else ssh would have asked for the known one: `changed`."""
    all_lines = list(lines)
    if any(line.marker == "@revoked" and line.key == key for line in all_lines):
        return "revoked"
    plain = [line for line in all_lines if not line.marker]
    if any(line.key == key for line in plain):
        return "known"
    if plain:
        return "changed"
    return "authority" if any(line.marker == "@cert-authority" for line in all_lines) else "unknown"


def new_line(name: str, kind: str, key: bytes, salt: bytes | None) -> str:
    """The line that ssh would add; hashed where `salt` (20 random bytes) is given."""
    if salt is not None:
        name = "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, _hash(salt, name)))
    return f"{name} {kind} {base64.b64encode(key).decode()}\n"


def _is_hash_of(field: str, name: str) -> bool:
    try:
        salt, expected = (base64.b64decode(part, validate=True) for part in field[3:].split("|"))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(_hash(salt, name), expected)


def _hash(salt: bytes, name: str) -> bytes:
    return hmac.new(salt, name.lower().encode(), hashlib.sha1).digest()
