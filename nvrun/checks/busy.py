"""A host that has too much to do: what did not answer there in time may be healthy. Pure."""

from __future__ import annotations

from nvrun.facts import HostFacts

RUNNABLE_PER_CPU = 2.0
"""Processes that want a CPU, by the load of the last minute, above which a reading's own deadline says nothing. With
64 hosts on two cores resolvers and stat passed theirs of 2 s by waiting for a CPU (measured)."""


def too_busy(facts: HostFacts) -> str:
    """Why silence says nothing there; empty where it does, or where the load is not known."""
    cpus = facts.cpus
    if cpus is None or cpus.load1 is None or not cpus.online:
        return ""
    if cpus.load1 <= RUNNABLE_PER_CPU * len(cpus.online):
        return ""
    return f"no answer in time, but the host is busy: load {cpus.load1:.0f} on {len(cpus.online)} CPUs"
