"""What was asked for and by whom, as request.json of the run's folder has it: enough to type it again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nvrun import __version__, records
from nvrun.fleet.routes import Kind
from nvrun.job import Job
from nvrun.model import Frozen, Host
from nvrun.options import SETTINGS, Options
from nvrun.runs import Process, this_process, written


class Request(Frozen, frozen=True, kw_only=True):
    """One job before anything was learned from its hosts."""

    nvrun: str
    """Its version."""
    started: float
    """Seconds since the epoch."""
    mode: str
    """`fleet` or `node`, and why."""
    hosts_from: str
    hosts: tuple[Host, ...]
    kinds: tuple[Kind, ...]
    """How each host is reached."""
    cwd: str
    torchrun: tuple[str, ...]
    """torchrun's settings that somebody set, then the program with its arguments."""
    options: Mapping[str, Any] = {}
    """nvrun's own settings that were not left at their defaults; null stands for `never`."""
    launcher: Process | None = None
    slurm_job: int | None = None


def request(job: Job, started: float) -> Request:
    """What `job` asks for."""
    default = Options()
    given = {setting.name: getattr(job.options, setting.field) for setting in SETTINGS
             if getattr(job.options, setting.field) != getattr(default, setting.field)}  # fmt: skip
    return Request(
        nvrun=__version__,
        started=started,
        mode=f"{job.mode.kind}: {job.mode.why}",
        hosts_from=job.hosts_from,
        hosts=job.hosts,
        kinds=job.kinds,
        cwd=job.cwd,
        torchrun=tuple(job.args.to_argv()),
        options=msgspec.to_builtins(given),
        launcher=this_process(),
        slurm_job=job.detected.job_id,
    )


def request_of(path: Path) -> Request | None:
    """What the run in this folder was asked for; None where there is no such record. UsageError for a broken one."""
    return written(path / "request.json", partial(records.from_json, kind=Request))
