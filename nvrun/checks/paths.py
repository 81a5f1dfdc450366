"""Script, working directory and other paths: there, readable, and the same on all hosts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from nvrun.checks.busy import excused, silent
from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, FATAL, WARNING, declare, unread
from nvrun.checks.compare import differing
from nvrun.checks.job import Job
from nvrun.facts import HostFacts, PathFact

_READ = "stat of the path on the host, in the job's own chain and as its user"

MISSING = declare(
    "path-missing",
    FATAL,
    "the script, the working directory or a required path is not there",
    read=_READ,
    why="the ranks of that host end at once and the others wait for them",
    remedy="copy it there, mount the shared file system, or --chdir DIR to where it is",
    source="stat(2)",
)
UNREADABLE = declare(
    "path-unreadable",
    FATAL,
    "a path of the job may not be read",
    read="access(2) on the host as the job's user",
    why="the ranks of that host end at once and the others wait for them",
    remedy="chmod or chgrp it there; namei -l PATH shows which folder forbids it",
    source="access(2), path_resolution(7)",
)
KIND = declare(
    "path-wrong-kind",
    FATAL,
    "a path of the job is of another kind than needed",
    read=_READ,
    why="a folder cannot be run, and a file is no working directory",
    remedy="look at it there: ls -ld PATH",
    source="stat(2)",
)
HUNG = declare(
    "path-hung",
    ERROR,
    "the file system of a path does not answer",
    read="stat in a child of its own, given up after 2 s",
    why="every process that touches it waits, and cannot be killed meanwhile",
    remedy="look at the mount there: mount | grep PATH; dmesg | tail; is its server up?",
    source="nfs(5), hard mounts; proc_pid_stat(5), state D",
)
DIFFERS = declare(
    "path-differs",
    ERROR,
    "a file differs between hosts",
    read="size and SHA-256 of the file (up to 64 MiB)",
    why="ranks that run different code hang in collectives that do not match, or train something else",
    remedy="copy one version to all hosts: rsync, or a shared file system",
    source="sha256sum(1)",
)

_NAMES = {"script": "the script", "cwd": "the working directory", "textfile": "the folder of --monitor-textfile"}


@check(MISSING, UNREADABLE, KIND, HUNG)
def paths_there(paths: tuple[PathFact, ...], facts: HostFacts, job: Job) -> Results:
    """Script, working directory and required paths are there and may be read."""
    known = {fact.path: fact for fact in paths}
    cwd = job.cwd
    broken = ""
    for path, wanted in _wanted(job).items():
        fact = known.get(path)
        if fact is None or (broken and path.startswith(broken)):
            continue  # not asked for on this host, or below a folder that was named already
        what = _NAMES.get(wanted, "the required path")
        if excuse := excused(fact.error, facts):
            yield unread(f"{path}: {excuse}")
        elif silent(fact.error):
            yield HUNG.found(f"{what} {path}: {fact.error}", subject=path)
        elif not fact.exists:
            words = f"{what} {path} is not there: {fact.error or 'no such file'}"
            if wanted == "textfile":  # the job does not depend on it
                remedy = "make it there, or leave --monitor-textfile out: no samples are written"
                yield MISSING.found(words, subject=path, severity=WARNING, remedy=remedy)
            else:
                yield MISSING.found(words, subject=path)
        elif wanted == "cwd" and fact.kind != "directory":
            yield KIND.found(f"{what} {path} is a {fact.kind}", subject=path)
        elif wanted == "script" and fact.kind == "directory" and not path.endswith(".py"):
            continue  # python runs a folder with a __main__.py
        elif fact.readable is False:
            yield UNREADABLE.found(f"{what} {path} may not be read", subject=path)
        else:
            continue
        if path == cwd:
            broken = path.rstrip("/") + "/"


@fleet_check(DIFFERS)
def files_agree(paths: Mapping[str, tuple[PathFact, ...]], job: Job) -> Results:
    """The script, and every --require-same file, is the same on all hosts."""
    wanted = [path for path, kind in _wanted(job).items() if kind in ("script", "same")]
    for path in wanted:
        files = {
            host: fact for host, facts in paths.items() for fact in facts if fact.path == path and fact.kind == "file"
        }
        seen = {host: (fact.size, fact.sha256) for host, fact in files.items()}
        yield from differing(
            DIFFERS, seen, path, subject=path, shown=lambda seen: f"has {seen[0]} bytes (sha256 {(seen[1] or '?')[:8]})"
        )


def _wanted(job: Job) -> dict[str, str]:
    """Absolute path -> what it is to the job; the working directory first, since others may lie in it."""
    cwd = job.cwd or "/"
    asked = [
        *([(job.cwd, "cwd")] if job.cwd else []),
        *([(job.script, "script")] if job.script else []),
        *((path, "same") for path in job.require_same),
        *((path, "required") for path in job.require_path),
        *([(job.textfile, "textfile")] if job.textfile else []),
    ]
    wanted: dict[str, str] = {}
    for path, kind in asked:
        wanted.setdefault(posixpath.normpath(posixpath.join(cwd, path)), kind)
    return wanted
