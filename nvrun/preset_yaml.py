"""The YAML of a preset -> mappings, lists and text, each key with its line. Pure.

Scalars stay text, so no value changes by YAML's own rules (`010`, `no`, `1e6`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from nvrun.errors import UsageError
from nvrun.plain_yaml import events, place

LARGEST = 64 * 1024
"""Characters of a preset file; the longest shipped one has a tenth of it."""
DEEPEST = 4
"""Nesting of mappings and lists: preset, variables, NAME, versions."""
Lines = Mapping[tuple[str, ...], int]
"""Path of keys -> line of the last key, from 1."""


def read_tree(path: str, text: str) -> tuple[Any, Lines]:
    """Mappings, lists and text of the document, and the line of every key."""
    if len(text) > LARGEST:
        raise UsageError(f"{path}: a preset has at most {LARGEST} characters, this file {len(text)}")
    _refuse_depth(path, text)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:  # a second document
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {error.problem}") from None
    lines: dict[tuple[str, ...], int] = {}
    return (None if root is None else _plain(path, root, (), lines)), lines


def _refuse_depth(path: str, text: str) -> None:
    depth = 0
    for event in events(path, text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UsageError(f"{place(path, event)}: nested deeper than any key of a preset")


def _plain(path: str, node: yaml.Node, at: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item, at, lines) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        return node.value
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{path}:{line}: expected a key, got something nested")
        inner = (*at, key.value)
        if inner in lines:
            raise UsageError(f"{path}:{line}: {'.'.join(inner)} is given twice (first in line {lines[inner]})")
        lines[inner] = line
        mapping[key.value] = _plain(path, value, inner, lines)
    return mapping
