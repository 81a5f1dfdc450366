"""The central types. Frozen, without behaviour beyond what follows from their fields; JSON in and out by msgspec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Literal

import msgspec


class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value: never changed after it was made. Unknown keys in its JSON are an error."""


class Severity(IntEnum):
    """How bad a finding is. error and fatal refuse the launch; `--waive CODE` lifts an error, `--force` all."""

    INFO = 10
    WARNING = 20
    ERROR = 30
    FATAL = 40

    @property
    def label(self) -> str:
        return self.name.lower()


class Finding(Frozen, frozen=True, kw_only=True):
    """One thing found, by preflight, lint, diagnosis or tuning."""

    code: str
    """Stable name, in words joined by dashes: `port-filtered`, `torch-version-differs`."""
    severity: Severity
    message: str
    """One line: what is wrong, in the user's terms, with the cause."""
    host: str | None = None
    """The host at fault; None where it is the job or the fleet as a whole."""
    between: tuple[str, ...] = ()
    """Two hosts of which one is at fault, where nothing tells which."""
    subject: str = ""
    """The thing on that host: `GPU 3`, `mlx5_2`, `NCCL_BUFFSIZE`, `rank 12`."""
    observed: str = ""
    expected: str = ""
    remedy: str = ""
    """One line: what to do, ideally a command to paste."""
    evidence: tuple[str, ...] = ()
    """The lines or readings that this stands on, as they were read."""
    confidence: float | None = None
    """0 to 1 for a diagnosis; None for what was measured."""


class Skipped(Frozen, frozen=True, kw_only=True):
    """A check that could not judge. Shown, and never counted as healthy."""

    code: str
    host: str | None
    reason: str


class Verdict(Frozen, frozen=True, kw_only=True):
    """What all checks said."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    judged: tuple[str, ...] = ()
    """Names of the checks that judged at least one host: only these can have passed."""


class Host(Frozen, frozen=True, kw_only=True):
    """One machine of the job, as the user named it."""

    name: str
    """What the user wrote, and what reports call it."""
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """Ranks on this host; None where the user gave none."""


class EnvVar(Frozen, frozen=True, kw_only=True):
    """One variable of a host or rank, and who set it."""

    name: str
    value: str
    source: str
    """`user`, `preset hopper`, `nvrun: plan`, `hook nccl-debug`, `host`, `/etc/nccl.conf` ..."""
    why: str = ""


class Binding(Frozen, frozen=True, kw_only=True):
    """Where one rank is put."""

    local_rank: int
    gpu: str | None = None
    """UUID of the GPU that `cuda:LOCAL_RANK` will be; None without a GPU, or where it is not known."""
    gpu_index: int | None = None
    """NVML index of that GPU, as nvidia-smi counts."""
    cpus: tuple[int, ...] = ()
    """CPUs of the rank, sorted; empty means not bound."""
    memory_node: int | None = None
    """NUMA node that memory comes from; None means none is named."""
    memory: Literal["", "preferred", "strict", "local"] = ""
    """How: numactl's --preferred, --membind or --localalloc; empty means that the policy is left alone."""
    nics: tuple[str, ...] = ()
    """RDMA devices nearest to the GPU, best first."""
    why: str = ""
    """The reason in words, also for not binding."""


class OomKills(Frozen, frozen=True, kw_only=True):
    """What the kernel's OOM killer did while a rank ran."""

    kills: int
    """Processes that it killed; 0 rules it out as the one that killed the rank."""
    where: str
    """`its cgroup` or `its host`: where they were counted."""
    line: str = ""
    """The kernel's own words, where the user may read its log."""


class RankEnd(Frozen, frozen=True, kw_only=True):
    """How one rank ended."""

    rank: int
    host: str
    local_rank: int
    pid: int
    attempt: int = 0
    """torchrun's restart count when it ended."""
    code: int | None = None
    """Exit code, -n for signal n as subprocess has it; None where nobody could read it."""
    at: float | None = None
    """Seconds since the epoch, by the launcher's clock."""
    begun: float | None = None
    """When it was let go, likewise; None where it never was."""
    first_output: float | None = None
    """When it first wrote a byte to stdout or stderr, likewise."""
    by_nvrun: bool = False
    """True where nvrun had already asked the rank to end."""
    tail: tuple[str, ...] = ()
    """Last lines of its stderr."""
    oom: OomKills | None = None
    """Of a rank that failed; None where the host does not count or show it."""

    @property
    def failed(self) -> bool:
        """By itself: it was not nvrun that had asked it to end."""
        return bool(self.code) and not self.by_nvrun


def first_failure(ends: Iterable[RankEnd]) -> RankEnd | None:
    """The rank that failed first, in torchrun's last attempt: a failure that it restarted after is not the job's. None
    where no rank failed by itself.

    By time where every failure has one, as all have that a launcher saw; else by order, which is that in which they
    were heard, or by rank in `result.json`. The first by time may have failed in consequence: `diagnose.judge.culprit`
    weighs that with what the logs say, once they are read.
    """
    failed = [end for end in ends if end.failed]
    last = max((end.attempt for end in failed), default=0)
    failed = [end for end in failed if end.attempt == last]
    if any(end.at is None for end in failed):
        return failed[0]
    return min(failed, key=lambda end: end.at or 0.0, default=None)


EndedBy = Literal["success", "rank", "torchrun", "signal", "lost", "hang", "preflight", "unreachable", "internal"]
"""What ended a run. `torchrun`: it failed by itself, with no rank failing first (a taken port, a flag it refuses)."""
FAILURES: tuple[EndedBy, ...] = ("rank", "torchrun", "hang", "lost")
"""Ends that may have a cause on a host, or in the logs."""


class Attempt(Frozen, frozen=True, kw_only=True):
    """An attempt after which the run was begun again on other hosts; its folder is `attempts/N` of the run's."""

    hosts: tuple[str, ...]
    """In rank order."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    began: bool
    """Whether its ranks were let go: then the next attempt is a restart."""
    ended_by: EndedBy
    exit_code: int
    struck_off: Mapping[str, str]
    """Host -> why it takes no further part."""


class RunResult(Frozen, frozen=True, kw_only=True):
    """How a run ended; `result.json` in the run folder."""

    run_id: str
    ended_by: EndedBy
    exit_code: int
    started: float
    seconds: float
    ranks: tuple[RankEnd, ...] = ()
    first_failure: RankEnd | None = None
    message: str = ""
    findings: tuple[Finding, ...] = ()
    console_dropped: Mapping[str, int] = {}
    """Bytes per host that the console did not get; the files have them."""
    not_fetched: tuple[str, ...] = ()
    """Where logs still are that could not be brought back: `HOST:FOLDER`, or `HOST:FOLDER/FILE (reason)`."""
    began: bool = False
    """Whether ranks were let go."""
    bad_hosts: Mapping[str, str] = {}
    """Host -> why the run could not begin, or go on, with it; none where the job itself was at fault."""
    between: tuple[str, ...] = ()
    """Two hosts with which together it could not begin, where nothing tells which of them is bad."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier ones of the same run, on other hosts; this result is that of the last."""
    changed: tuple[Finding, ...] = ()
    """After a failure: what is no longer on its hosts as it was before the launch."""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by severity, the worst first, otherwise in the order given."""
    return sorted(findings, key=lambda finding: -finding.severity)
