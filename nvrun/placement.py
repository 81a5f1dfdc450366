"""Facts -> where the ranks of a plan are put and which variables they get. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from nvrun.bindfile import Row
from nvrun.binding import Mode, bind
from nvrun.facts import HostFacts
from nvrun.model import EnvVar, Finding
from nvrun.numactl import prefix
from nvrun.plan import HostPlan, Plan, RankPlan, as_mapping
from nvrun.torchrun import TorchrunArgs


class Placed(msgspec.Struct, frozen=True):
    """A plan with bindings and what is to be said about them."""

    plan: Plan
    findings: tuple[Finding, ...]


def place(
    plan: Plan,
    facts: Mapping[int, HostFacts],
    args: TorchrunArgs,
    *,
    mode: str | None = None,
    table: Mapping[int, Row] | None = None,
) -> Placed:
    """The plan with every rank's binding. With the user's own --numa-binding nvrun binds nothing."""
    findings: list[Finding] = []
    hosts: list[HostPlan] = []
    for host in plan.hosts:
        known = facts[host.node]
        bound = bind(
            known,
            local_ranks=len(host.ranks),
            env={**as_mapping(host.defaults), **(known.env or {}), **as_mapping(host.env)},
            mode="none" if args.numa_binding else cast(Mode, mode or "node"),
            table=None if args.numa_binding else table,
            virtual_local_rank=args.virtual_local_rank,
        )
        findings += bound.findings
        ranks: list[RankPlan] = []
        for rank, binding in zip(host.ranks, bound.bindings, strict=True):
            how = prefix(binding, known)
            why = "; ".join(part for part in (binding.why, how.missing) if part)
            ranks.append(
                msgspec.structs.replace(
                    rank,
                    binding=msgspec.structs.replace(binding, why=why),
                    prefix=how.argv,
                    cpus=how.affinity,
                )
            )
        hosts.append(msgspec.structs.replace(host, ranks=tuple(ranks)))
    return Placed(msgspec.structs.replace(plan, hosts=tuple(hosts)), tuple(findings))


def with_variables(plan: Plan, node: int, variables: Sequence[EnvVar]) -> Plan:
    """The plan with further variables for all ranks of one node, set at the gate."""
    hosts = list(plan.hosts)
    ranks = tuple(msgspec.structs.replace(rank, env=(*rank.env, *variables)) for rank in hosts[node].ranks)
    hosts[node] = msgspec.structs.replace(hosts[node], ranks=ranks)
    return msgspec.structs.replace(plan, hosts=tuple(hosts))
