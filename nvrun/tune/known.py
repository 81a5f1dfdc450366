"""What `nvrun tune` found earlier, for later runs on like hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nvrun import presets
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.preset_file import Preset
from nvrun.tune.fingerprint import PREFIX, description, preset_name

TUNED = "tuned"
"""`--preset tuned`: the preset for the hardware at hand."""


def of_hardware(presets_of_user: Iterable[Preset], facts: Sequence[HostFacts]) -> tuple[Preset, ...]:
    """The preset that was found for these hosts. Raises UsageError where there is none."""
    name = preset_name(facts)
    found = tuple(preset for preset in presets_of_user if preset.name == name)
    if not found:
        raise UsageError(f"--preset tuned: nothing was found yet for {description(facts)}", hint="nvrun tune searches")
    return found


def load_tuned(folders: Sequence[Path]) -> tuple[Preset, ...]:
    """All presets that `nvrun tune` has written."""
    return tuple(presets.load(name, folders) for name in presets.names(folders) if name.startswith(PREFIX))


def offer(facts: Sequence[HostFacts], folders: Sequence[Path]) -> str | None:
    """One line about a preset found for this hardware; None where there is none."""
    name = preset_name(facts)
    if name not in presets.names(folders):
        return None
    return f"settings for this hardware, {presets.load(name, folders).summary}: --preset tuned"
