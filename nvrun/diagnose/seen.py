"""What nvrun itself saw of a failed run, as the judge takes it: beside the logs, which may say nothing of it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import Match, Source
from nvrun.hang.judge import HANGS
from nvrun.model import Finding, RankEnd, RunResult, Severity
from nvrun.nccl.log_line import clean, cut_lines, read_record, text

STOPPED = "run-stopped"
WARNINGS = 4
_ENDS = {
    "host-lost": Stage.HARDWARE,
    "step-ended": Stage.HARDWARE,
    "torchrun-killed": Stage.HOST,
    "torchrun-failed": Stage.SYMPTOM,
}
"""What the launcher found as the job ended, and not by a look at the hosts -> how near to a root it is."""
_STAGES = {
    **_ENDS,
    "gpu-lost": Stage.HARDWARE,
    "gpus-unreadable": Stage.HARDWARE,
    "ecc-uncorrected-grew": Stage.HARDWARE,
    "nvlink-down": Stage.HARDWARE,
    # Where one of these ended the job, a log says so: by itself it may as well have come along.
    "disk-filled": Stage.SYMPTOM,
    "filesystem-lost": Stage.SYMPTOM,
}
"""How near to a root each is; what is not here is a matter of the network."""
_KERNEL_LOG = ("xid-", "sxid-")
_CONFIDENCE = 0.8
_BY_ITSELF = ("script-failed", "bus-error")
"""Symptoms that no signal to torchrun and ranks makes: torchrun has no table of exits where it was told to end."""
_ENDERS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_SINCE = "seen after the failure; before the launch it was well"


def matches(result: RunResult) -> Iterator[Match]:
    """A lost host, a torchrun that ended by itself, and what is no longer on the hosts as it was before the launch."""
    ends = [finding for finding in result.findings if finding.code in _ENDS]
    for finding in (*ends, *result.changed):
        if finding.severity >= Severity.ERROR and not finding.code.startswith(_KERNEL_LOG):
            yield Match(
                code=finding.code,
                stage=_STAGES.get(finding.code, Stage.NETWORK),
                message=finding.message,
                remedy=finding.remedy,
                confidence=finding.confidence or _CONFIDENCE,
                severity=finding.severity,
                host=finding.host,
                subject=finding.subject,
                evidence=finding.evidence or (() if finding in ends else (_SINCE,)),
            )


def hangs(result: RunResult) -> list[Finding]:
    """What nvrun saw itself while the ranks waited: what their logs say of it came after that."""
    return [finding for finding in result.findings if finding.code == HANGS and finding.severity >= Severity.ERROR]


def sources(result: RunResult) -> Iterator[Source]:
    """Xids and SXids that came meanwhile, as the kernel's log that they stand in."""
    for finding in result.changed:
        if finding.code.startswith(_KERNEL_LOG):
            yield Source("the kernel's log, read after the failure", finding.evidence, host=finding.host)


def last_words(end: RankEnd) -> Source:
    """What a rank said at last, as nvrun heard it: its file may miss that (a full disk)."""
    return Source(f"rank {end.rank}'s last words", end.tail, host=end.host, rank=end.rank)


def stopped(result: RunResult, slurm_job: int | None = None) -> Finding | None:
    """Who ended a run that did not fail, as its own record has it; None where nobody did."""
    if result.ended_by != "signal":
        return None
    number = result.exit_code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    agent_of, agent, _ = result.message.partition(": the agent was told to end")
    how = f"{name} to nvrun" + (f"'s agent on {agent_of}" if agent else "")
    if not agent and result.message not in ("", f"ended by {name}"):  # another node of the step had the signal
        how = f"{name}, {result.message}"
    if number == signal.SIGINT:
        return _stopped(f"it was ended by Ctrl-C ({how})")
    if number == signal.SIGHUP:
        return _stopped(f"it was ended because its terminal or session was closed ({how})", "Use tmux or nohup")
    if slurm_job is None:
        return _stopped(f"it was ended by {how}: a person (kill, nvrun stop), a service manager or a scheduler")
    return _stopped(
        f"it was ended by {how}: scancel of job {slurm_job}, a time limit, or a person",
        f"sacct -j {slurm_job} and scontrol show job {slurm_job} say which",
    )


def failed_before(ends: tuple[RankEnd, ...]) -> tuple[RankEnd, ...]:
    """Of a run that was ended from outside: ranks that had failed before. Those are the ranks of attempts that torchrun
    itself began again, and any that ended by a signal that is not used to end a job: SIGKILL of the kernel for want of
    memory, a fault."""
    last = max((end.attempt for end in ends), default=0)
    return tuple(
        end
        for end in ends
        if end.code and not end.by_nvrun and (end.attempt < last or (end.code < 0 and -end.code not in _ENDERS))
    )


def noted_before(ends: tuple[RankEnd, ...]) -> tuple[RankEnd, ...]:
    """The same of a run whose launcher was killed: its agents noted whom they had asked to end by then."""
    return tuple(end for end in ends if end.failed and -(end.code or 0) not in _ENDERS)


def launcher_killed(host: str, pid: int, unknown: str) -> Finding:
    """The launcher is gone, and has not written how the run ended. `unknown`: where that lies of hosts that did not
    share its folder; empty where all is known."""
    return _stopped(
        f"its launcher was killed (process {pid} on {host}), and its ranks were ended with it: kill -9, the kernel for "
        "want of memory, or a scheduler whose grace was over",
        f"Whether a rank had failed before that is not known of all: {unknown}" if unknown else "",
    )


def _stopped(message: str, remedy: str = "") -> Finding:
    return Finding(code=STOPPED, severity=Severity.INFO, message=message, remedy=remedy)


def by_nvrun(match: Match, *, all_of_it: bool) -> bool:
    """Whether a log tells no more than that nvrun ended torchrun and ranks, as it does after every failure: then that
    is neither a cause nor an error. `all_of_it`: the run was ended from outside, so all ends are of that kind."""
    if all_of_it:
        return match.stage in (Stage.SYMPTOM, Stage.CONSEQUENCE) and match.code not in _BY_ITSELF
    return match.code in ("ended-from-outside", "taken-down")


def changes(result: RunResult, told: Iterable[Finding]) -> list[str]:
    """What else changed, in a line each; `told`: what is on the page already."""
    messages = {finding.message for finding in told}
    return [finding.message for finding in result.changed if finding.message not in messages]


def warnings_before(sources: Iterable[Source], end: RankEnd) -> list[str]:
    """NCCL's last warnings of the process that ended, all of which came before its end."""
    found: dict[str, None] = {}
    for source in sources:
        for line in cut_lines(source.lines):
            if b"NCCL WARN" not in line:
                continue
            record = read_record(shown := clean(text(line)))
            if source.rank == end.rank or (record is not None and record.speaker.pid == end.pid):
                found.pop(shown, None)
                found[shown] = None
    return list(found)[-WARNINGS:]
