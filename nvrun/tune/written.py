"""What a search found, as a preset of the user's: written with its evidence, offered to later runs on like hardware.

~/.config/nvrun/presets/tuned-<fingerprint>.yaml     the preset
~/.config/nvrun/presets/tuned-<fingerprint>.json     all that was measured
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from nvrun import presets
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.model import Frozen
from nvrun.nccl.parse import version
from nvrun.preset_file import Preset
from nvrun.tune.fingerprint import PREFIX, description, preset_name
from nvrun.tune.profile import Profile
from nvrun.tune.search import Finalist, Outcome
from nvrun.tune.space import Space, chosen

TUNED = "tuned"
"""`--preset tuned`: the preset for the hardware at hand."""


class Evidence(Frozen, frozen=True, kw_only=True):
    """All that was measured, beside the preset."""

    hardware: str
    date: str
    nccl: str | None
    profile: Profile
    space: Space
    outcome: Outcome


def preset_text(evidence: Evidence) -> str:
    """The preset's YAML. Only for an outcome that is not the default."""
    outcome = evidence.outcome
    finalist = next(each for each in outcome.finalists if each.config == outcome.config)
    where = f"nvrun tune, {evidence.date}, {evidence.hardware}, NCCL {evidence.nccl or 'unknown'}"
    lines = [
        f"# Found by nvrun tune on {evidence.date} for {evidence.hardware}.",
        f"# {outcome.trials} trials; {outcome.why}.",
        f"summary: {_quoted(f'found on {evidence.date}, {_gain(finalist)} for {evidence.profile.source}')}",
        "variables:",
    ]
    for dimension, option in zip(
        (d for d, at in zip(evidence.space.dimensions, outcome.config, strict=True) if at),
        chosen(evidence.space, outcome.config),
        strict=True,
    ):
        for name, value in option.env.items():
            lines += [
                f"  {name}:",
                f"    value: {_quoted(value)}",
                f"    why: {_quoted(f'{dimension.name}; all settings together are {_gain(finalist)}')}",
                f"    source: {_quoted(where)}",
                f"    cost: {_quoted(_cost(finalist))}",
            ]
            if bounds := _release(evidence.nccl):
                lines.append(f"    versions: {_quoted(bounds)}")
    return "\n".join(lines) + "\n"


def _gain(finalist: Finalist) -> str:
    against = finalist.against
    return (
        f"{(1 / against.ratio - 1) * 100:.1f} % faster ({against.pairs} pairs of trials, sign test p = {against.p:.2g})"
    )


def _cost(finalist: Finalist) -> str:
    if finalist.overlap is None:
        return "takes no compute"
    change = (finalist.overlap.ratio - 1) * 100
    return f"beside a matrix product a step takes {change:+.1f} % ({finalist.overlap.pairs} pairs of trials)"


def _release(nccl: str | None) -> str:
    """The minor release that was measured: the next one may choose better by itself."""
    known = version(nccl or "")
    return f"nccl>={known[0]}.{known[1]} nccl<{known[0]}.{known[1] + 1}" if len(known) > 1 else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a YAML scalar


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
