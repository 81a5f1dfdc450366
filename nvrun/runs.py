"""Runs of this user: the index in the state folder, and RUN -> folder.

    $XDG_STATE_HOME/nvrun/index/20261129-151203-k3x9.json      one file a run, written whole or not at all

Runs that start at once do not meet; a broken file costs only itself. The folders of runs stay where they are: the
index says where, and how the hosts were reached.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nvrun import records, xdg
from nvrun.agent.folder import ENDS
from nvrun.agent.procs import stat
from nvrun.errors import UsageError
from nvrun.facts import HostFacts, from_json
from nvrun.fleet import replies
from nvrun.fleet.routes import Kind
from nvrun.job import Job
from nvrun.mode import Mode
from nvrun.model import Frozen, Host, RankEnd, RunResult
from nvrun.options import Options
from nvrun.plan import Plan
from nvrun.rundir import file_name
from nvrun.torchrun import TorchrunArgs

_T = TypeVar("_T")

MOST = 1000
"""Runs that are remembered; the oldest are forgotten, their folders stay."""
LATEST = "latest"
RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9]{4}")
_REACH = ("fleet", "rsh", "ssh", "ssh_config", "connect_timeout", "python", "setup", "in_", "chdir", "grace")
"""Options that tell how hosts are reached and how long they take to end."""


class Process(Frozen, frozen=True, kw_only=True):
    """A process, named for good."""

    host: str
    kernel: str
    """Boot id and pid namespace: where they are the same, `pid` means the same process table."""
    pid: int
    start: int
    """Clock ticks since boot (/proc/PID/stat), so that a pid used again is not taken for it."""


class Remembered(Frozen, frozen=True, kw_only=True):
    """One run as the index has it."""

    id: str
    path: str
    measures: str = ""
    """`bench` or `tune`, where it is a round of these; those of one command have the same `launcher`."""
    program: str = ""
    """Its file or module, without the folder: `train.py`."""
    started: float
    """Seconds since the epoch."""
    launcher: Process
    hosts: tuple[Host, ...]
    kinds: tuple[Kind, ...]
    fleet: bool
    attempt: int = 0
    """`hosts` are those of this attempt."""
    options: Mapping[str, Any] = {}
    """Fields of `Options`, those of `_REACH` that were not left at their defaults."""
    variables: Mapping[str, str] = {}
    """The allocation that srun needs to reach its nodes."""


class Run(Frozen, frozen=True, kw_only=True):
    """What RUN on a command line stands for."""

    path: Path
    remembered: Remembered | None = None
    """None where the folder was named and the index does not know it."""


def remember(job: Job, run_id: str, path: Path, started: float, environ: Mapping[str, str]) -> str:
    """Adds a run, or its next attempt, to the user's index. Returns why that failed, which stops no job."""
    default = Options()
    entry = Remembered(
        id=run_id,
        path=str(path),
        measures=job.measures,
        program=Path(job.args.program or "").name,
        started=started,
        launcher=this_process(),
        hosts=job.hosts,
        kinds=job.kinds,
        fleet=job.fleet,
        attempt=job.attempt,
        options={
            name: getattr(job.options, name) for name in _REACH if getattr(job.options, name) != getattr(default, name)
        },
        variables={name: text for name, text in environ.items() if name.startswith("SLURM_")}
        if "srun" in job.kinds
        else {},
    )
    folder = index(environ)
    part = folder / f".{run_id}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.write_bytes(records.to_json(entry))
        part.rename(folder / f"{run_id}.json")
        for old in _names(folder)[MOST:]:
            (folder / f"{old}.json").unlink(missing_ok=True)
    except OSError as error:
        return f"this run is not in the index of `nvrun runs`: {folder}: {error.strerror}"
    return ""


def index(environ: Mapping[str, str]) -> Path:
    """The folder of the user's index."""
    return xdg.state(environ) / "index"


def known(environ: Mapping[str, str]) -> Iterator[Remembered]:
    """Remembered runs, the newest first; what cannot be read is passed over."""
    folder = index(environ)
    for name in _names(folder):
        try:
            entry = msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=Remembered)
        except (OSError, msgspec.DecodeError):
            continue
        if entry.id == name:
            yield entry


def _names(folder: Path) -> list[str]:
    """Ids in the index, the newest first: an id begins with its date."""
    try:
        return sorted((path.stem for path in folder.glob("*.json") if RUN_ID.fullmatch(path.stem)), reverse=True)
    except OSError:
        return []


def resolve(word: str, environ: Mapping[str, str]) -> Run:
    """The run that `word` names: a folder, an id, the beginning of one, or `latest` of the user's programs. Raises
    UsageError for no run, and for the beginning of several."""
    if word == LATEST:
        return _latest(environ)
    here = Path(word)
    if "/" in word or (word and here.is_dir()):
        if not here.is_dir():
            raise UsageError(f"{word}: no such folder")
        return _at(here.resolve(), environ)
    fitting = [each for each in known(environ) if each.id.startswith(word)] if word else []
    if len(fitting) > 1 and fitting[0].id != word:
        ids = ", ".join(each.id for each in fitting[:5])
        raise UsageError(f"{word} is the beginning of {len(fitting)} runs: {ids}{' ...' * (len(fitting) > 5)}")
    if not fitting:
        shown = word if word.isprintable() else repr(word)
        raise UsageError(f"{shown}: no run's id begins so, and there is no such folder", hint="nvrun runs lists them")
    return _there(fitting[0])


