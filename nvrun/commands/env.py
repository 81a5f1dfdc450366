"""`nvrun env`: which variables hold on each host, who set them, why, and whether lint objects; and all that
is known of a variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nvrun import job, presets
from nvrun.commands import Said
from nvrun.commands.plan import decided
from nvrun.config import Invocation
from nvrun.environment import rows
from nvrun.facts import HostFacts
from nvrun.nccl import catalogue
from nvrun.preflight import linted
from nvrun.report import text
from nvrun.report.document import document


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    as_json = invocation.options.json
    if name := invocation.flags.get("--explain"):
        page = catalogue.explain(name)
        return Said(document(variables=[catalogue.find(name)]) if as_json else page + "\n")
    if "--list" in invocation.flags:
        listing = list(catalogue.variables().values())
        return Said(document(variables=listing) if as_json else "".join(map(_line, listing)))
    placed, known = decided(invocation, environ)
    fits = presets.fitting(presets.load_all(job.preset_folders(environ, invocation.options.preset_path)), known)
    wrong = linted(placed, {each.host: each for each in known})
    if as_json:
        fitting = [fit.preset.name for fit in fits if not fit.reason]
        variables = rows(placed.environments)
        return Said(document(variables=variables, findings=wrong, notices=placed.notices, presets=fitting))
    lines = [*text.environment_lines(placed.environments, wrong), *(f"note: {notice}" for notice in placed.notices)]
    return Said("\n".join([*(lines or ["no variable is set"]), *_offered(fits, known)]) + "\n")


def _line(variable: catalogue.Variable) -> str:
    past = f" (until {variable.until})" if variable.until else ""
    default = f"default {variable.default}" if variable.default else ""
    facts = [variable.owner, variable.type, variable.allowed, default, f"since {variable.since}{past}"]
    return f"{variable.name:<40} {'; '.join(fact for fact in facts if fact and fact != 'since ')}\n"


def _offered(fits: tuple[presets.Fit, ...], known: tuple[HostFacts, ...]) -> Iterator[str]:
    fitting = [fit.preset for fit in fits if not fit.reason]
    if fitting:
        yield ""
        yield f"presets for this hardware ({len(known)} host{'s'[: len(known) > 1]}; --preset NAME, or auto for all):"
        yield from (f"  {preset.name:<14} {preset.summary}" for preset in fitting)
