"""What NCCL says it read and chose, rank by rank, held against the plan. Pure.

NCCL goes on with its default where it does not like a value, and with another network where it does not find the one
that was meant: its own lines (NCCL_DEBUG=INFO) are the only witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from nvrun.environment import conf_variables
from nvrun.facts import HostFacts
from nvrun.meanings import found
from nvrun.model import Finding, Frozen, RankEnd, Severity
from nvrun.nccl import catalogue, meanings, parse  # noqa: F401 - meanings declares the codes
from nvrun.nccl.log import read_log
from nvrun.nccl.log_findings import rejected, spans_hosts, why_no_rdma
from nvrun.nccl.log_model import NcclLog, NcclProcess
from nvrun.plan import HostPlan, Plan, RankPlan, as_mapping
from nvrun.topology.cpus import format_cpulist

NOTED: Mapping[str, object] = {
    "files": "nccl.*.log",
    "after": "NCCL INFO ",
    "texts": (
        " set by environment to ",
        "NCCL INFO Invalid ",
        "NCCL INFO User asked for a m",
        " is too low",
        "NCCL INFO Using network ",
        "NCCL INFO NET/IB : No device found",
    ),
}
"""The lines that agents tell the launcher while the job runs, from hook nccl-debug's files and the ranks' output."""

_MOST_LINES = 1000
"""Of a rank; NCCL writes some twenty of these."""

Place = tuple[int, int]
"""Node and local rank."""


class Asked(Frozen, frozen=True, kw_only=True):
    """What one rank was given, as far as NCCL's words can be held against it."""

    rank: int | None
    """None where it is not known whose words these are."""
    host: str
    variables: Mapping[str, str] = {}
    """NCCL's, from whatever layer."""
    whole: bool = False
    """The host's own environment was read too: what is not in `variables` was not set for the rank."""
    network: str | None = None
    """What NCCL should use between hosts, in its own words; None where one host needs none, or it is not known."""


def asked(plan: Plan, facts: Mapping[int, HostFacts], *, several: bool) -> dict[Place, Asked]:
    """Every rank's; `facts` by node, `several`: the job has more than one host."""
    return {
        (host.node, rank.local_rank): _asked(
            host, rank, facts.get(host.node) or HostFacts(host=host.host.name), several
        )
        for host in plan.hosts
        for rank in host.ranks
    }


def _asked(host: HostPlan, rank: RankPlan, facts: HostFacts, several: bool) -> Asked:
    given = {**as_mapping(host.defaults), **(facts.env or {}), **as_mapping(host.env), **as_mapping(rank.env)}
    conf = as_mapping(conf_variables(facts.conf_files or {}, given))
    variables = {name: value for name, value in {**conf, **given}.items() if name.startswith("NCCL_")}
    return Asked(
        rank=rank.rank,
        host=host.host.name,
        variables=variables,
        whole=facts.env is not None and facts.conf_files is not None,
        network=network(variables, facts) if several else None,
    )


def network(variables: Mapping[str, str], facts: HostFacts) -> str | None:
    """The network that NCCL will choose on a host, as its line `Using network` names it; None where a plugin of an
    unknown kind decides, or devices were not read."""
    if named := variables.get("NCCL_NET"):
        return {"ib": "IB", "socket": "Socket"}.get(named.lower(), named)
    if facts.software is None:
        return None
    plugin = variables.get("NCCL_NET_PLUGIN") or next(iter(facts.software.nccl_net_plugins), "none")
    if plugin != "none":
        return "AWS Libfabric" if "ofi" in plugin else None
    if parse.strtoll(variables.get("NCCL_IB_DISABLE", "")):
        return "Socket"
    if facts.rdma is None:
        return None
    listed = parse.device_list(variables.get("NCCL_IB_HCA", ""))
    usable = [
        port
        for port in facts.rdma
        if port.state == "ACTIVE" and port.link_layer in ("InfiniBand", "Ethernet")
        if port.uverbs_openable is not False
        if not listed.entries or listed.takes(port.device, port.port)
    ]
    return "IB" if usable else "Socket"


def process_of(lines: Iterable[str], place: Asked) -> NcclProcess:
    """What a rank's noted lines say."""
    processes = read_log(lines).processes
    heard = processes[0] if processes else NcclProcess(host="", pid=0)
    return replace(heard, host=place.host, rank=place.rank)


def paired(
    log: NcclLog, plan: Plan | None, facts: Mapping[str, HostFacts], ends: Iterable[RankEnd]
) -> Iterator[tuple[Asked, NcclProcess]]:
    """Every process of a log with what its rank was given; `facts` by host, `ends` of the ranks as the run's result
    has them. A process is known by its id, else by its place in a communicator of all ranks."""
    by_node = {host.node: facts[host.host.name] for host in plan.hosts if host.host.name in facts} if plan else {}
    given = asked(plan, by_node, several=spans_hosts(log)).values() if plan else ()
    by_rank = {each.rank: each for each in given}
    names = {each.identity.hostname.partition(".")[0]: host for host, each in facts.items() if each.identity}
    by_pid = {(end.host, end.pid): end.rank for end in ends}
    for process in log.processes:
        host = names.get(process.host, process.host)
        rank = by_pid.get((host, process.pid))
        if rank is None and plan and process.nranks == plan.world_size:
            rank = process.rank
        yield by_rank.get(rank) or Asked(rank=process.rank, host=host), process


