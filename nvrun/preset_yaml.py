"""The YAML of a preset -> mappings, lists and text, each key with its line. Pure.

Scalars stay text, so no value changes by YAML's own rules (`010`, `no`, `1e6`). Anchors, aliases and tags are refused:
nothing here needs them, and a few aliases can stand for gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from nvrun.errors import UsageError

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
    try:
        _refuse_what_is_not_needed(path, text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    lines: dict[tuple[str, ...], int] = {}
    return (None if root is None else _plain(path, root, (), lines)), lines


def _refuse_what_is_not_needed(path: str, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise UsageError(f"{path}:{line}: anchors and aliases are not allowed here")
        if getattr(event, "tag", None) not in (None, "!"):
            raise UsageError(f"{path}:{line}: tags are not allowed here")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UsageError(f"{path}:{line}: nested deeper than any key of a preset")


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
