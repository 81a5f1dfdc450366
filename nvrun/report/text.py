"""Lines for a terminal. Pure: values in, text out."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nvrun.checks.decide import EXIT_REFUSED
from nvrun.environment import Resolved, rows
from nvrun.facts import HostFacts
from nvrun.hosts.nodeset import fold
from nvrun.model import FAILURES, EndedBy, Finding, RunResult, Severity
from nvrun.plan import HostPlan, Plan
from nvrun.report.findings import folded
from nvrun.topology.cpus import format_cpulist


def plan_lines(plan: Plan, folder: str, spares: Sequence[str] = ()) -> Iterator[str]:
    """What is about to run, in a few lines."""
    layout = ", ".join(f"{host.host.name} x{len(host.ranks)}" for host in plan.hosts[:8])
    if len(plan.hosts) == 1:
        layout = plan.hosts[0].host.name
    more = f" and {len(plan.hosts) - 8} more" if len(plan.hosts) > 8 else ""
    where = "" if plan.master_addr is None else f", rendezvous {plan.master_addr} port {plan.master_port}"
    yield f"nvrun: {_how_many(plan)} on {layout}{more}{where}"
    for host in plan.hosts[:8]:
        yield f"nvrun:   {host.host.name}: {_placed(host)}"
    if spares:
        yield f"nvrun:   spare{'s'[: len(spares) > 1]}: {fold(spares)}"
    yield f"nvrun: plan and logs in {folder}"


def _how_many(plan: Plan) -> str:
    """`4 ranks`, of the job or, on one of its nodes, `2 of 4 ranks`."""
    here = sum(len(host.ranks) for host in plan.hosts)
    if plan.whole or plan.world_size == here:
        return f"{here} rank{'s'[: here > 1]}"
    return f"{here} of {plan.world_size} ranks"


def _placed(host: HostPlan) -> str:
    """A host's ranks in one line: which, on which GPUs, bound where."""
    numbered = host.node_rank is not None
    ranks = [rank.rank if numbered else rank.local_rank for rank in host.ranks]
    bindings = [rank.binding for rank in host.ranks if rank.binding]
    gpus = [binding.gpu_index for binding in bindings if binding.gpu_index is not None]
    parts = [f"{'' if numbered else 'local '}rank{'s' if len(ranks) > 1 else ''} {format_cpulist(ranks)}"]
    parts += [f"GPU{'s' if len(gpus) > 1 else ''} {format_cpulist(gpus)}"] if gpus else []
    groups: dict[tuple[int, ...], list[int]] = {}
    for binding in bindings:
        groups.setdefault(binding.cpus, []).append(binding.local_rank)
    for cpus, locals_ in list(groups.items())[:4]:
        where = f"CPUs {format_cpulist(cpus)}" if cpus else next((b.why for b in bindings if not b.cpus), "not bound")
        parts.append(where if len(groups) == 1 else f"local {format_cpulist(locals_)} on {where}")
    parts += ["..."] if len(groups) > 4 else []
    return ", ".join(parts)


def rank_table(plan: Plan) -> Iterator[str]:
    """One line a rank: where it runs, on what, and why there; reasons that all ranks share stand below, once."""
    reasons = [(rank.binding.why if rank.binding else "").split("; ") for host in plan.hosts for rank in host.ranks]
    shared = [why for why in reasons[0] if why and all(why in each for each in reasons)] if len(reasons) > 1 else []
    rows = [("rank", "host", "local", "GPU", "CPUs", "memory", "NICs", "why")]
    for host in plan.hosts:
        for rank in host.ranks:
            binding = rank.binding
            rows.append(
                (
                    "?" if host.node_rank is None else str(rank.rank),
                    host.host.name,
                    str(rank.local_rank),
                    "-" if binding is None or binding.gpu_index is None else str(binding.gpu_index),
                    format_cpulist(binding.cpus) or "all" if binding else "all",
                    "-" if binding is None or binding.memory_node is None else f"node {binding.memory_node}",
                    ",".join(binding.nics[:2]) or "-" if binding else "-",
                    "; ".join(why for why in reasons[len(rows) - 1] if why not in shared),
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[7]]).rstrip()
    yield from (f"all ranks: {why}" for why in shared)
    if any(host.node_rank is None for host in plan.hosts):
        yield "rank ?: torchrun's rendezvous numbers the nodes"
    elif not plan.whole and plan.hosts[0].node_rank:
        yield f"ranks are counted as if every node had {len(plan.hosts[0].ranks)}"


def environment_lines(environments: Mapping[str, Sequence[Resolved]], linted: Sequence[Finding]) -> Iterator[str]:
    """Each variable with its source and reason, once, or once for each value where hosts differ; below it what lint
    finds wrong with that value."""
    for row in rows(environments):
        where = f" on {fold(row.hosts)}" if row.hosts else ""
        yield f"{row.name}={row.value}{where}  ({row.source}{': ' + row.why if row.why else ''})"
        for other in row.overrode:
            yield f"    instead of {other}"
        for finding in linted:
            if finding.observed == f"{row.name}={row.value}" and finding.severity >= Severity.WARNING:
                yield f"    {finding.severity.label}: {finding.message} [{finding.code}]"


