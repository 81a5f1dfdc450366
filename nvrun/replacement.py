"""After an attempt: whether the run begins again on other hosts, and on which. Pure.

A host that the checks refuse is replaced before anything of the user has run, as often as there are spares. Where two
fail together and nothing tells which is bad, a spare takes the place of the later one; if the spare fails too, the
other one was bad. One that fails while the job runs is replaced `--node-restarts` times; a failure of the script itself
is no reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import msgspec

from nvrun.errors import UsageError
from nvrun.hosts.nodeset import fold
from nvrun.job import Doubt, Job
from nvrun.model import FAILURES, Attempt, Frozen, RunResult
from nvrun.options import Options

_SRUN = (
    "--node-restarts under Slurm: a node that Slurm itself finds down ends the whole job, unless it was submitted with"
    " --no-kill"
)


class Next(Frozen, frozen=True, kw_only=True):
    """What follows an attempt."""

    job: Job | None = None
    """None: the run is over."""
    line: str = ""
    """For the user."""
    struck_off: Mapping[str, str] | None = None
    """Hosts that are out from now on, and why, where that is not what was known."""


def check(job: Job) -> Iterator[str]:
    """What to tell the user of --node-restarts before the launch. UsageError where it cannot be."""
    if not job.options.node_restarts:
        return
    if not job.fleet:
        raise UsageError(
            f"--node-restarts: nvrun is one node here, and cannot put another host in its place ({job.mode.why})",
            hint="drop it, or have nvrun start all nodes: --hosts, --hostfile",
        )
    if not job.spares and job.least_hosts == len(job.hosts):
        yield "--node-restarts has no spare host to begin again on: give more hosts than --nodes, or --nnodes MIN:MAX"
    elif "srun" in job.kinds:
        yield _SRUN


def ended(job: Job, result: RunResult) -> Attempt:
    """The attempt as the results of later ones tell of it."""
    return Attempt(
        hosts=tuple(host.name for host in job.hosts),
        started=result.started,
        seconds=result.seconds,
        began=result.began,
        ended_by=result.ended_by,
        exit_code=result.exit_code,
        struck_off=result.bad_hosts,
    )


def after(job: Job, result: RunResult, struck_off: Mapping[str, str], *, interrupted: bool = False) -> Next:
    """What follows `job`, which ended so. `struck_off`: hosts with the reason, those of this attempt among them;
    `interrupted`: the user, or Slurm, has asked for an end."""
    if interrupted:
        wanted = result.bad_hosts and job.options.node_restarts and result.ended_by in FAILURES
        return Next(line="no restart: an end was asked for" if wanted else "")
    if result.began and result.ended_by == "lost" and not result.bad_hosts and job.options.node_restarts:
        return Next(line="no restart: the step of srun ended as a whole, which tells nothing of any node")
    if result.between and not result.bad_hosts and not result.began:
        why = next((each.message for each in result.findings if each.between == result.between), "")
        return with_a_spare(job, result.between, why or result.message, struck_off)
    if not result.bad_hosts or (result.began and result.ended_by not in FAILURES):
        return Next()
    following, names = job.without(struck_off.keys()), fold(list(result.bad_hosts))
    left = sum(host.name not in struck_off for host in (*job.hosts, *job.spares))
    too_few = f"no restart without {names}: {left} of the {job.least_hosts} hosts that the job needs are left"
    if not result.began:
        if following is None:
            return Next(line=too_few if job.restarts else "")
        line = f"without {names}: starting again on {_named(following)}"
        return Next(job=msgspec.structs.replace(following, attempt=job.attempt + 1), line=line)
    limit = job.options.node_restarts
    if not limit:
        return Next()
    if job.restarts >= limit:
        return Next(line=f"no further restart without {names}: {limit} of --node-restarts {limit} are used up")
    if following is None:
        return Next(line=too_few)
    reasons = "; ".join(f"{host}: {why.removeprefix(f'{host}: ')}" for host, why in result.bad_hosts.items())
    return Next(
        job=msgspec.structs.replace(
            following,
            attempt=job.attempt + 1,
            restarts=job.restarts + 1,
            proven=frozenset(host.name for host in job.hosts if host.name not in struck_off),
            options=_quick(job),
        ),
        line=f"restart {job.restarts + 1} of {limit} on {_named(following)}; struck off: {reasons}",
    )


def with_a_spare(job: Job, between: tuple[str, ...], why: str, struck_off: Mapping[str, str]) -> Next:
    """What follows where two hosts fail together: a spare in the place of the later one, and after that failed with
    the other as well, the later one and the spare without the other. No more than that: Next() says so."""
    doubt = job.doubt
    if doubt is None and job.spares:
        kept, out = sorted(between, key=[host.name for host in job.hosts].index)
        place = [host.name for host in job.hosts].index(out)
        found = Doubt(kept=kept, out=job.hosts[place], kind=job.kinds[place], why=why)
        gone = {**struck_off, out: why}
        line = f"{kept} and {out} fail together: a spare in the place of {out} shows which of them is bad"
    elif doubt and doubt.kept in between and not doubt.settled:
        found = msgspec.structs.replace(doubt, settled=True)
        job = msgspec.structs.replace(job, spares=(doubt.out, *job.spares), spare_kinds=(doubt.kind, *job.spare_kinds))
        gone = {host: told for host, told in struck_off.items() if host != doubt.out.name} | {doubt.kept: why}
        line = f"{doubt.kept} fails with the spare too"
    else:
        return Next()
    following = job.without(gone.keys())
    if following is None:
        return Next()
    return Next(
        job=msgspec.structs.replace(following, attempt=job.attempt + 1, doubt=found),
        line=f"{line}; starting again on {_named(following)}",
        struck_off=gone,
    )


def shown_bad(job: Job, struck_off: Mapping[str, str], *, began: bool) -> list[str]:
    """Of the hosts that are out, those that are known to be bad after an attempt of `job`. One of a pair that failed
    together is known to be bad only once the checks let the others run: a firewall everywhere is no host's fault."""
    doubt = job.doubt
    open_ = "" if doubt is None or began else doubt.kept if doubt.settled else doubt.out.name
    return [host for host in struck_off if host != open_]


def _named(job: Job) -> str:
    return ", ".join(host.name for host in job.hosts)


def _quick(job: Job) -> Options:
    """The hosts have been looked at; what is left of the job's time is the user's."""
    return job.options if job.options.check == "off" else dataclasses.replace(job.options, check="quick")