class Words:
    """What NCCL has said in a job so far, by rank."""

    def __init__(self, asked: Mapping[Place, Asked]) -> None:
        self._asked = asked
        self._lines: dict[Place, dict[str, None]] = {place: {} for place in asked}
        self._told: set[tuple[str, ...]] = set()

    def hear(self, node: int, lines: Mapping[str, Iterable[int]]) -> list[Finding]:
        """Takes a host's new lines, each with the local ranks that wrote it. What differs from the plan there, of
        kinds that were not among the answers before."""
        for line, local_ranks in lines.items():
            for local in local_ranks:
                known = self._lines.get((node, local))
                if known is not None and len(known) < _MOST_LINES:
                    known[line] = None
        new = []
        for finding in self._differences([place for place in self._lines if place[0] == node]):
            kind = (finding.code, finding.subject, finding.observed)
            if kind not in self._told:
                self._told.add(kind)
                new.append(finding)
        return new

    def findings(self) -> list[Finding]:
        """All that differs from the plan, with all ranks: warnings and worse."""
        return self._differences(list(self._lines))

    def _differences(self, places: Iterable[Place]) -> list[Finding]:
        known = ((self._asked[place], self._lines[place]) for place in places if self._lines[place])
        found = differences((given, process_of(lines, given)) for given, lines in known)
        return [finding for finding in found if finding.severity >= Severity.WARNING]


def differences(heard: Iterable[tuple[Asked, NcclProcess]]) -> list[Finding]:
    """Where NCCL's words differ from the plan: one finding for each difference, with the ranks that have it."""
    holders: dict[Finding, list[Asked]] = {}
    for place, process in heard:
        for finding in (*_values(place, process), *_network(place, process), *rejected(process)):
            holders.setdefault(finding, []).append(place)
    return [_of(finding, places) for finding, places in holders.items()]


def _of(finding: Finding, places: list[Asked]) -> Finding:
    ranks = {place.rank for place in places if place.rank is not None}
    hosts = {place.host for place in places}
    message = f"{finding.message} (rank{'s' if len(ranks) > 1 else ''} {format_cpulist(ranks)})"
    return replace(
        finding, host=hosts.pop() if len(hosts) == 1 else None, message=message if ranks else finding.message
    )


def _values(place: Asked, process: NcclProcess) -> Iterator[Finding]:
    for name, read in process.variables.items():
        wanted = place.variables.get(name)
        if wanted is None and place.whole:
            message = f"NCCL read {name}={read}, which is in no part of the plan: something within the job sets it"
            yield _difference(name, read, "unset", "nccl-value-set-in-job", Severity.INFO, message)
        elif wanted is None or _same(name, wanted, read):
            continue
        elif parse.is_plain(read) and parse.strtoll(wanted) == parse.strtoll(read):
            message = f"{name} was set to {wanted!r}, but NCCL read {read!r}"
            yield _difference(name, read, wanted, "nccl-value-read-differently", Severity.ERROR, message)
        else:
            message = f"NCCL read {name}={read}, the plan gives {wanted}: something within the job sets it"
            yield _difference(name, read, wanted, "nccl-value-set-in-job", Severity.WARNING, message)


def _difference(name: str, read: str, wanted: str, code: str, severity: Severity, message: str) -> Finding:
    evidence = (f"{name} set by environment to {read}",)
    return found(code, severity, message, subject=name, observed=read, expected=wanted, evidence=evidence)


def _same(name: str, wanted: str, read: str) -> bool:
    """Whether NCCL took a value for what its writer meant."""
    if wanted.strip().lower() == read.strip().lower():
        return True
    variable = catalogue.find(name)
    if variable is not None and variable.reads == "level":
        return parse.path_level(wanted, variable.choices) == read
    return parse.is_plain(read) and parse.meant(wanted) == parse.strtoll(read)


def _network(place: Asked, process: NcclProcess) -> Iterator[Finding]:
    used, expected = process.network, place.network
    if used is not None and expected is not None and not _same_network(used, expected):
        yield Finding(
            code="nccl-network-unexpected",
            severity=Severity.WARNING,
            message=f"NCCL uses the network {used} instead of {expected}",
            subject="network",
            observed=used,
            expected=expected,
            remedy=why_no_rdma(process),
            evidence=(f"Using network {used}",),
        )


def _same_network(used: str, expected: str) -> bool:
    """HPC-X's plugin calls itself IBext_v8 and the like, Amazon's newer one Libfabric."""
    families = {"IBext": "IB", "Libfabric": "AWS Libfabric"}
    family = next((name for prefix, name in families.items() if used.startswith(prefix)), used)
    return expected.lower() in (used.lower(), family.lower())
