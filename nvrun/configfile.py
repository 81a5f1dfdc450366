"""nvrun.yaml: text -> keys with their lines. Values stay text, so that one reader serves files, variables and flags.

The document is one flat mapping; a value is a scalar, a list of scalars or (for `env`) a mapping of scalars. A second
document is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from nvrun.errors import UsageError
from nvrun.plain_yaml import events, line_of, place

Value = str | list[str] | dict[str, str]


class Entry(NamedTuple):
    """One key of the file."""

    key: str
    value: Value
    line: int
    """From 1."""


def read(path: str, text: str) -> list[Entry]:
    """The entries of the file, in its order. Raises UsageError naming file and line."""
    given = events(path, text)
    if isinstance(_next(given), yaml.StreamEndEvent):
        return []
    entries: dict[str, Entry] = {}
    opening = next(given)
    if isinstance(opening, yaml.ScalarEvent) and not opening.value:
        return []
    if not isinstance(opening, yaml.MappingStartEvent):
        raise UsageError(f"{place(path, opening)}: expected lines of the form 'key: value'")
    while not isinstance(event := next(given), yaml.MappingEndEvent):
        key = _scalar(path, event, "a key")
        if not key.isprintable():
            raise UsageError(f"{place(path, event)}: expected a key, got {key[:60]!r}")
        if key in entries:
            raise UsageError(f"{place(path, event)}: {key} is given twice (first in line {entries[key].line})")
        entries[key] = Entry(key, _value(path, key, given), line_of(event))
    next(given)  # the document's end
    if not isinstance(event := next(given), yaml.StreamEndEvent):
        raise UsageError(f"{place(path, event)}: expected one document, found another")
    return list(entries.values())


def _next(given: Iterator[yaml.Event]) -> yaml.Event:
    """The first event after the stream's and the document's start."""
    next(given)
    return next(given)


def _value(path: str, key: str, given: Iterator[yaml.Event]) -> Value:
    event = next(given)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(given), yaml.SequenceEndEvent):
            items.append(_scalar(path, event, f"{key}: a value"))
        return items
    if isinstance(event, yaml.MappingStartEvent):
        pairs: dict[str, str] = {}
        while not isinstance(event := next(given), yaml.MappingEndEvent):
            name = _scalar(path, event, f"{key}: a name")
            pairs[name] = _scalar(path, next(given), f"{key}: {name}: a value")
        return pairs
    return _scalar(path, event, f"{key}: a value")


def _scalar(path: str, event: yaml.Event, what: str) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise UsageError(f"{place(path, event)}: expected {what}, got something nested")
    if not event.value and event.implicit[0]:
        raise UsageError(f"{place(path, event)}: expected {what}, got nothing")
    if "\0" in event.value:
        raise UsageError(f"{place(path, event)}: expected {what}, got one with a NUL in it")
    return str(event.value)
