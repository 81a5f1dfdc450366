"""The command that puts a rank where its binding says. Pure.

`--all` frees numactl from the mask it was started under: without it an inner numactl refuses CPUs outside the outer
one's (numactl(8); exit 1).
"""

from __future__ import annotations

from nvrun.facts import HostFacts
from nvrun.model import Binding, Frozen
from nvrun.topology.cpus import format_cpulist

_MEMORY_FLAG = {"preferred": "--preferred={}", "strict": "--membind={}", "local": "--localalloc"}


class Placement(Frozen, frozen=True, kw_only=True):
    """How a binding is carried out: by a command, else by the process itself."""

    argv: tuple[str, ...] = ()
    """Stands before the program: `/usr/bin/numactl --all --physcpubind=0-15 --preferred=0`; () where there is none."""
    affinity: tuple[int, ...] = ()
    """CPUs for sched_setaffinity where `argv` is empty; () leaves the mask alone."""
    missing: str = ""
    """What of the binding is not carried out, and why."""


def prefix(binding: Binding, facts: HostFacts) -> Placement:
    """The numactl command of one rank, or sched_setaffinity where numactl or the memory policy is not to be had."""
    flags = [f"--physcpubind={format_cpulist(binding.cpus)}"] if binding.cpus else []
    if binding.memory:
        flags.append(_MEMORY_FLAG[binding.memory].format(binding.memory_node))
    if not flags:
        return Placement()
    lacking = _lacking(facts, with_memory=bool(binding.memory))
    if not lacking and facts.software and facts.software.numactl:
        return Placement(argv=(facts.software.numactl, "--all", *flags))
    if not binding.memory:
        return Placement(affinity=binding.cpus)
    return Placement(affinity=binding.cpus, missing=f"no memory policy is set: {lacking}")


def _lacking(facts: HostFacts, *, with_memory: bool) -> str:
    """Why numactl cannot be used on this host; empty where it can."""
    software = facts.software
    if software is None:
        return f"whether numactl is there could not be read ({facts.missing.get('software', 'no reason given')})"
    if software.numactl is None:
        return "numactl is not installed there"
    if with_memory and software.mempolicy_allowed is None:
        return "whether set_mempolicy works there could not be read"
    if with_memory and not software.mempolicy_allowed:
        return "set_mempolicy is forbidden there (a container's seccomp profile; CAP_SYS_NICE allows it)"
    return ""
