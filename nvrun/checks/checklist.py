"""The ten lines that someone asks for before a big run: each ok, failed or not checked, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from nvrun.checks.active import ACTIVE, Active
from nvrun.checks.check import CHECKS, Check
from nvrun.checks.job import Job
from nvrun.facts import SECTIONS, HostFacts
from nvrun.hosts.nodeset import fold
from nvrun.model import Severity, Skipped, Verdict, worst_first

LINT = "nccl-lint"
"""What judges each host's NCCL variables, as verdicts name it; no check, for it reads job scripts too."""


class Topic(NamedTuple):
    """One line of the list."""

    title: str
    checks: tuple[str, ...]
    """Names of checks, of families (`gpu_health`), or of tests between hosts."""
    codes: tuple[str, ...] = ()
    """Findings of active tests and of other parts of nvrun, by code or by how the code begins (`nccl-`)."""
    by_hand: str = ""
    """What nothing here can see."""
    only_if: Callable[[Job], bool] = lambda job: True
    """Whether the job asked for it at all."""
    section: str = ""
    """Of the facts: where it is empty on all hosts, there is nothing to check."""


TOPICS = (
    Topic("hosts reachable and distinct", ("hosts-distinct", "gpus-distinct", "clocks-agree"), ("host-",)),
    Topic("versions of Python, torch, CUDA, NCCL and driver", ("software",)),
    Topic("names, ports and firewall",
          ("names", "rendezvous-port-free", "rendezvous-settings", "rendezvous-reached", "connections"), ("port-",)),
    Topic("network: MTU, subnets, bandwidth and latency",
          ("interfaces-agree", "subnets-apart", "sockets-fast", "path-mtu", "latency", "bandwidth")),
    Topic("RDMA: ports, rates, GIDs, partitions, PFC and ECN", ("rdma", "roce"), by_hand="PFC and ECN of the switches",
          section="rdma"),
    Topic("GPUs: count, health, NVLink and P2P", ("gpu", "gpu_health", "gpu_links", "collectives"), section="gpus"),
    Topic("NCCL's variables, conf files and interfaces", ("environment-agrees", "conf-files-agree", LINT),
          ("nccl-",)),
    Topic("launch command: script, flags, ranks and bindings",
          ("paths-there", "files-agree", "torchrun-flags", "cpus-enough", "binding-possible", "stacks-readable",
           "ssh-between-hosts"),
          ("more-ranks-than-gpus", "too-few-cores", "bind-file-wrong")),
    Topic("limits, memory and disks", ("memlock", "open-files", "shared-memory", "memory-enough", "filesystems-fit")),
    Topic("data and checkpoints", ("paths-there", "files-agree", "folders-shared"), only_if=lambda job: bool(
        job.require_path or job.require_same), by_hand="other data than --require-path and --require-same name"),
)  # fmt: skip


class Item(NamedTuple):
    """One line, judged."""

    title: str
    state: Literal["ok", "failed", "not checked"]
    why: str


def checklist(verdict: Verdict, job: Job, facts: Collection[HostFacts] = (), level: str = "") -> tuple[Item, ...]:
    """The list for a verdict. ok: something was judged, all hosts were, and nothing above a warning was found.
    `level`: of --check; empty where hosts were not there to be tried."""
    return tuple(_judge(topic, verdict, job, facts, level) for topic in TOPICS)


def _judge(topic: Topic, verdict: Verdict, job: Job, facts: Collection[HostFacts], level: str) -> Item:
    if not topic.only_if(job):
        return Item(topic.title, "not checked", f"not asked for; {topic.by_hand}")
    checks = [check for check in CHECKS if check.name in topic.checks or check.family in topic.checks]
    tests = [test for test in ACTIVE if test.name in topic.checks]
    asked: list[Check | Active] = [*checks, *tests]
    every: list[Check | Active] = [*CHECKS, *ACTIVE]
    own = {code.code for each in asked for code in each.codes}
    elsewhere = {code.code for each in every for code in each.codes}
    names = {each.name for each in asked}
    found = [
        finding
        for finding in worst_first(verdict.findings)
        if finding.code in own
        or (finding.code not in elsewhere and finding.code.startswith(topic.codes or ("\0",)))
        or (finding.code == "check-crashed" and finding.subject in names)
    ]
    bad = [finding for finding in found if finding.severity >= Severity.ERROR]
    if bad:
        where = f"{bad[0].host}: " if bad[0].host else ""
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return Item(topic.title, "failed", f"{where}{bad[0].message}{more}")
    if facts and topic.section and not found and all(getattr(each, topic.section) == () for each in facts):
        return Item(topic.title, "not checked", "none on any host")
    blind = [skipped for skipped in verdict.skipped if skipped.code in names]
    silent = _silent(facts)
    unheard = [skipped for skipped in blind if skipped.host in silent]
    judged = {*names, *topic.checks} & set(verdict.judged)
    if not judged or unheard:
        why = _blind(unheard or blind) or topic.by_hand or "nothing to compare"
        return Item(topic.title, "not checked", why)
    several = f"{len(found)} warnings or notes" if len(found) > 1 else "1 warning or note"
    notes = [f"{several}: --json"] if found else []
    notes += [f"not judged everywhere: {_blind(blind)}"] if blind else []
    notes += [f"not tried: {untried}"] if (untried := _untried(tests, verdict, job, silent, level)) else []
    notes += [f"not checked here: {topic.by_hand}"] if topic.by_hand else []
    return Item(topic.title, "ok", "; ".join(notes))


def _silent(facts: Iterable[HostFacts]) -> list[str]:
    """Hosts of which nothing at all was read."""
    return [each.host for each in facts if set(SECTIONS) <= each.missing.keys()]


def _blind(skipped: Sequence[Skipped]) -> str:
    """`a,b: its kernel log needs root here`; the first reason, with all hosts that have it."""
    if not skipped:
        return ""
    hosts = dict.fromkeys(each.host for each in skipped if each.host and each.reason == skipped[0].reason)
    return f"{fold(hosts)}: {skipped[0].reason}" if hosts else skipped[0].reason


_LEVELS = ("--check quick", "--check full", "--check deep")


def _untried(tests: Sequence[Active], verdict: Verdict, job: Job, silent: Sequence[str], level: str) -> str:
    """Tests that were not made, with what asks for them, or why they were not although they were asked for. Where one
    was begun and could not be made, it is among the skipped."""
    known = {*verdict.judged, *(skipped.code for skipped in verdict.skipped)}
    asked = _LEVELS[: 1 + _LEVELS.index(f"--check {level}")] if level else ()
    why = "one host only" if len(job.hosts) < 2 else f"{fold(silent)} fell silent" if silent else ""
    why = why or next((each.reason for each in verdict.skipped if each.code == "connections"), "not measured")
    reasons: dict[str, list[str]] = {}
    for test in tests:
        if test.name not in known:
            reason = test.how if test.how not in _LEVELS or (level and test.how not in asked) else why
            reasons.setdefault(reason if level else "no hosts to try it on", []).append(test.name)
    return ", ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
