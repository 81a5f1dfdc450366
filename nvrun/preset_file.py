"""One preset's YAML -> `Preset`. Pure: text in, value out; what is wrong is named by file, line and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from nvrun.errors import UsageError
from nvrun.model import Frozen
from nvrun.nccl import catalogue
from nvrun.nccl.parse import version

if TYPE_CHECKING:
    from nvrun.preset_yaml import Lines

_REQUIREMENT = re.compile(r"(nccl|torch)(>=|<)([0-9]+(?:\.[0-9]+)*)")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class PresetVariable(Frozen, frozen=True, kw_only=True):
    """One variable of a preset."""

    value: str
    """In the variable's own units, whatever the file says."""
    why: str
    source: str
    """Where the value comes from: a documentation, a vendor's setting, a measurement."""
    cost: str
    """What it costs, measured with date and hardware, or `not measured`."""
    versions: tuple[str, ...] = ()
    """`nccl>=2.24`, `torch<2.8`: all must hold, or the variable is left out."""
    origin: str = ""
    """The preset that says so, where another extends it."""
    place: str = ""
    """`FILE:LINE`."""


class Fits(Frozen, frozen=True, kw_only=True):
    """The hardware for which `--preset auto` takes a preset: every condition given must hold on every host."""

    compute_capability: tuple[str, ...] = ()
    """Of all GPUs: `9.0`."""
    nvswitch: bool = False
    network: Literal["", "infiniband", "roce", "ethernet", "efa", "gcp"] = ""
    """A preset for a network fits only jobs over several hosts."""


class Preset(Frozen, frozen=True, kw_only=True):
    """A named set of variables."""

    name: str
    summary: str
    path: str = ""
    fits: Fits | None = None
    """None: never by `--preset auto`."""
    extends: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Prerequisites that `preset_fit.unmet` checks."""
    variables: Mapping[str, PresetVariable] = {}


def read(path: str, name: str, text: str) -> Preset:
    """The preset of one file; `extends` is not followed. Raises UsageError naming file, line and key."""
    from nvrun.preset_yaml import read_tree  # a run without presets need not import YAML

    tree, lines = read_tree(path, text)
    if not isinstance(tree, dict):
        raise UsageError(f"{path}: expected 'summary:' and 'variables:', not a list or plain text")
    variables = tree.pop("variables", None)
    if variables is None:
        raise UsageError(f"{path}: the key 'variables' is missing")
    if not isinstance(variables, dict):
        raise UsageError(
            f"{path}:{lines[('variables',)]}: variables: expected 'NAME:' with value, why, source and cost"
        )
    for key in ("extends", "requires"):
        if isinstance(tree.get(key), str):
            tree[key] = tree[key].split()
    for key in ("name", "path"):
        if key in tree:
            raise UsageError(f"{path}:{lines[(key,)]}: {key}: the file's own name is the preset's name")
    preset = _convert(path, {**tree, "name": name, "path": path}, Preset, (), lines)
    found = {variable: _variable(path, name, variable, entry, lines) for variable, entry in variables.items()}
    return msgspec.structs.replace(preset, variables=found)


def _variable(path: str, preset: str, name: str, entry: Any, lines: Lines) -> PresetVariable:
    key = ("variables", name)
    place = f"{path}:{lines[key]}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"{place}: variables: {name!r} is no name of an environment variable")
    if isinstance(entry, dict) and isinstance(entry.get("versions"), str):
        entry = {**entry, "versions": entry["versions"].replace(",", " ").split()}
    variable = _convert(path, entry, PresetVariable, key, lines)
    for requirement in variable.versions:
        if not _REQUIREMENT.fullmatch(requirement):
            raise UsageError(
                f"{path}:{_line(lines, *key, 'versions')}: variables.{name}.versions: expected nccl or torch,"
                f" >= or <, and a version, as in nccl>=2.24, not {requirement!r}"
            )
    for word in ("value", "why", "source", "cost"):
        if not getattr(variable, word).strip():
            raise UsageError(f"{path}:{_line(lines, *key, word)}: variables.{name}.{word} is empty")
    try:
        value = catalogue.native(name, variable.value)
    except ValueError as error:
        raise UsageError(f"{path}:{_line(lines, *key, 'value')}: variables.{name}.value: {error}") from None
    return msgspec.structs.replace(variable, value=value, origin=preset, place=place)


def holds(requirement: str, versions: Mapping[str, str | None]) -> bool | None:
    """Whether `nccl>=2.24` holds for {"nccl": "2.27.5", ...}; None where that version is not known."""
    match = _REQUIREMENT.fullmatch(requirement)
    assert match is not None, "checked when the preset was read"
    what, sign, bound = match.groups()
    present = version(versions.get(what) or "")
    if not present:
        return None
    return (present >= version(bound)) == (sign == ">=")


def _line(lines: Lines, *keys: str) -> int:
    return lines[keys]


def _convert(path: str, tree: Any, kind: type[_Struct], prefix: tuple[str, ...], lines: Lines) -> _Struct:
    """`tree` as a struct. msgspec says what is wrong and where; this adds the line and the nearest valid key."""
    where = ".".join(prefix)
    place = f"{path}:{lines[prefix]}" if prefix in lines else path
    if not isinstance(tree, dict):
        raise UsageError(f"{place}: {where}: expected keys {', '.join(_keys(kind))}")
    for key in tree:
        if key not in _keys(kind) and (*prefix, key) in lines:
            near = difflib.get_close_matches(key, _keys(kind), n=1)
            raise UsageError(
                f"{path}:{_line(lines, *prefix, key)}: unknown key {'.'.join((*prefix, key))}",
                hint=f"did you mean {near[0]}?" if near else f"known keys: {', '.join(_keys(kind))}",
            )
    try:
        return msgspec.convert(tree, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$.")
        keys = (*prefix, *re.findall(r"[A-Za-z_]+", inner))
        while keys and keys not in lines:
            keys = keys[:-1]
        line = f":{lines[keys]}" if keys else ""
        named = ".".join(keys)
        raise UsageError(f"{path}{line}: {named + ': ' if named else ''}{message[0].lower()}{message[1:]}") from None


def _keys(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    hidden = ("name", "path", "origin", "place")
    return tuple(field for field in kind.__struct_fields__ if field not in hidden)
