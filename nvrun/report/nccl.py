"""What NCCL chose, as lines: networks, devices, ways between ranks, channels, timing. Pure: `NcclLog` -> text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from nvrun.facts import HostFacts
from nvrun.hosts.nodeset import fold
from nvrun.nccl.log_model import Communicator, NcclLog, NcclProcess

_COMMUNICATORS = 8
"""Communicators that are shown one by one; a job may have thousands."""


def lines(log: NcclLog, facts: Iterable[HostFacts] = ()) -> Iterator[str]:
    """The account; one line where there is nothing of NCCL. `facts`: of the hosts, where it is a run of nvrun."""
    if not log.lines:
        yield f"no line of NCCL was found: {_why_none(list(facts))}"
        return
    processes = f"{len(log.processes)} process{'es'[: 2 * (len(log.processes) > 1)]}"
    yield f"NCCL {', '.join(log.versions) or '(version not said)'}: {processes} on {fold(log.hosts)}"
    for label, read in _FACTS:
        yield from _by_value(label, log.processes, read)
    for communicator in sorted(log.communicators, key=lambda each: -each.nranks)[:_COMMUNICATORS]:
        yield from _communicator(communicator)
    if len(log.communicators) > _COMMUNICATORS:
        yield f"and {len(log.communicators) - _COMMUNICATORS} more communicators: --json"
    for warning in log.warnings[:10]:
        times = f" ({warning.times} times)" if warning.times > 1 else ""
        yield f"warned   {warning.host or 'a host'}: {warning.message}{times}"


def _why_none(facts: Sequence[HostFacts]) -> str:
    if facts and all(each.gpus == () for each in facts):
        return "this run did not use NCCL, its hosts have no GPU (torch's backend there is gloo)"
    set_to = next((each.env["NCCL_DEBUG"] for each in facts if each.env and "NCCL_DEBUG" in each.env), "")
    if set_to.upper() in ("VERSION", "INFO", "ABORT", "TRACE"):  # at WARN it is silent where all is well
        return f"NCCL_DEBUG={set_to} was set, so the ranks did not use NCCL (torch's backend was gloo?) or ended before"
    return "NCCL_DEBUG=INFO makes it say what it does, where the ranks use it"


def _joined(parts: Iterable[str]) -> str | None:
    return ", ".join(parts) or None


def _switch(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _cuda(driver: int | None) -> str | None:
    return None if driver is None else f"CUDA {driver // 1000}.{driver % 1000 // 10}"


_FACTS: Sequence[tuple[str, Callable[[NcclProcess], str | None]]] = (
    ("network", lambda each: each.network),
    ("bootstrap", lambda each: each.bootstrap and each.bootstrap.partition(":")[0]),
    ("sockets", lambda each: _joined(device.partition(":")[0] for device in each.sockets)),
    ("HCAs", lambda each: _joined(each.hcas)),
    ("GDR", lambda each: _joined(f"{hca} {'on' if on else 'off'}" for hca, on in sorted(each.gdr_by_hca.items()))),
    ("dma-buf", lambda each: _switch(each.dma_buf)),
    ("NVLS", lambda each: _switch(each.nvls)),
    ("driver", lambda each: _cuda(each.cuda_driver)),
    ("set", lambda each: _joined(f"{name}={value}" for name, value in sorted(each.variables.items()))),
)
"""What is told of processes: once where all say the same."""


def _by_value(label: str, processes: Iterable[NcclProcess], read: Callable[[NcclProcess], str | None]) -> Iterator[str]:
    holders: dict[str, list[str]] = {}
    for process in processes:
        value = read(process)
        if value is not None:
            holders.setdefault(str(value), []).append(process.host or "a host")
    for value, hosts in holders.items():
        where = f"  ({fold(sorted(set(hosts)))})" if len(holders) > 1 else ""
        yield f"{label:<8} {value}{where}"


def _communicator(each: Communicator) -> Iterator[str]:
    nodes = f", {each.nodes} node{'s'[: each.nodes > 1]}" if each.nodes else ""
    ranks = f": {each.nranks} ranks" if each.nranks else ", whose ranks are not said"
    yield f"communicator {each.id}{ranks}{nodes}"
    channels = [f"{number} {kind}" for kind, number in each.channels.items()]
    channels += [f"{each.rings} rings"] if each.rings else []
    channels += [f"{each.trees} trees"] if each.trees else []
    if channels:
        yield f"  channels {', '.join(channels)}"
    ways: Counter[str] = Counter()
    for route in each.routes:
        gdr = {True: " with GDR", False: " without GDR", None: ""}[route.gdr]
        ways[f"{route.via}{gdr}{' through a peer (PXN)' if route.through_peer else ''}"] += 1
    for way, pairs in ways.most_common():
        yield f"  {pairs:>4} pair{'s' if pairs > 1 else ' '} by {way}"
    missing = len(set(each.started) - set(each.completed))
    if missing:
        yield f"  init     {missing} of {len(each.started)} ranks did not complete it"
    if each.init_seconds:
        slowest = max(each.init_seconds, key=lambda rank: each.init_seconds[rank])
        phase = f", most of it {each.slowest_phase}" if each.slowest_phase else ""
        yield f"  init     up to {each.init_seconds[slowest]:.2f} s (rank {slowest}{phase})"
