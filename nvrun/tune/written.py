"""What a search found, as a preset of the user's, written with its evidence (`nvrun.tune.known` reads it).

~/.config/nvrun/presets/tuned-<fingerprint>.yaml     the preset
~/.config/nvrun/presets/tuned-<fingerprint>.json     all that was measured
"""

from __future__ import annotations

import json

from nvrun.model import Frozen
from nvrun.nccl.parse import version
from nvrun.tune.profile import Profile
from nvrun.tune.search import Finalist, Outcome
from nvrun.tune.space import Space, chosen


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
