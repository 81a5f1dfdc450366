"""nvrun.yaml: text -> keys with their lines. Values stay text, so that one reader serves files, variables and flags.

The document is one flat mapping; a value is a scalar, a list of scalars or (for `env`) a mapping of scalars. Anchors,
aliases, tags and more documents are refused: nothing here needs them, and a few aliases can stand for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from nvrun.errors import UsageError

Value = str | list[str] | dict[str, str]


class Entry(NamedTuple):
    """One key of the file."""

    key: str
    value: Value
    line: int
    """From 1."""


def read(path: str, text: str) -> list[Entry]:
    """The entries of the file, in its order. Raises UsageError naming file and line."""
    events = _events(path, text)
    if isinstance(_next(events), yaml.StreamEndEvent):
        return []
    entries: dict[str, Entry] = {}
    opening = next(events)
    if isinstance(opening, yaml.ScalarEvent) and not opening.value:
        return []
    if not isinstance(opening, yaml.MappingStartEvent):
        raise UsageError(f"{_place(path, opening)}: expected lines of the form 'key: value'")
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _scalar(path, event, "a key")
        if not key.isprintable():
            raise UsageError(f"{_place(path, event)}: expected a key, got {key[:60]!r}")
        if key in entries:
            raise UsageError(f"{_place(path, event)}: {key} is given twice (first in line {entries[key].line})")
        entries[key] = Entry(key, _value(path, key, events), _line(event))
    next(events)  # the document's end
    if not isinstance(event := next(events), yaml.StreamEndEvent):
        raise UsageError(f"{_place(path, event)}: expected one document, found another")
    return list(entries.values())


def _events(path: str, text: str) -> Iterator[yaml.Event]:
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise UsageError(f"{_place(path, event)}: anchors and aliases are not allowed here")
            if getattr(event, "tag", None) not in (None, "!"):
                raise UsageError(f"{_place(path, event)}: tags are not allowed here")
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None


def _next(events: Iterator[yaml.Event]) -> yaml.Event:
    """The first event after the stream's and the document's start."""
    next(events)
    return next(events)


def _value(path: str, key: str, events: Iterator[yaml.Event]) -> Value:
    event = next(events)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_scalar(path, event, f"{key}: a value"))
        return items
    if isinstance(event, yaml.MappingStartEvent):
        pairs: dict[str, str] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            name = _scalar(path, event, f"{key}: a name")
            pairs[name] = _scalar(path, next(events), f"{key}: {name}: a value")
        return pairs
    return _scalar(path, event, f"{key}: a value")


def _scalar(path: str, event: yaml.Event, what: str) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise UsageError(f"{_place(path, event)}: expected {what}, got something nested")
    if not event.value and event.implicit[0]:
        raise UsageError(f"{_place(path, event)}: expected {what}, got nothing")
    if "\0" in event.value:
        raise UsageError(f"{_place(path, event)}: expected {what}, got one with a NUL in it")
    return str(event.value)


def _place(path: str, event: yaml.Event) -> str:
    return f"{path}:{_line(event)}"


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