def result_lines(result: RunResult, folder: str, page: str) -> Iterator[str]:
    """How it ended; nothing where there is nothing to say. `folder`: the run's; empty where it is gone. `page`: why it
    failed; empty where that is not known."""
    told = _unwrapped(page)
    yield from finding_lines(finding for finding in result.findings if _unwrapped(finding.message) not in told)
    first = result.first_failure
    if first:
        yield f"nvrun: rank {first.rank} on {first.host} (local rank {first.local_rank}) {ended(first.code)}"
        if not page:
            yield from (f"    {line}" for line in first.tail)
    elif result.message and _unwrapped(result.message) not in told:
        # After the first line torchrun's last ones may stand, as they do on the page.
        yield f"nvrun: {result.message.partition(chr(10))[0] if page else result.message}"
    for host, dropped in sorted(result.console_dropped.items()):
        files = f"; its files in {folder} have them" if folder else ""
        yield f"nvrun: {dropped} bytes of {host}'s output were not shown here{files}"
    for place in result.not_fetched:
        yield f"nvrun: logs that could not be brought back: {place}"
    if page:
        yield ""
        yield page
        yield f"All of it in one archive, for those who help: nvrun bundle {result.run_id}"
    elif result.ended_by in FAILURES and folder:
        yield f"nvrun: why, and what to do: nvrun diagnose {result.run_id} (logs in {folder})"


def _unwrapped(text: str) -> str:
    return " ".join(text.split())


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Cause and remedy, the worst first."""
    for group in folded(findings):
        finding, hosts = group.finding, group.hosts
        where = fold(hosts) if len(hosts) > 1 or not finding.message.startswith(finding.host or ":") else ""
        yield f"nvrun: {where}{': ' if where else ''}{group.message}"
        if finding.remedy:
            yield f"nvrun:   {group.remedy}"


def facts_lines(facts: HostFacts) -> Iterator[str]:
    """A host in a few lines."""
    software, cpus, memory = facts.software, facts.cpus, facts.memory
    yield facts.host
    if software:
        parts = [f"Python {software.python}", f"torch {software.torch or 'not installed'}"]
        parts += [f"NCCL {software.nccl}"] if software.nccl else []
        parts += [f"driver {software.driver}"] if software.driver else []
        yield f"  software  {', '.join(parts)} ({software.executable})"
    for gpu in facts.gpus or ():
        size = "" if gpu.memory_total is None else f", {gpu.memory_total >> 30} GiB"
        node = "unknown" if gpu.numa_node is None else str(gpu.numa_node)
        yield f"  GPU {gpu.index}     {gpu.name}{size}, {gpu.pci}, NUMA node {node}"
    if facts.gpus == ():
        yield "  GPUs      none"
    if cpus and memory:
        nodes = len(facts.numa or ()) or "unknown"
        usable = f"{len(cpus.allowed)} of {len(cpus.online)} usable"
        yield f"  CPUs      {usable}, NUMA nodes {nodes}, {memory.total_bytes >> 30} GiB"
    for interface in facts.network.interfaces if facts.network else ():
        addresses = [f"{each.address}/{each.prefix}" for each in interface.addresses if each.scope == "global"]
        if addresses and interface.kind != "loopback":
            speed = f", {interface.speed_mbit} Mb/s" if interface.speed_mbit else ""
            yield f"  network   {interface.name} {', '.join(addresses)}, MTU {interface.mtu}{speed}"
    for port in facts.rdma or ():
        yield f"  RDMA      {port.device}:{port.port} {port.link_layer} {port.state}"
    for section, reason in facts.missing.items():
        yield f"  unknown   {section}: {reason}"


_ENDS: Mapping[EndedBy, str] = {
    "success": "ended well",
    "rank": "a rank failed",
    "torchrun": "torchrun failed",
    "signal": "stopped by a signal",
    "lost": "a host was lost",
    "hang": "it hung",
    "preflight": "not launched",
    "unreachable": "a host was not reached",
    "internal": "nvrun could not go on",
}


def end_in_words(ended_by: EndedBy, exit_code: int) -> str:
    """How a run ended: `a rank failed (exit 1)`, `refused by the checks (exit 78)`, `ended well`."""
    refused = ended_by == "preflight" and exit_code == EXIT_REFUSED
    return f"{'refused by the checks' if refused else _ENDS[ended_by]}{f' (exit {exit_code})' if exit_code else ''}"


def ended(code: int | None) -> str:
    """An exit status in words: `exited with 37`, `was killed by SIGKILL`."""
    if code is None:
        return "ended, nobody saw how"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
