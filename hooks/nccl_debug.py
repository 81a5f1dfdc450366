"""NCCL writes what it chose and read: one file a process, among the host's logs.

On by default, and silent where the user set any of NCCL_DEBUG, NCCL_DEBUG_FILE, NCCL_DEBUG_SUBSYS. After a success the
first host's files are kept, after a failure those of the hosts whose ranks failed; `keep=all` keeps all. Warnings
reach the console as ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Annotated, Literal

from nvrun.environment import conf_variables
from nvrun.facts import HostFacts
from nvrun.hooks import Contribution, Echoed, EnvVar, Frozen, Job, Option, log_folder
from nvrun.model import RunResult
from nvrun.nccl import parse
from nvrun.options import choice
from nvrun.plan import HostPlan, Plan, as_mapping

NET_UP_TO = 64
"""Ranks of a job up to which NET is logged: its lines grow with the peers."""
RAS_PORTS = range(28100, 28900)
"""Outside the ephemeral range (32768 on), and not NCCL's own default 28028, which every other job takes."""


class Options(Frozen, frozen=True, kw_only=True):
    keep: Annotated[
        Literal["some", "all"],
        Option(choice("some", "all"), "some|all", "whose files are kept: of the hosts named above, or of all"),
    ] = "some"


def contribute(plan: Plan, facts: Mapping[int, HostFacts], options: Options) -> Contribution:
    port = ras_port(plan.run_id, facts.values())
    env = {host.node: tuple(_variables(host, plan, facts[host.node], port)) for host in plan.hosts}
    warnings = Echoed(files="nccl.*.log", text=" NCCL WARN ")
    return Contribution(env=env, echo={node: (warnings,) for node, variables in env.items() if variables})


def _variables(host: HostPlan, plan: Plan, facts: HostFacts, port: int | None) -> Iterator[EnvVar]:
    def variable(name: str, value: str, why: str) -> EnvVar:
        return EnvVar(name=name, value=value, source="hook nccl-debug", why=why)

    nccl = parse.version(facts.software.nccl or "") if facts.software else ()
    if nccl >= (2, 24) and port is not None:
        yield variable("NCCL_RAS_ADDR", f"localhost:{port}", "a port of this job alone")
    if not nccl or {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"} & users_names(host, facts):
        return
    folder = log_folder(host, plan).replace("%", "%%")
    subsystems = ["INIT", "ENV"]
    subsystems += ["BOOTSTRAP"] if nccl >= (2, 21) else []  # unknown names before
    subsystems += ["NET"] if plan.world_size <= NET_UP_TO else []
    yield variable("NCCL_DEBUG", "INFO", "NCCL says what it chose and read")
    yield variable("NCCL_DEBUG_SUBSYS", ",".join(subsystems), "what a diagnosis reads, and no more")
    yield variable("NCCL_DEBUG_FILE", f"{folder}/nccl.%h.%p.log", "one file a process, among the host's logs")


def users_names(host: HostPlan, facts: HostFacts) -> set[str]:
    """What the user set anywhere that NCCL reads on that host."""
    given = {**as_mapping(host.defaults), **(facts.env or {}), **as_mapping(host.env)}
    return {*given, *(variable.name for variable in conf_variables(facts.conf_files or {}, given))}


def ras_port(run_id: str, facts: Collection[HostFacts]) -> int | None:
    """A port that follows from the run's id and that nobody listens on at any of the hosts."""
    taken = {listener.port for each in facts for listener in each.listeners or ()}
    first = zlib.crc32(run_id.encode()) % len(RAS_PORTS)
    return next((port for port in (*RAS_PORTS[first:], *RAS_PORTS[:first]) if port not in taken), None)


def around(job: Job, options: Options) -> Generator[None, None, None]:
    yield
    if options.keep == "some" and job.result is not None:
        names = [host.host.name for host in job.plan.hosts if writes(host)]
        others = [name for name in names if name not in kept(names, job.result)]
        if others:
            job.on_hosts(["sh", "-c", 'rm -f -- "$NVRUN_FOLDER"/nccl.*.log'], hosts=others)


def writes(host: HostPlan) -> bool:
    """Whether this hook's file name is the one that holds there."""
    return any(
        variable.name == "NCCL_DEBUG_FILE" and variable.source == "hook nccl-debug"
        for rank in host.ranks
        for variable in rank.env
    )


def kept(names: list[str], result: RunResult) -> Collection[str]:
    """Hosts whose files stay: after a failure that no rank stands for, all."""
    if result.exit_code == 0:
        return names[:1]
    return {end.host for end in result.ranks if end.code and not end.by_nvrun} or names
