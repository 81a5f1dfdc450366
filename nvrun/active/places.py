"""Facts and plan -> where each host can be tested. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import checks
from nvrun.checks.compare import groups_of
from nvrun.checks.job import complete, subnet
from nvrun.facts import HostFacts, Interface
from nvrun.model import Frozen, Skipped
from nvrun.topology.interface import addresses


class Place(Frozen, frozen=True, kw_only=True):
    """One host as the others see it: the address of the plan's interface."""

    host: int
    name: str
    address: str
    interface: str
    subnet: str = ""
    mtu: int | None = None
    gbps: float | None = None


def places(
    facts: Mapping[int, HostFacts], job: checks.Job, master: str | None
) -> tuple[dict[int, Place], tuple[Skipped, ...]]:
    """Host -> its place; hosts without one, and why. `master`: the rendezvous' address, whose family is taken."""
    owned = {host: set(addresses(known)) for host, known in facts.items()}
    fleet = {known.host: known for known in facts.values()}
    job = complete(job, fleet, groups_of(fleet))
    found: dict[int, Place] = {}
    skipped: list[Skipped] = []
    for host, known in facts.items():
        if known.network is None:
            reason = f"network: {known.missing.get('network', 'not read')}"
            skipped.append(Skipped(code="connections", host=known.host, reason=reason))
            continue
        interface = job.interface_of(known.host, known.network)
        address = _address(interface, master) if interface else None
        if interface is None or address is None:
            what = f"{interface.name} has no address" if interface else "no interface leads to the other hosts"
            skipped.append(Skipped(code="connections", host=known.host, reason=what))
            continue
        twice = [facts[other].host for other in owned if other != host and address in owned[other]]
        if twice:
            reason = f"{', '.join(twice)} has its address {address} too"
            skipped.append(Skipped(code="connections", host=known.host, reason=reason))
            continue
        speed = interface.speed_mbit / 1000 if interface.speed_mbit else None
        found[host] = Place(
            host=host,
            name=known.host,
            address=address,
            interface=interface.name,
            subnet=next((subnet(address, each.prefix) for each in interface.addresses if each.address == address), ""),
            mtu=interface.mtu,
            gbps=speed,
        )
    return found, tuple(skipped)


def _address(interface: Interface, master: str | None) -> str | None:
    """The rendezvous' own address where it is here; else the first global one of its family."""
    own = [each.address for each in interface.addresses if each.scope == "global"]
    if master in own:
        return master
    wanted = [address for address in own if master is None or (":" in address) == (":" in master)]
    return next(iter(wanted), None)
