"""Fleets for the tests of checks: recorded machines of tests/data/facts, copied, renamed and changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nvrun import facts
from nvrun.checks import Job, run
from nvrun.facts import HostFacts
from nvrun.model import Finding, Severity, Verdict

DATA = Path(__file__).parents[1] / "data" / "facts"
Change = Callable[[HostFacts], HostFacts]


def machine(name: str) -> HostFacts:
    (found,) = facts.from_json((DATA / f"{name}.json").read_bytes())
    return found


def with_(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


def fleet(name: str, count: int) -> dict[str, HostFacts]:
    """`count` healthy machines of that kind: n01, n02 ... with addresses, identities and GPUs of their own."""
    return {f"n{number:02}": _numbered(machine(name), number, count) for number in range(1, count + 1)}


def _numbered(one: HostFacts, number: int, count: int) -> HostFacts:
    host = f"n{number:02}"
    text = facts.to_json(one).decode()
    for gpu in one.gpus or ():
        text = text.replace(gpu.uuid, f"{gpu.uuid[:-12]}{number:04x}{gpu.uuid[-8:]}")
    for port in one.rdma or ():
        if port.node_guid:
            text = text.replace(f'"{port.node_guid}"', f'"{port.node_guid[:5]}{number:04x}{port.node_guid[9:]}"')
    (copy,) = facts.from_json(text.encode())
    assert copy.network
    assert copy.names
    assert copy.identity
    interfaces = tuple(
        with_(
            interface,
            addresses=tuple(
                with_(address, address=_moved(address.address, number)) if address.scope == "global" else address
                for address in interface.addresses
            ),
        )
        for interface in copy.network.interfaces
    )
    main = next(
        address.address
        for interface in interfaces
        for address in interface.addresses
        if address.scope == "global" and interface.kind != "loopback"
    )
    base = main.rpartition(".")[0]
    peers = {f"n{other:02}": (f"{base}.{other + 100}",) for other in range(1, count + 1) if other != number}
    numbered: HostFacts = with_(
        copy,
        host=host,
        identity=with_(
            copy.identity,
            hostname=host,
            nccl_host_hash=f"{host}{copy.identity.boot_id}",
            net_namespace=f"net:[{number}]",
        ),
        names=facts.Names(hostname=host, fqdn=host, resolves_to=(main,), peers=peers, localhost_ok=True),
        network=with_(copy.network, interfaces=interfaces),
        clock_offset_s=0.001,
        clock_error_s=0.001,
    )
    return numbered


def _moved(address: str, number: int) -> str:
    return f"{address.rpartition('.')[0]}.{number + 100}" if "." in address else f"{address}{number:x}"


def changed(hosts: dict[str, HostFacts], host: str, change: Change) -> dict[str, HostFacts]:
    return {name: change(known) if name == host else known for name, known in hosts.items()}


def section(name: str, **changes: Any) -> Change:
    """Changes fields of one section."""
    return lambda known: with_(known, **{name: with_(getattr(known, name), **changes)})


def gpu(index: int, **changes: Any) -> Change:
    """Changes fields of one GPU."""
    return lambda known: with_(
        known, gpus=tuple(with_(one, **changes) if one.index == index else one for one in known.gpus or ())
    )


def port(device: str, **changes: Any) -> Change:
    """Changes fields of one RDMA device's ports."""
    return lambda known: with_(
        known, rdma=tuple(with_(one, **changes) if one.device == device else one for one in known.rdma or ())
    )


def codes(verdict: Verdict, least: Severity = Severity.WARNING) -> set[str]:
    return {finding.code for finding in verdict.findings if finding.severity >= least}


def only(verdict: Verdict, code: str) -> Finding:
    """The one finding of that code; no other one above information may be there."""
    others = codes(verdict) - {code}
    assert not others, [finding.message for finding in verdict.findings if finding.code in others]
    (finding,) = [finding for finding in verdict.findings if finding.code == code]
    return finding


def judge(hosts: dict[str, HostFacts], job: Job | None = None) -> Verdict:
    return run(hosts, job or Job())
