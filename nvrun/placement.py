"""Facts -> where the ranks of a plan are put and which variables they get there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from nvrun import environment, presets, travel
from nvrun.bindfile import Row
from nvrun.binding import Bound, Memory, Mode, bind, omp_threads
from nvrun.environment import Chosen, Resolved
from nvrun.facts import HostFacts
from nvrun.hooks import Contribution, Hook, contributions
from nvrun.job import Job
from nvrun.mask import masked
from nvrun.meanings import means
from nvrun.model import Binding, EnvVar, Finding, Frozen, Severity, Skipped
from nvrun.numactl import prefix
from nvrun.plan import HostPlan, Plan, RankPlan, as_mapping
from nvrun.preset_file import Preset
from nvrun.preset_fit import unmet
from nvrun.topology.from_facts import from_facts
from nvrun.topology.gid import gid_index
from nvrun.topology.interface import Peers, addresses, socket_interface
from nvrun.topology.model import Topology
from nvrun.topology.nics import compute_nics, hca_lists
from nvrun.topology.nvlink import gpu_order
from nvrun.torchrun import TorchrunArgs
from nvrun.tune.known import TUNED, of_hardware

FORWARDED_OVER = means(
    "env-forwarded-over",
    "a variable that travelled to a host has another value there",
    read="the host's own environment and what travels to it (nvrun plan --show-env)",
    why="the job gets this machine's value; a path or a library of the host may have been meant",
    remedy="--env NAME=VALUE decides it for all hosts; unset it here and the host's own holds",
    source="what travels: nvrun/travel.py",
)


class Wishes(Frozen, frozen=True, kw_only=True):
    """What the user asked for, as far as placing goes."""

    args: TorchrunArgs
    bind: str | None = None
    """A mode's name; None means `node`."""
    table: Mapping[int, Row] | None = None
    """A binding file's rows, in place of a mode."""
    memory: Memory = "preferred"
    gpu_order: str | None = None
    """`nvlink`: a host's GPUs are numbered along NVLink."""
    omp: str | None = None
    """`auto`: OMP_NUM_THREADS is the rank's cores."""
    presets: tuple[Preset, ...] = ()
    named: frozenset[str] = frozenset()
    """Presets that the user asked for by name, and is told of what they leave out."""
    hooks: tuple[Hook, ...] = ()
    """What they contribute stands beside nvrun's own choice."""
    env: tuple[EnvVar, ...] = ()
    defaults: tuple[EnvVar, ...] = ()


class Placed(Frozen, frozen=True, kw_only=True):
    """A plan with bindings and variables, and what is to be said about them."""

    plan: Plan
    environments: Mapping[str, tuple[Resolved, ...]]
    """Host -> every variable with its provenance."""
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    """Prerequisites of presets that could not be judged."""
    notices: tuple[str, ...] = ()


def wishes_of(job: Job, facts: Collection[HostFacts]) -> Wishes:
    """The user's wishes; `--preset auto` and `--preset tuned` are decided by the facts."""
    fitting = [fit.preset for fit in presets.fitting(job.auto_presets, list(facts)) if not fit.reason]
    tuned = of_hardware(job.tuned_presets, list(facts)) if TUNED in job.options.preset else ()
    return Wishes(
        args=job.args,
        bind=None if job.table is not None else job.options.bind,
        table=job.table,
        memory=job.options.bind_memory,
        gpu_order=job.options.gpu_order,
        omp=job.options.omp,
        presets=(*fitting, *tuned, *job.presets),
        named=frozenset(preset.name for preset in job.presets),
        hooks=job.hooks,
        env=job.env,
        defaults=job.defaults,
    )


