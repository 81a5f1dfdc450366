"""`measure` of a search, for real: each batch is a job of trials on the hosts."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nvrun.bench import session
from nvrun.bench.model import Overlap, Results, Schedule, Setup, TrialEnd
from nvrun.errors import NvrunError
from nvrun.job import Job
from nvrun.report.text import end_in_words
from nvrun.tune.profile import Profile, seconds
from nvrun.tune.search import Sample, Trial
from nvrun.tune.space import Space, default, env_of

_DEADLINE = 120.0
_SLOWEST = 4.0
"""A setting that takes so many times as long as the default is no candidate: its trial is ended."""
_LEAST_DEADLINE = 10.0


class Trials:
    """Measures settings for a profile. The first two trials of all are the default's: they tell how long the others may
    take, and how many matrix products go beside the messages."""

    def __init__(
        self, job: Job, space: Space, profile: Profile, environ: Mapping[str, str], progress: Callable[[TrialEnd], None]
    ) -> None:
        self._job = msgspec.structs.replace(job, measures="tune")
        self._space, self._profile, self._environ, self._progress = space, profile, environ, progress
        self._load: tuple[int, int] | None = None
        self._deadline = _DEADLINE
        self.setup: Setup | None = None

    def __call__(self, trials: Sequence[Trial]) -> list[Sample]:
        return self._run(trials) if self.setup else self._first(trials)

    def _first(self, trials: Sequence[Trial]) -> list[Sample]:
        own = [Trial(config=default(self._space)), Trial(config=default(self._space), overlap=True)]
        samples = self._run([*own, *trials])
        failed = next((sample.failed for sample in samples[:2] if sample.seconds is None), None)
        if failed is not None:
            raise NvrunError(f"NCCL's own settings cannot be measured: {failed}", hint="nvrun bench")
        options = dataclasses.replace(self._job.options, check="off")  # they were made a moment ago
        self._job = msgspec.structs.replace(self._job, options=options)
        extra = sum(sample.cost for sample in samples[:2]) / max(1, len(trials))
        return [msgspec.structs.replace(sample, cost=sample.cost + extra) for sample in samples[2:]]

    def _run(self, trials: Sequence[Trial]) -> list[Sample]:
        schedule = schedule_of(self._space, self._profile, trials, load=self._load, deadline=self._deadline)
        begun = time.monotonic()
        announced = self.setup is not None  # every batch has the plan of the first
        done = session.run(self._job, schedule, self._environ, self._progress, announced=announced)
        took = time.monotonic() - begun
        by, code = done.result.ended_by, done.result.exit_code
        if code:  # not a trial that failed, the job: a signal, a host that was lost
            raise session.NotMeasured(f"the search ended early: {end_in_words(by, code)}", code)
        results = done.results
        if self._load is None:
            self.setup = results.setup
            self._load = next((record.load for record in results.records if record.load), None)
            first = next((end.seconds for end in results.trials if end.trial == 0), _DEADLINE)
            self._deadline = min(_DEADLINE, max(_LEAST_DEADLINE, _SLOWEST * first))
        samples = [sample_of(results, self._profile, at, trial) for at, trial in enumerate(trials)]
        own = {end.trial: end.seconds for end in results.trials}
        start = max(0.0, took - sum(own.values()))
        return [
            msgspec.structs.replace(sample, cost=own.get(at, 0.0), start=start) for at, sample in enumerate(samples)
        ]


def schedule_of(
    space: Space, profile: Profile, trials: Sequence[Trial], *, load: tuple[int, int] | None, deadline: float
) -> Schedule:
    """The trials as the worker takes them: each environment is named once."""
    configs = list(dict.fromkeys(trial.config for trial in trials))
    return Schedule(
        environments=tuple(env_of(space, config) for config in configs),
        order=tuple((configs.index(trial.config), trial.overlap) for trial in trials),
        points=profile.points,
        beside=(profile.heaviest,),
        seconds=0.1,
        deadline=deadline,
        slowest=_SLOWEST,
        least_deadline=_LEAST_DEADLINE,
        load=load,
        seed=random.getrandbits(30),
    )


def sample_of(results: Results, profile: Profile, number: int, trial: Trial) -> Sample:
    """What one trial of a session came to. A wrong element is a failure, and so is silence."""
    end = next((end for end in results.trials if end.trial == number), None)
    if end is None:
        return Sample(failed="nothing was heard of it")
    if end.failed:
        return Sample(failed=end.failed)
    records = results.of_trial(number)
    if wrong := sum(record.wrong for record in records):
        return Sample(failed=f"{wrong} elements were wrong")
    if trial.overlap:
        both: Overlap | None = next((record.overlap for record in records), None)
        return Sample(seconds=both.total) if both else Sample(failed="nothing was measured beside the product")
    total = seconds(profile, records)
    if total is None:
        why = next((record.skipped for record in records if record.skipped), "a message was not measured")
        return Sample(failed=why)
    return Sample(seconds=total)
