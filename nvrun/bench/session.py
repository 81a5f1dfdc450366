"""A schedule -> a planned job whose program is worker.py -> Results. The effects of bench and tune are all here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from nvrun import runs
from nvrun.bench import worker
from nvrun.bench.model import Record, Results, Schedule, Setup, TrialEnd
from nvrun.cli import new_folder, run_job
from nvrun.errors import NvrunError, UsageError
from nvrun.facts import HostFacts
from nvrun.fleet.session import Console
from nvrun.job import Job
from nvrun.model import Frozen, RunResult
from nvrun.plan import Plan
from nvrun.report.text import end_in_words

MARK = worker.MARK.encode()


class Session(Frozen, frozen=True, kw_only=True):
    """One job of trials, over."""

    results: Results
    result: RunResult
    folder: str
    plan: Plan | None
    facts: tuple[HostFacts, ...]
    """In the plan's order of hosts; () where it ended before they were read."""


class NotMeasured(NvrunError):
    """The job ended before anything was measured; its exit code is the job's."""

    def __init__(self, message: str, exit_code: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def program(job: Job, schedule: Schedule) -> Job:
    """The job with the worker in the place of the user's program. The worker travels as text on the command line, so
    that hosts need neither nvrun nor a shared folder; without --nproc-per-node there is a rank for each GPU."""
    text = Path(worker.__file__).read_text(encoding="utf-8")
    every = {} if job.args.is_set("nproc_per_node") else {"nproc_per_node": "gpu"}
    whole = {field: getattr(schedule, field) for field in schedule.__struct_fields__}  # the worker knows no defaults
    asked = msgspec.json.encode(whole).decode()
    args = job.args.replacing(program="-c", arguments=(text, asked), max_restarts=0, **every)
    return msgspec.structs.replace(job, args=args, measures=job.measures or "bench")


def how(end: TrialEnd) -> str:
    """`2.1 s`, or how it failed."""
    return f"failed: {end.failed}" if end.failed else f"{end.seconds:.1f} s"


def run(
    job: Job,
    schedule: Schedule,
    environ: Mapping[str, str],
    progress: Callable[[TrialEnd], None] = lambda end: None,
    *,
    announced: bool = False,
) -> Session:
    """Runs the schedule; `progress` hears of each trial as it ends. Raises NotMeasured where no trial came to its end;
    what is missing at the end of a longer one is missing in the results. `announced`: as `run_job` has it."""

    def take(line: Console) -> bool:
        """The worker's own lines are for nvrun, not for the console; files have them all."""
        if line.text.startswith(MARK):
            for end in read([line.text]).trials:
                progress(end)
            return True
        return not line.text.strip()

    measured = program(job, schedule)
    run_folder = new_folder(measured, environ)
    result = run_job(measured, run_folder, environ, take=take, announced=announced)
    folder = run_folder.path
    plan = runs.plan_of(folder)
    results = read(_output(folder, plan))
    if not results.trials:
        raise NotMeasured(
            f"nothing was measured: {result.message or end_in_words(result.ended_by, result.exit_code)}",
            result.exit_code or 70,
            hint=f"logs in {folder}",
        )
    if results.setup is not None and results.setup.world < 2:
        raise UsageError("a collective needs two ranks, and the job has one", hint="--nproc-per-node 2, or more hosts")
    known = runs.facts_of(folder)
    facts = tuple(known[host.host.name] for host in plan.hosts if host.host.name in known) if plan else ()
    return Session(results=results, result=result, folder=str(folder), plan=plan, facts=facts)


def _output(folder: Path, plan: Plan | None) -> Iterator[bytes]:
    """Lines of rank 0's standard output."""
    if plan is None:
        return
    for path in sorted((folder / "logs").glob("*/rank0.out")):
        yield from path.read_bytes().splitlines()


def read(lines: Iterable[bytes]) -> Results:
    """What the worker's lines say; others are NCCL's or torch's. A line that is cut is left out, as a trial that said
    nothing is."""
    setup: Setup | None = None
    records: list[Record] = []
    trials: list[TrialEnd] = []
    for line in lines:
        if not line.startswith(MARK):
            continue
        try:
            found = msgspec.json.decode(line[len(MARK) :])
            if "backend" in found:
                setup = msgspec.convert(found, Setup)
            elif "environment" in found:
                trials.append(msgspec.convert(found, TrialEnd))
            else:
                records.append(msgspec.convert(found, Record))
        except (msgspec.DecodeError, TypeError):
            continue
    return Results(setup=setup, records=tuple(records), trials=tuple(trials))