def place(
    plan: Plan, facts: Mapping[int, HostFacts], wishes: Wishes, topologies: Mapping[int, Topology] | None = None
) -> Placed:
    """The plan with every rank's binding and the variables that nvrun, hooks and presets give, under the user's own.

    With the user's own --numa-binding nvrun binds nothing. `topologies`: node -> its own, where it was not read from
    these facts.
    """
    topologies = topologies or {node: from_facts(each) for node, each in facts.items()}
    chosen = _automatic(plan, facts, topologies)
    contribution = contributions(wishes.hooks, plan, facts)
    findings: list[Finding] = list(contribution.findings)
    requires = dict.fromkeys(name for preset in wishes.presets for name in preset.requires)
    skipped: list[Skipped] = []
    notices: dict[str, None] = {}
    environments: dict[str, tuple[Resolved, ...]] = {}
    hosts: list[HostPlan] = []
    for host in plan.hosts:
        known = facts[host.node]
        resolved = environment.resolve(
            automatic=(
                *chosen[host.node],
                *_order(known, topologies[host.node], wishes),
                *contribution.env.get(host.node, ()),
            ),
            presets=[
                variable
                for preset in wishes.presets
                for variable in presets.variables(preset, versions=versions(known), run_dir=host.folder)
            ],
            conf_files=known.conf_files,
            config=wishes.defaults,
            host=known.env if known.own_env is None else known.own_env,
            forwarded=[variable for variable in host.env if variable.source == "forwarded"],
            flags=wishes.env,
        )
        environments[host.host.name] = resolved
        notices |= dict.fromkeys(environment.notices(resolved))
        unset = (presets.unset(each, versions(known)) for each in wishes.presets if each.name in wishes.named)
        notices |= dict.fromkeys(filter(None, unset))
        given = tuple(each.variable for each in resolved if each.set_by_nvrun and environment.is_nvruns(each.variable))
        values = {each.variable.name: each.variable.value for each in resolved}
        ranks, bound = _bound(host, known, topologies[host.node], wishes, given, values)
        findings += bound.findings
        findings += _forwarded_over(host, known)
        lacking = unmet(requires, known)
        findings += (each for each in lacking if isinstance(each, Finding))
        skipped += (each for each in lacking if isinstance(each, Skipped))
        notices |= dict.fromkeys(_idle(host, bound.gpus, wishes.args))
        hosts.append(
            msgspec.structs.replace(
                host,
                ranks=tuple(_hooked(rank, contribution) for rank in ranks),
                echo=contribution.echo.get(host.node, ()),
            )
        )
    return Placed(
        plan=msgspec.structs.replace(plan, hosts=tuple(hosts)),
        environments=environments,
        findings=tuple(findings),
        skipped=tuple(skipped),
        notices=tuple(notices),
    )


def _forwarded_over(host: HostPlan, facts: HostFacts) -> Iterator[Finding]:
    """Variables that the host has with another value than the one that travelled there."""
    for variable in host.env:
        own = (facts.own_env or {}).get(variable.name)
        if variable.source == "forwarded" and own is not None and own != variable.value:
            yield Finding(
                code=FORWARDED_OVER,
                severity=Severity.INFO if variable.name in travel.NAMES else Severity.WARNING,
                host=host.host.name,
                subject=variable.name,
                message=f"{variable.name} is {masked(variable.name, own)} there; the job gets this machine's value,"
                f" {masked(variable.name, variable.value)}",
                observed=masked(variable.name, own),
                expected=masked(variable.name, variable.value),
                remedy=f"--env {variable.name}=VALUE decides it for all hosts",
            )


