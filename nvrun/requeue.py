"""`--requeue-on-bad-node N`: the batch job goes back into Slurm's queue without the nodes that failed the checks.

Decisions are pure (`decide`); `requeue` does it. What earlier tries of the job found is kept in a file beside the run
folders: SLURM_RESTART_COUNT counts preemptions too, and the job's ExcNodeList may be the user's own.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from nvrun.errors import UsageError
from nvrun.hosts import nodeset
from nvrun.job import Job as Asked
from nvrun.model import Frozen

_COMMAND_SECONDS = 20.0
_UNUSABLE = ("down", "drain", "drng", "fail", "maint", "unk", "inval", "future")
"""How sinfo's short states of nodes begin on which no job will start."""


class Tries(Frozen, frozen=True, kw_only=True):
    """What earlier tries of one job left."""

    count: int = 0
    """How often nvrun has requeued it."""
    bad: tuple[str, ...] = ()


class Job(Frozen, frozen=True, kw_only=True):
    """What Slurm says of the job (`scontrol show job --oneliner`)."""

    job_id: str
    nodes: int
    """As many it wants."""
    partition: str
    excluded: tuple[str, ...] = ()
    """ExcNodeList."""
    required: tuple[str, ...] = ()
    """ReqNodeList: it starts on no others."""


class Decision(Frozen, frozen=True, kw_only=True):
    """Whether the job is to be requeued; else `why_not` says in words why not."""

    exclude: tuple[str, ...] = ()
    tries: Tries = Tries()
    why_not: str = ""


def exclude_option(nodes: Sequence[str]) -> str:
    """`--exclude=gpu[01-02]`, as sbatch takes it."""
    return f"--exclude={nodeset.fold(nodes)}"


def decide(*, limit: int, bad: Sequence[str], earlier: Tries, job: Job, usable: Collection[str]) -> Decision:
    """`limit`: requeues allowed; `usable`: nodes of the partition on which Slurm starts jobs."""
    if not bad:
        return Decision(why_not="no node is at fault")
    if earlier.count >= limit:
        return Decision(why_not=f"it was requeued {earlier.count} times already, and {limit} are allowed")
    if pinned := set(bad) & set(job.required):
        return Decision(why_not=f"the job asks for {nodeset.fold(sorted(pinned))} by name (--nodelist)")
    exclude = tuple(dict.fromkeys((*job.excluded, *earlier.bad, *bad)))
    left = [node for node in usable if node not in exclude]
    if len(left) < job.nodes:
        return Decision(
            why_not=f"partition {job.partition} has {len(left)} usable nodes left of the {job.nodes} the job wants"
        )
    tries = Tries(count=earlier.count + 1, bad=tuple(dict.fromkeys((*earlier.bad, *bad))))
    return Decision(exclude=exclude, tries=tries)


def read_job(text: str) -> Job:
    """Raises UsageError where a field is missing or has another form."""
    fields: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals:
            fields.setdefault(name, value)
    nodes = re.match(r"[0-9]+", fields.get("NumNodes", ""))
    if not nodes or "JobId" not in fields or "Partition" not in fields:
        raise UsageError(f"scontrol show job: expected JobId, NumNodes and Partition, got {text.strip()[:80]!r}")
    return Job(
        job_id=fields["JobId"],
        nodes=int(nodes[0]),
        partition=fields["Partition"],
        excluded=_names(fields.get("ExcNodeList", "")),
        required=_names(fields.get("ReqNodeList", "")),
    )


def read_usable(text: str) -> tuple[str, ...]:
    """From `sinfo --Node --format='%N %t'`."""
    rows = (line.split() for line in text.splitlines())
    return tuple(dict.fromkeys(row[0] for row in rows if len(row) == 2 and not row[1].startswith(_UNUSABLE)))


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else nodeset.expand(text, "scontrol show job")


# -- effects --------------------------------------------------------------------------------------------------------


def left_out(asked: Asked, bad: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Lines for the user of a job that did not start because of bad nodes. Requeues the job where that was asked for.

    `folder`: where the run folders are.
    """
    if "SLURM_JOB_ID" not in environ or (asked.step and asked.step.node):
        return
    yield f"without the bad nodes: sbatch {exclude_option(bad)}"
    if asked.options.requeue_on_bad_node:
        yield from requeue(asked.options.requeue_on_bad_node, bad, folder, environ)


def requeue(limit: int, bad: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Requeues the batch job of this process, if it may, and says so. Slurm ends this process soon afterwards."""
    memory = folder / f".requeue-{environ['SLURM_JOB_ID']}.json"
    try:
        job = read_job(_ask("scontrol", "show", "job", "--oneliner", environ["SLURM_JOB_ID"]))
        usable = read_usable(_ask("sinfo", "--noheader", "--Node", f"--partition={job.partition}", "--format=%N %t"))
        decision = decide(limit=limit, bad=bad, earlier=_recall(memory), job=job, usable=usable)
        if decision.why_not:
            yield f"the job is not requeued: {decision.why_not}"
            return
        memory.write_bytes(msgspec.json.encode(decision.tries))
        yield f"requeue {decision.tries.count} of {limit}, {exclude_option(decision.exclude)}"
        with _undisturbed():
            _ask("scontrol", "requeue", job.job_id)
            # ExcNodeList can be set only now; the job cannot start again before this very process has ended.
            _ask("scontrol", "update", f"JobId={job.job_id}", f"ExcNodeList={','.join(decision.exclude)}")
    except (UsageError, _Trouble) as trouble:
        yield f"the job is not requeued: {trouble}"


class _Trouble(Exception):
    """A command of Slurm failed, in its own words."""


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except OSError as error:
        raise _Trouble(f"cannot run {argv[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _Trouble(f"{' '.join(argv[:2])}: no answer in {_COMMAND_SECONDS:g} s") from None
    if done.returncode:
        raise _Trouble(f"{' '.join(argv[:2])}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


def _recall(memory: Path) -> Tries:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=Tries)
    except FileNotFoundError:
        return Tries()
    except (OSError, msgspec.DecodeError) as error:
        raise _Trouble(f"{memory} tells what earlier tries found and cannot be read: {error}") from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Requeueing ends the job: its SIGTERM must not cut the second command off, nor the command itself."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
