"""What the plan said against where the ranks are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvrun.meanings import found, means
from nvrun.model import Finding, Severity
from nvrun.plan import HostPlan, RankPlan
from nvrun.topology.cpus import format_cpulist, parse_cpulist

CPUS, MEMORY, GPU = (
    means(
        code,
        summary,
        read=read,
        why="data and threads are not where the plan put them: what was measured or judged of it does not hold",
        remedy="does the script choose a device or bind itself? --bind none leaves it all to the script",
        source=source,
    )
    for code, summary, read, source in (
        ("rank-cpus-differ", "a rank runs on other CPUs than planned", "Cpus_allowed_list of the rank", "proc(5)"),
        ("rank-memory-differs", "a rank has another memory policy than planned", "numa_maps of the rank", "numa(7)"),
        ("rank-gpu-differs", "a rank computes on another GPU than planned", "NVML's processes of each GPU", "NVML"),
    )
)

_POLICY = {"preferred": "prefer", "strict": "bind", "local": "local"}


def differences(host: HostPlan, seen: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """One finding for each thing that is not where the plan put it. `seen` is nvrun.agent.inspect's answer; what could
    not be read there is passed over."""
    for rank in host.ranks:
        there = seen.get(str(rank.local_rank))
        if there and rank.binding:
            yield from _of_rank(host, rank, there)


def all_on_gpus(host: HostPlan, seen: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether every rank that is to have a GPU uses one by now."""
    return all(
        seen.get(str(rank.local_rank), {}).get("gpus") != [] for rank in host.ranks if rank.binding and rank.binding.gpu
    )


def _of_rank(host: HostPlan, rank: RankPlan, there: Mapping[str, Any]) -> Iterator[Finding]:
    binding = rank.binding
    assert binding is not None
    if binding.cpus and there["cpus"] is not None and parse_cpulist(there["cpus"]) != binding.cpus:
        yield _elsewhere(host, rank, CPUS, "CPUs", there["cpus"], format_cpulist(binding.cpus))
    wanted = f"{_POLICY[binding.memory]}:{binding.memory_node}" if binding.memory in ("preferred", "strict") else ""
    policy = (there["policy"] or "").replace("prefer (many)", "prefer")
    if wanted and rank.prefix and policy and policy != wanted:
        yield _elsewhere(host, rank, MEMORY, "memory policy", policy, wanted)
    if binding.gpu and there["gpus"] and binding.gpu not in there["gpus"]:
        yield _elsewhere(host, rank, GPU, "GPU", ", ".join(there["gpus"]), binding.gpu)


def _elsewhere(host: HostPlan, rank: RankPlan, code: str, what: str, observed: str, expected: str) -> Finding:
    name = f"local rank {rank.local_rank}" if host.node_rank is None else f"rank {rank.rank}"
    return found(
        code,
        Severity.WARNING,
        f"{name} on {host.host.name}: its {what} is {observed}, the plan said {expected}",
        host=host.host.name,
        subject=name,
        observed=observed,
        expected=expected,
    )