def _bound(
    host: HostPlan,
    facts: HostFacts,
    topology: Topology,
    wishes: Wishes,
    given: tuple[EnvVar, ...],
    values: Mapping[str, str],
) -> tuple[tuple[RankPlan, ...], Bound]:
    bound = bind(
        facts,
        local_ranks=len(host.ranks),
        env={**as_mapping(host.defaults), **(facts.env or {}), **as_mapping(host.env), **as_mapping(given)},
        memory=wishes.memory,
        mode="none" if wishes.args.numa_binding else cast(Mode, wishes.bind or "node"),
        table=None if wishes.args.numa_binding else wishes.table,
        virtual_local_rank=wishes.args.virtual_local_rank,
        topology=topology,
    )
    ranks: list[RankPlan] = []
    for rank, binding in zip(host.ranks, bound.bindings, strict=True):
        how = prefix(binding, facts)
        why = "torchrun binds: --numa-binding" if wishes.args.numa_binding else binding.why
        ranks.append(
            msgspec.structs.replace(
                rank,
                binding=msgspec.structs.replace(binding, why="; ".join(part for part in (why, how.missing) if part)),
                prefix=how.argv,
                cpus=how.affinity,
                env=(*given, *_threads(binding, facts, wishes, values)),
            )
        )
    return tuple(ranks), bound


def _idle(host: HostPlan, gpus: int, args: TorchrunArgs) -> Iterator[str]:
    """One rank a node is torchrun's default; where a node has several GPUs it is rarely meant."""
    if len(host.ranks) == 1 < gpus and host.host.slots is None and not args.is_set("nproc_per_node"):
        yield f"{host.host.name}: 1 rank, torchrun's default, but {gpus} GPUs: --nproc-per-node gpu uses all of them"


def _threads(binding: Binding, facts: HostFacts, wishes: Wishes, values: Mapping[str, str]) -> Iterator[EnvVar]:
    """--omp auto, where the user has set no number."""
    cores = omp_threads(binding, facts) if wishes.omp == "auto" and "OMP_NUM_THREADS" not in values else None
    if cores is not None:
        yield EnvVar(name="OMP_NUM_THREADS", value=str(cores), source="nvrun: --omp auto", why="the rank's cores")


def _order(facts: HostFacts, topology: Topology, wishes: Wishes) -> Iterator[EnvVar]:
    """--gpu-order nvlink: all GPUs of the host, numbered along NVLink; a list of the user's own stays as it is."""
    if wishes.gpu_order != "nvlink" or not facts.gpus or "CUDA_VISIBLE_DEVICES" in (facts.env or {}):
        return
    order = gpu_order(topology)
    if list(order) != sorted(order):
        value = ",".join(map(str, order))
        yield EnvVar(name="CUDA_VISIBLE_DEVICES", value=value, source="nvrun", why="--gpu-order nvlink")


def _hooked(rank: RankPlan, contribution: Contribution) -> RankPlan:
    return msgspec.structs.replace(
        rank,
        prefix=(*rank.prefix, *contribution.prefix.get(rank.rank, ())),
        last=contribution.last.get(rank.rank, ()),
    )


def _automatic(
    plan: Plan, facts: Mapping[int, HostFacts], topologies: Mapping[int, Topology]
) -> Mapping[int, Sequence[EnvVar]]:
    """Host -> what nvrun sets there unasked."""
    peers = Peers({known.host: addresses(known) for known in facts.values()})
    names = {host.node: host.host.name for host in plan.hosts}
    several = len(plan.hosts) > 1
    hcas = hca_lists({names[node]: topologies[node] for node in facts}) if several else {}
    found: dict[int, Sequence[EnvVar]] = {}
    for node, name in names.items():
        interface = socket_interface(facts[node], peers)
        hca = hcas.get(name)
        gid = gid_index(facts[node], compute_nics(topologies[node]).chosen) if several else None
        found[node] = environment.automatic(
            interface=Chosen(value=interface.name, why=interface.why) if interface.name else None,
            hcas=Chosen(value=hca.value.removeprefix("="), why=hca.why) if hca and hca.value else None,
            gid_index=Chosen(value=str(gid), why="RoCE v2 over IPv4; NCCL finds it itself from 2.21 on")
            if gid
            else None,
        )
    return found


def versions(facts: HostFacts) -> Mapping[str, str | None]:
    """What a variable's version range is held against."""
    software = facts.software
    return {"nccl": software.nccl, "torch": software.torch} if software else {"nccl": None, "torch": None}