def _latest(environ: Mapping[str, str]) -> Run:
    """That of ./nvrun-runs: the newest of all may be another job's, of another folder. Else the newest of all."""
    here = Path("nvrun-runs", LATEST)
    if here.is_dir():
        return _at(here.resolve(), environ)
    own = (each for each in known(environ) if not each.measures)
    newest = next((each for each in own if Path(each.path).is_dir()), None)
    if newest is not None:
        return Run(path=Path(newest.path), remembered=newest)
    raise UsageError(
        "there is no run yet: none in ./nvrun-runs, none in the index",
        hint="nvrun runs lists rounds of bench and tune too; such a one is meant only where it is named",
    )


def _at(folder: Path, environ: Mapping[str, str]) -> Run:
    return Run(path=folder, remembered=next((each for each in known(environ) if Path(each.path) == folder), None))


def _there(entry: Remembered) -> Run:
    if not Path(entry.path).is_dir():
        if entry.launcher.host != socket.gethostname():  # the index may be shared where the folder is not
            raise UsageError(
                f"{entry.id}: its folder {entry.path} is not here; it was started on {entry.launcher.host}"
            )
        raise UsageError(f"{entry.id}: its folder {entry.path} is gone")
    return Run(path=Path(entry.path), remembered=entry)


def paths_of(words: Sequence[str], environ: Mapping[str, str]) -> list[Path]:
    """Files and folders that `words` name, each a path or a RUN; without words the latest run. UsageError for what is
    neither."""
    return [Path(word) if word and Path(word).exists() else resolve(word, environ).path for word in words or (LATEST,)]


def facts_of(path: Path) -> Mapping[str, HostFacts]:
    """Host -> its facts as the run in this folder read them; empty where there are none."""
    return {each.host: each for each in written(path / "facts.json", from_json) or ()}


def plan_of(path: Path) -> Plan | None:
    """The plan of the run in this folder; None where there is none."""
    return written(path / "plan.json", partial(records.from_json, kind=Plan))


def result_of(path: Path) -> RunResult | None:
    """How the run in this folder ended; None where it has not, or nobody was left to write it."""
    return written(path / "result.json", partial(records.from_json, kind=RunResult))


def ends_of(path: Path) -> tuple[RankEnd, ...]:
    """How ranks ended, as the agents of their hosts noted it: what there is where the launcher was killed. In the order
    of time. `path`: a run's folder, or the one that a host kept for itself."""
    names = {file_name(host.host.name): host.host.name for host in plan.hosts} if (plan := plan_of(path)) else {}
    facts = facts_of(path)
    found = []
    for file in (*path.glob(f"logs/*/{ENDS}"), path / ENDS):
        for end in _noted(file):
            host = names.get(file.parent.name, str(end.get("hostname", "")))
            offset = facts[host].clock_offset_s if host in facts else None
            found.append(replies.rank_end(end, host, offset or 0.0))
    return tuple(sorted(found, key=lambda end: end.at or 0.0))


def _noted(file: Path) -> Iterator[replies.Body]:
    """Lines that are whole; a host may have died while it wrote one."""
    try:
        lines = [] if file.is_symlink() else file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError):
            if (said := replies.read(line))["t"] == "end":
                yield said


def written(path: Path, read: Callable[[bytes], _T]) -> _T | None:
    """What a run wrote there; None where there is no such file. UsageError where it cannot be read."""
    try:
        return read(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: expected what a run of nvrun writes there: {error}") from None


def is_over(path: Path) -> bool:
    """Whether how the run in this folder ended was written down, readable or not."""
    return (path / "result.json").exists()


def job_of(entry: Remembered) -> Job:
    """A job without a program, whose hosts are reached as the run's were."""
    names = {each.name for each in fields(Options)}
    options = Options(**{name: value for name, value in entry.options.items() if name in names})
    return Job(
        mode=Mode(kind="fleet" if entry.fleet else "node", why="as the run was started"),
        hosts=entry.hosts,
        hosts_from=f"run {entry.id}",
        kinds=entry.kinds,
        args=TorchrunArgs(),
        options=options,
        cwd="/",
        lost_after=60.0,
    )


def kernel() -> str:
    """The process table that pids here are of."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # a sandbox's own kernel (gVisor) has none
        boot = socket.gethostname()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def this_process() -> Process:
    """The caller."""
    mine = stat(os.getpid())
    assert mine is not None
    return Process(host=socket.gethostname(), kernel=kernel(), pid=mine.pid, start=mine.start)


def lives(process: Process) -> bool | None:
    """Whether it runs; None where that cannot be seen from here."""
    if process.kernel != kernel():
        return None
    found = stat(process.pid)
    return found is not None and found.start == process.start and found.state not in "ZX"
