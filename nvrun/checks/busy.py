"""A host that has too much to do: what did not answer there in time may be healthy. Pure."""

from __future__ import annotations

from nvrun.facts import HostFacts

RUNNABLE_PER_CPU = 2.0
"""Processes that want a CPU, above which a reading's own deadline says nothing. With 64 hosts on two cores resolvers
and stat passed theirs of 2 s by waiting for a CPU (measured)."""


def silent(error: str | None) -> bool:
    """The agent's word for a reading that said nothing in time (nvrun.agent.probe.child and .names)."""
    return "no answer" in (error or "")


def excused(error: str | None, facts: HostFacts) -> str:
    """Why this silence says nothing; empty for any other error, and where it is not known how much there is to do.

    Those that want a CPU count, where they are known: the load also counts processes that wait for a dead file server,
    which must not excuse that very server, and it is a minute late."""
    cpus = facts.cpus
    if not silent(error) or cpus is None or not cpus.online:
        return ""
    wanting = cpus.load1 if cpus.runnable is None else float(cpus.runnable)
    if wanting is None or wanting <= RUNNABLE_PER_CPU * len(cpus.online):
        return ""
    return f"no answer in time, but the host is busy: {wanting:.0f} processes want {len(cpus.online)} CPUs"
