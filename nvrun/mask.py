"""What looks like a secret, by its name or by its shape, and is never shown. Pure.

`masked` is for one value whose name is known; `Mask` for whole files, where a value that is secret in one place is
secret wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

_NAME = r"TOKEN(?!IZ)|SECRET|PASSW|API[_-]?KEY|CREDENTIAL|PRIVATE"
_SECRET = re.compile(_NAME, re.IGNORECASE)

HIDDEN = "***"
LEAST = 6
"""Characters of a value that is looked for everywhere: shorter ones (`1`, `true`) stand for other things as well."""
_SHAPES = re.compile(
    rb"(?<![A-Za-z0-9])(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|AKIA|AIza|xox[abprs]-|eyJ)[A-Za-z0-9_.-]{8,}"
    rb"|(?<=://)[^\s/@:\"']*:[^\s/@\"']+(?=@)"
    rb"|(?<=Bearer )[A-Za-z0-9_.=/+-]{8,}|(?<=Basic )[A-Za-z0-9=/+]{8,}"
    rb"|(?<=PRIVATE KEY-----)[\s\\A-Za-z0-9+/=:,-]+?(?=-----END|\Z)"
)
_NAMED = re.compile(
    rb"(?P<name>[A-Za-z0-9_.-]*(?:" + _NAME.encode() + rb")[A-Za-z0-9_.-]*)"
    rb"(?P<between>\\?[\"']?(?:\s*[=:]\s*|(?<=\s)is\s+)\\?[\"']?)(?P<value>[^\s\"'\\,;&)\]}]+)",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rb"(?P<name>--[A-Za-z0-9_-]*(?:" + _NAME.encode() + rb")[A-Za-z0-9_-]*)"
    rb"(?P<between>[\"']?,?\s+[\"']?)(?P<value>[^\s\"',\]-][^\s\"',\]]*)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(?P<value>.*)", re.DOTALL)
_COUNT = re.compile(rb"[+-]?[0-9_]{1,15}(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?(?:[A-Za-z]{1,3}|[A-Za-z]*/[a-z]+|%)?")
"""What stands behind `max_tokens=` and the like."""
_NOTHING = re.compile(rb"None|null|True|False|\*+", re.IGNORECASE)


def masked(name: str, value: str) -> str:
    """`***` for what looks like a secret, by its name or by its shape."""
    secret = _SECRET.search(name) or _SHAPES.search(value.encode(errors="surrogatepass"))
    return HIDDEN if secret else value


class Mask:
    """Masks texts, JSON and bytes. `values` are hidden wherever they stand, beside what names and shapes tell."""

    def __init__(self, values: Iterable[str]) -> None:
        known = {value for value in values if len(value) >= LEAST and not value.isdecimal()}
        written = {form for value in known for form in _as_written(value)}
        longest_first = sorted(written, key=lambda form: (-len(form), form))
        self._known = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, data: bytes) -> bytes:
        """A text in any encoding, line ends and all, with `***` in the place of each secret."""
        if self._known:
            data = self._known.sub(HIDDEN.encode(), data)
        data = _SHAPES.sub(HIDDEN.encode(), data)
        return _OPTION.sub(_without_value, _NAMED.sub(_without_value, data))

    def bytes(self, data: bytes) -> bytes:
        """Data that is no text: values that are known, replaced by as many asterisks, so that it can still be read."""
        return self._known.sub(lambda found: b"*" * len(found[0]), data) if self._known else data

    def json(self, value: Any) -> Any:
        """Decoded JSON: by the names of keys, of `{"name": ..., "value": ...}`, and of flags before their values."""
        if isinstance(value, str):
            return self.text(value.encode(errors="surrogatepass")).decode(errors="surrogatepass")
        if isinstance(value, list):
            return [
                HIDDEN if isinstance(each, str) and _is_flag(before) else self.json(each)
                for before, each in pairwise(["", *value])
            ]
        if isinstance(value, dict):
            return {
                key: HIDDEN if isinstance(each, str) and _hides(key, value.get("name")) else self.json(each)
                for key, each in value.items()
            }
        return value


def secrets(value: Any) -> Iterator[str]:
    """Values in decoded JSON that are secret by the name that they have there."""
    if isinstance(value, str):
        if (given := _ASSIGNED.fullmatch(value)) and _SECRET.search(given["name"]):
            yield given["value"]
    elif isinstance(value, list):
        for before, each in pairwise(["", *value]):
            yield from [each] if isinstance(each, str) and _is_flag(before) else secrets(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from [each] if isinstance(each, str) and _hides(key, value.get("name")) else secrets(each)


def secret_values(variables: Mapping[str, str]) -> Iterator[str]:
    """Values of variables whose name is that of a secret."""
    return (value for name, value in variables.items() if _SECRET.search(name))


def _hides(key: str, named: object) -> bool:
    return bool(_SECRET.search(key) or (key == "value" and isinstance(named, str) and _SECRET.search(named)))


def _is_flag(word: object) -> bool:
    return isinstance(word, str) and word.startswith("--") and "=" not in word and bool(_SECRET.search(word))


def _without_value(found: re.Match[bytes]) -> bytes:
    counted = _COUNT.fullmatch(found["value"]) and re.search(rb"TOKEN|PRIVATE", found["name"], re.IGNORECASE)
    if counted or _NOTHING.fullmatch(found["value"]):
        return found[0]
    return found["name"] + found["between"] + HIDDEN.encode()


def _as_written(value: str) -> Iterator[bytes]:
    """The value as it may stand in a file: plainly, and inside a string of JSON."""
    plain = value.encode(errors="surrogateescape")
    yield plain
    escaped = plain.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    if escaped != plain:
        yield escaped
