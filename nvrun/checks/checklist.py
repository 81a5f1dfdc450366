"""The ten lines that someone asks for before a big run: each ok, failed or not checked, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from nvrun.checks.active import ACTIVE, Active
from nvrun.checks.check import CHECKS, Check
from nvrun.checks.job import Job
from nvrun.model import Severity, Verdict, worst_first


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


TOPICS = (
    Topic("hosts reachable and distinct", ("hosts-distinct", "gpus-distinct", "clocks-agree"), ("host-",)),
    Topic("versions of Python, torch, CUDA, NCCL and driver", ("software",)),
    Topic("names, ports and firewall",
          ("names", "rendezvous-port-free", "rendezvous-settings", "rendezvous-reached", "connections"), ("port-",)),
    Topic("network: MTU, subnets, bandwidth and latency",
          ("interfaces-agree", "subnets-apart", "sockets-fast", "path-mtu", "latency", "bandwidth")),
    Topic("RDMA: ports, rates, GIDs, partitions, PFC and ECN", ("rdma", "roce"), by_hand="PFC and ECN of the switches"),
    Topic("GPUs: count, health, NVLink and P2P", ("gpu", "gpu_health", "gpu_links", "collectives")),
    Topic("NCCL's variables, conf files and interfaces", ("environment-agrees", "conf-files-agree"), ("nccl-",)),
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


def checklist(verdict: Verdict, job: Job) -> tuple[Item, ...]:
    """The list for a verdict. ok: something was judged, all hosts were, and nothing above a warning was found."""
    return tuple(_judge(topic, verdict, job) for topic in TOPICS)


def _judge(topic: Topic, verdict: Verdict, job: Job) -> Item:
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
    blind = [skipped for skipped in verdict.skipped if skipped.code in names]
    judged = names & set(verdict.judged)
    if not judged:
        return Item(topic.title, "not checked", blind[0].reason if blind else topic.by_hand or "nothing to compare")
    notes = [f"{len(found)} warnings or notes"] if found else []
    notes += [f"not judged everywhere: {blind[0].reason}"] if blind else []
    notes += [f"not tried: {untried}"] if (untried := _untried(tests, verdict)) else []
    notes += [f"not checked here: {topic.by_hand}"] if topic.by_hand else []
    return Item(topic.title, "ok", "; ".join(notes))


def _untried(tests: Sequence[Active], verdict: Verdict) -> str:
    """Tests that were not asked for; where one was and could not be made, it is among the skipped."""
    known = {*verdict.judged, *(skipped.code for skipped in verdict.skipped)}
    return ", ".join(f"{test.name} ({test.how})" for test in tests if test.name not in known)
