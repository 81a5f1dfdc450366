"""All that is known of one run, as its folder has it: what the report is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvrun.environment import EnvRow, Resolved, conf_variables, rows
from nvrun.facts import HostFacts
from nvrun.model import EnvVar, Finding, Frozen, RunResult, Verdict
from nvrun.monitor import HostSamples
from nvrun.plan import HostPlan, Plan, as_mapping
from nvrun.traces.summary import RankProfile


class Recorded(Frozen, frozen=True, kw_only=True):
    """A run. What its folder does not have is None or empty, and the report says so."""

    name: str
    folder: str
    plan: Plan
    result: RunResult | None = None
    facts: Mapping[str, HostFacts] = {}
    verdict: Verdict | None = None
    samples: Mapping[str, HostSamples] = {}
    watched: tuple[Finding, ...] = ()
    """What the samples say."""
    diagnosis: tuple[Finding, ...] = ()
    """What the logs say."""
    bench: tuple[Mapping[str, Any], ...] = ()
    """Records of `nvrun bench`."""
    profiles: tuple[RankProfile, ...] = ()
    """What the profiler's traces say."""

    @property
    def begun(self) -> float:
        """The report's zero: seconds since the epoch."""
        if self.result:
            return self.result.started
        return min((seen.samples[0].at for seen in self.samples.values() if seen.samples), default=0.0)

    def offset(self, host: str) -> float:
        """The host's clock minus the launcher's, seconds; 0 where it is not known."""
        known = self.facts.get(host)
        return known.clock_offset_s or 0.0 if known else 0.0


def environment(run: Recorded) -> tuple[EnvRow, ...]:
    """The variables of all hosts' ranks, each with who set it."""
    return rows({host.host.name: list(_resolved(host, run.facts.get(host.host.name))) for host in run.plan.hosts})


def _resolved(host: HostPlan, facts: HostFacts | None) -> Iterator[Resolved]:
    """In the order of the launch: defaults, the host's own, what nvrun sets on the host, what each rank gets."""
    own = [EnvVar(name=name, value=value, source="host") for name, value in ((facts and facts.env) or {}).items()]
    ranks = [variable for rank in host.ranks[:1] for variable in rank.env]
    layers = (*host.defaults, *own, *host.env, *ranks)
    last = {variable.name: variable for variable in layers}
    conf = conf_variables((facts and facts.conf_files) or {}, as_mapping(tuple(last.values())))
    for variable in (*(each for each in conf if each.name not in last), *last.values()):
        yield Resolved(variable=variable)
