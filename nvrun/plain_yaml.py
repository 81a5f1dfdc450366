"""YAML without what nothing of nvrun needs: anchors, aliases, tags. A few aliases can stand for gigabytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from nvrun.errors import UsageError


def events(path: str, text: str) -> Iterator[yaml.Event]:
    """The text's events. Raises UsageError, naming file and line, for what is refused and for what is no YAML."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise UsageError(f"{place(path, event)}: anchors and aliases are not allowed here")
            if getattr(event, "tag", None) not in (None, "!"):
                raise UsageError(f"{place(path, event)}: tags are not allowed here")
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None


def place(path: str, event: yaml.Event) -> str:
    """`FILE:LINE`."""
    return f"{path}:{line_of(event)}"


def line_of(event: yaml.Event) -> int:
    """From 1."""
    return event.start_mark.line + 1 if event.start_mark else 1
