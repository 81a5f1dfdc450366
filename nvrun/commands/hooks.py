"""`nvrun hooks`: those a name stands for, from where; `nvrun hooks show NAME|PATH`: what one does and takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.hooks.load import find, listing, shown
from nvrun.hooks.model import Shown
from nvrun.report.document import document


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if invocation.words:
        verb, *names = invocation.words
        if verb != "show" or not names:
            raise UsageError(f"nvrun hooks: expected nothing or 'show NAME', got {' '.join(invocation.words)!r}")
        hooks = [_shown(name, environ) for name in names]
        text = "\n\n".join("\n".join(_described(hook)) for hook in hooks)
    else:
        hooks = listing(environ)
        width = max((len(hook.name) for hook in hooks), default=0)
        lines = [f"{hook.name:<{width}}  {hook.help}{' (on by default)' if hook.default else ''}" for hook in hooks]
        text = "\n".join([*lines, "", "nvrun hooks show NAME tells more; --hook NAME[:option=value,...] runs one"])
    if invocation.options.json:
        return Said(document(hooks=[_row(hook) for hook in hooks]))
    return Said(text + "\n")


def _shown(name: str, environ: Mapping[str, str]) -> Shown:
    path, data = find(name, environ)
    return shown(path.stem.replace("_", "-") if "/" in name else name, Path(path), data)


def _described(hook: Shown) -> Iterator[str]:
    yield f"{hook.name}  ({hook.kind}, {hook.source}{', on by default' if hook.default else ''})"
    yield from (f"  {line}".rstrip() for line in hook.about.splitlines())
    for name, option in hook.options.items():
        value = as_text(hook.defaults[name])
        yield f"  {name.replace('_', '-')}={option.metavar}  {option.help} ({value})"


def _row(hook: Shown) -> dict[str, Any]:
    return {
        "name": hook.name,
        "path": hook.source,
        "kind": hook.kind,
        "help": hook.help,
        "default": hook.default,
        "options": [
            {"name": name.replace("_", "-"), "takes": option.metavar, "help": option.help,
             "default": as_text(hook.defaults[name])}
            for name, option in hook.options.items()
        ],
    }  # fmt: skip


def as_text(value: object) -> str:
    """An option's value as one would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
