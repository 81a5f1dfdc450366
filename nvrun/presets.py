"""Presets by name: the file, what it extends, the hardware it fits, and what of it this host's versions can use.

folders = [*user_folders, shipped.folder("presets")]
preset = presets.load("hopper", folders)            # reads files: the only effect here
variables = presets.variables(preset, versions={"nccl": "2.28.9", "torch": "2.11.0"})
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from nvrun import shipped
from nvrun.environment import setting_of
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.model import EnvVar, Frozen
from nvrun.options import parameters
from nvrun.preset_file import Preset, PresetVariable, holds, read
from nvrun.preset_fit import REQUIREMENTS, misfit
from nvrun.textfile import written_by_others

MODEL_SIZES = (("model-small", 1e9), ("model-medium", 10e9), ("model-large", float("inf")))
"""Preset and the number of parameters up to which it is meant: below 1 billion, 1 to 10 billion, above."""


class Fit(Frozen, frozen=True, kw_only=True):
    """Whether `--preset auto` takes a preset, and if not, why."""

    preset: Preset
    reason: str = ""
    """Empty where it fits."""


def names(folders: Sequence[Path]) -> dict[str, Path]:
    """Preset name -> file; of two files of one name the one in the earlier folder counts."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            found.setdefault(path.stem, path)
    return found


def load_all(folders: Sequence[Path]) -> tuple[Preset, ...]:
    """Every preset of the folders, by name."""
    return tuple(load(name, folders) for name in sorted(names(folders)))


def load(name: str, folders: Sequence[Path]) -> Preset:
    """The preset of that name, or of that path where it has a slash or ends in .yaml, with what it extends merged in.

    Raises UsageError where there is none, where a file is no preset, or where presets extend one another in a circle.
    """
    return _load(name, folders, ())


def _load(name: str, folders: Sequence[Path], extending: tuple[str, ...]) -> Preset:
    path = _find(name, folders)
    if str(path) in extending:
        raise UsageError(f"{path}: presets extend one another in a circle")
    preset = read(str(path), path.stem, _text(path))
    for need in preset.requires:
        if need not in REQUIREMENTS:
            raise UsageError(f"{path}: requires: {need} is none of {', '.join(REQUIREMENTS)}")
    variables: dict[str, PresetVariable] = {}
    requires: list[str] = []
    for parent in preset.extends:
        base = _load(parent, [path.parent, *folders], (*extending, str(path)))
        variables.update(base.variables)
        requires += base.requires
    variables.update(preset.variables)
    return msgspec.structs.replace(
        preset, variables=variables, requires=tuple(dict.fromkeys((*requires, *preset.requires)))
    )


def _find(name: str, folders: Sequence[Path]) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    known = names(folders)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"there is no preset {name}",
        hint=f"did you mean {near[0]}?" if near else f"presets: {', '.join(sorted(known)) or 'none found'}",
    )


def _text(path: Path) -> str:
    """A preset sets any variable, LD_PRELOAD too: one that somebody else could have written is refused. What came with
    nvrun is as trusted as nvrun itself."""
    from nvrun.preset_yaml import LARGEST  # a run without presets need not import YAML

    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            why = written_by_others(os.fstat(file.fileno()))
            if why and path.parent != shipped.folder("presets"):
                raise UsageError(f"{path} is refused: it {why}", hint=f"chmod go-w {path}")
            return file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None


def fitting(presets: Iterable[Preset], hosts: Sequence[HostFacts]) -> tuple[Fit, ...]:
    """`--preset auto`: every preset with a match rule, and whether it fits all hosts of the job."""
    return tuple(Fit(preset=preset, reason=misfit(preset.fits, hosts)) for preset in presets if preset.fits is not None)


def for_model_size(text: str) -> str:
    """The preset for a model of `7B`, `350M` or `1.3e9` parameters. Raises UsageError for other text."""
    try:
        wanted = parameters(text)
    except ValueError as error:
        raise UsageError(f"--model-size {text}: expected {error}") from None
    if wanted < MODEL_SIZES[0][1]:
        return MODEL_SIZES[0][0]
    return next(name for name, most in MODEL_SIZES[1:] if wanted <= most)


def variables(preset: Preset, *, versions: Mapping[str, str | None], run_dir: str = "") -> tuple[EnvVar, ...]:
    """What the preset sets on a host of these versions ({"nccl": "2.28.9", "torch": None}); None: not known.

    A variable bound to a version that is not known is left out: unset is what NCCL knows best. `{run_dir}` in a value
    becomes `run_dir`; without one such variables are left out.
    """
    return tuple(
        EnvVar(
            name=name,
            value=each.value.replace("{run_dir}", run_dir),
            source=f"preset {preset.name}" + (f" ({each.origin})" if each.origin != preset.name else ""),
            why=each.why,
        )
        for name, each in preset.variables.items()
        if not left_out(each, versions) and (run_dir or "{run_dir}" not in each.value)
    )


def unset(preset: Preset, versions: Mapping[str, str | None]) -> str:
    """What of a preset this host's versions cannot use, in a line; empty where they can use all, a setting with
    several names under one of them."""
    reasons: dict[str, list[str]] = {}
    used = {setting_of(name) for name, variable in preset.variables.items() if not left_out(variable, versions)}
    for name, variable in preset.variables.items():
        if (why := left_out(variable, versions)) and setting_of(name) not in used:
            reasons.setdefault(why, []).append(name)
    parts = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    return f"preset {preset.name} leaves out {', '.join(parts)}" if parts else ""


def left_out(variable: PresetVariable, versions: Mapping[str, str | None]) -> str:
    """Why this host's versions cannot use the variable; empty where they can."""
    for requirement in variable.versions:
        held = holds(requirement, versions)
        if not held:
            return f"needs {requirement}" + (", and the version is not known" if held is None else "")
    return ""


def describe(preset: Preset) -> str:
    """Text of `nvrun presets show NAME`: every variable with its value, reason, source, cost and versions."""
    lines = [f"{preset.name}: {preset.summary}", f"  file     {preset.path}"]
    if preset.extends:
        lines.append(f"  extends  {', '.join(preset.extends)}")
    if preset.requires:
        lines.append(f"  requires {', '.join(preset.requires)}")
    conditions = msgspec.structs.asdict(preset.fits) if preset.fits else {}
    given = [
        f"{key.replace('_', ' ')} {' or '.join(value) if isinstance(value, tuple) else value}"
        for key, value in conditions.items()
        if value
    ]
    lines.append(f"  auto     {'where ' + ', '.join(given) if given else 'never'}")
    for name, each in preset.variables.items():
        lines += ["", f"{name}={each.value}" + (f"   (from {each.origin})" if each.origin != preset.name else "")]
        lines += [f"  why      {each.why}", f"  source   {each.source}", f"  cost     {each.cost}"]
        lines.append(f"  versions {', '.join(each.versions) or 'any'}")
    return "\n".join(lines)
