"""`nvrun tune`: NCCL's settings searched for the messages of a job, on the hosts and ranks it would have."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from nvrun import job
from nvrun.bench import session
from nvrun.bench.model import TrialEnd
from nvrun.commands import Said
from nvrun.commands.bench import users_variables
from nvrun.commands.plan import decided
from nvrun.commands.reach import note
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.hosts.nodeset import fold
from nvrun.options import seconds
from nvrun.placement import Placed
from nvrun.report.document import document
from nvrun.rundir import to_json
from nvrun.tune.fingerprint import description, preset_name
from nvrun.tune.profile import Profile, given, of_model, of_trace
from nvrun.tune.search import Measure, Outcome, Sample, Trial, search
from nvrun.tune.space import Space, env_of, space_for
from nvrun.tune.trials import Trials
from nvrun.tune.written import Evidence, preset_text

_NO_NCCL = "nvrun tune searches settings of NCCL, which would change nothing here: {}"
_INSTEAD = "expected: two or more ranks, each with a GPU; nvrun bench times collectives over gloo too"
FEWEST = 120
"""Trials that are allowed where a quarter of the grid is less: what tells a gain from noise costs most of them."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits 0 whether or not something better was found: NCCL's own choice is a result."""
    if invocation.words:
        raise UsageError(f"nvrun tune runs no program; what is {invocation.words[0]}?", hint="nvrun tune --help")
    size = invocation.options.model_size
    profile = profile_of({**invocation.flags, **({"--model-size": size} if size else {})})
    # The size names the messages here, not the preset of that size: what that sets would not be searched.
    invocation = replace(invocation, options=replace(invocation.options, model_size=None))
    budget = _budget(invocation.flags.get("--budget", "600"))
    placed, facts = decided(invocation, environ)
    if without := [each.host for each in facts if each.gpus == ()]:
        raise UsageError(_NO_NCCL.format(f"no GPU on {fold(without)}"), hint=_INSTEAD)
    space = space_for(facts, user=users_variables(placed) | _of_presets(placed))
    note(f"{space.grid} settings of {', '.join(each.name for each in space.dimensions) or 'nothing'}; {profile.source}")
    measure = Trials(job.read(invocation, environ), space, profile, environ, _progress(budget))
    allowed = max(space.grid // 4, FEWEST)
    outcome = search(space, _with_nccl(measure), trials=allowed, seconds=budget, seed=random.getrandbits(30))
    evidence = Evidence(
        hardware=description(facts),
        date=time.strftime("%Y-%m-%d"),
        nccl=measure.setup.nccl if measure.setup else None,
        profile=profile,
        space=space,
        outcome=outcome,
    )
    path = None
    if any(outcome.config):
        path = _write(job.preset_folders(environ)[0], facts, evidence)
    if invocation.options.json:
        return Said(document(outcome=outcome, env=env_of(space, outcome.config), preset=path, evidence=evidence))
    return Said("\n".join(_lines(space, outcome, path)) + "\n")


def _with_nccl(measure: Trials) -> Measure:
    """UsageError after the first trials where the ranks did not use NCCL: no facts tell what their torch takes."""

    def measured(trials: Sequence[Trial]) -> Sequence[Sample]:
        samples = measure(trials)
        if measure.setup and measure.setup.backend != "nccl":
            why = f"these ranks use {measure.setup.backend}; their torch sees no GPU or has no NCCL"
            raise UsageError(_NO_NCCL.format(why), hint=_INSTEAD)
        return samples

    return measured


def _progress(budget: float) -> Callable[[TrialEnd], None]:
    """Of the whole search, whatever its rounds are."""
    began, number = time.monotonic(), count(1)
    return lambda end: note(
        f"trial {next(number)}, {time.monotonic() - began:.0f} of {budget:.0f} s: {session.how(end)}"
    )


def profile_of(flags: Mapping[str, str]) -> Profile:
    """The messages that --model-size, --messages or --trace tell. Raises UsageError where not exactly one is given."""
    told = [name for name in ("--model-size", "--messages", "--trace") if name in flags]
    if len(told) != 1:
        raise UsageError(
            "which messages does the job send? one of --model-size, --messages, --trace", hint="nvrun tune --help"
        )
    value = flags[told[0]]
    if told[0] == "--model-size":
        return of_model(value)
    if told[0] == "--messages":
        return given(value)
    try:
        return of_trace(value, Path(value).read_bytes())
    except OSError as error:
        raise UsageError(f"--trace {value}: {error.strerror}") from None


def _of_presets(placed: Placed) -> frozenset[str]:
    """Names that presets set. The user chose them with the preset, and the default that is to be beaten has them
    too."""
    resolved = [each.variable for host in placed.environments.values() for each in host]
    return frozenset(variable.name for variable in resolved if variable.source.startswith("preset "))


def _budget(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"--budget {text}: expected {error}") from None


def _write(folder: Path, facts: Sequence[HostFacts], evidence: Evidence) -> str:
    """The preset and, beside it, all that was measured. Each is written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    name = preset_name(facts)
    for suffix, body in ((".json", to_json(evidence)), (".yaml", preset_text(evidence).encode())):
        part = folder / f".{name}{suffix}.part"
        part.write_bytes(body)
        part.rename(folder / f"{name}{suffix}")
    return str(folder / f"{name}.yaml")


def _lines(space: Space, outcome: Outcome, path: str | None) -> Iterator[str]:
    for name, variable in space.pinned.items():
        yield f"{name} was not searched: {variable} is set"
    for config, why in outcome.failed:
        yield f"failed: {_shown(space, config)}: {why}"
    best = sorted(outcome.ratios, key=lambda item: item[1])[:5]
    if best:
        but = (
            "what counts are the fresh pairs below"
            if outcome.finalists
            else "confirmed by no fresh pairs, may be noise"
        )
        yield f"best of {len(outcome.ratios)} settings, as first measured ({but}):"
        yield from (f"  {1 / ratio - 1:+7.1%}  {_shown(space, config)}" for config, ratio in best)
    for finalist in outcome.finalists:
        change = 1 / finalist.against.ratio - 1
        yield f"in fresh pairs with the default: {change:+.1%}  {_shown(space, finalist.config)}"
        if finalist.overlap:
            yield f"  beside a matrix product a step takes {finalist.overlap.ratio - 1:+.1%}"
        if finalist.refused:
            yield f"  not taken: {finalist.refused}"
    yield f"{outcome.why} ({outcome.trials} trials)"
    if path:
        yield f"written to {path}; later runs use it with --preset tuned"


def _shown(space: Space, config: tuple[int, ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in env_of(space, config).items()) or "the default"
