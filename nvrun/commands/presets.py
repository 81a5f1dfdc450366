"""`nvrun presets`: those there are and whether they fit; `nvrun presets show NAME`: every variable with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import presets
from nvrun.commands import Said
from nvrun.commands.recorded import read_facts
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.job import preset_folders
from nvrun.report.document import document


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    folders = preset_folders(environ, invocation.options.preset_path)
    as_json = invocation.options.json
    if invocation.words:
        verb, *names = invocation.words
        if verb != "show" or not names:
            raise UsageError(f"nvrun presets: expected nothing or 'show NAME', got {' '.join(invocation.words)!r}")
        shown = [presets.load(name, folders) for name in names]
        return Said(document(presets=shown) if as_json else "\n\n".join(map(presets.describe, shown)) + "\n")
    known = presets.load_all(folders)
    hosts = read_facts(invocation.options.from_) if invocation.options.from_ else ()
    reasons = {fit.preset.name: fit.reason for fit in presets.fitting(known, hosts)} if hosts else {}
    if as_json:
        rows = [
            {
                "name": preset.name,
                "summary": preset.summary,
                "path": preset.path,
                "auto": preset.fits is not None,
                "fits": not reasons[preset.name] if preset.name in reasons else None,
                "why_not": reasons.get(preset.name, ""),
                "variables": {name: variable.value for name, variable in preset.variables.items()},
            }
            for preset in known
        ]
        return Said(document(presets=rows))
    width = max((len(preset.name) for preset in known), default=0)
    lines = []
    for preset in known:
        lines.append(f"{preset.name:<{width}}  {preset.summary}")
        if preset.name in reasons:
            why_not = reasons[preset.name]
            lines.append(f"{'':<{width}}    " + (f"does not fit: {why_not}" if why_not else "fits these hosts"))
    lines += ["", "nvrun presets show NAME tells what it sets and why; --preset NAME applies it, auto all that fit"]
    return Said("\n".join(lines) + "\n")
