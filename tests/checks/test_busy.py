"""Silence on a host that has too much to do is unknown, not bad."""

from __future__ import annotations

import pytest

from nvrun import checks
from nvrun.checks.busy import excused
from nvrun.facts import Cpu, Cpus, Filesystem, HostFacts, Names, PathFact

SILENT = "no answer in 2 s"
HUNG = {"own-name-unknown", "peer-name-unknown", "path-hung", "filesystem-hung"}


def host(name: str, load: float, runnable: int | None = None) -> HostFacts:
    return HostFacts(
        host=name,
        cpus=Cpus(online=(Cpu(cpu=0), Cpu(cpu=1)), allowed=(0, 1), load1=load, runnable=runnable),
        names=Names(
            hostname=name,
            resolve_error=SILENT,
            peers={"b" if name == "a" else "a": ()},
            peer_errors={"b" if name == "a" else "a": SILENT},
        ),
        filesystems=(Filesystem(path="/scratch", error=SILENT),),
        paths=(PathFact(path="/train.py", exists=False, error=SILENT),),
    )


@pytest.mark.parametrize(
    ("load", "runnable", "judged"),
    [
        (0.5, None, True),
        (40.0, None, False),
        (0.5, 60, False),  # the load of the last minute is late
        (200.0, 2, True),  # they all wait for the file server that does not answer
    ],
)
def test_what_does_not_answer(load: float, runnable: int | None, judged: bool) -> None:
    fleet = {name: host(name, load, runnable) for name in ("a", "b")}
    verdict = checks.run(fleet, checks.Job(hosts=("a", "b"), script="/train.py"))
    found = {finding.code for finding in verdict.findings} & HUNG
    assert found == (HUNG if judged else set())
    unknown = {(skipped.code, skipped.host) for skipped in verdict.skipped if "the host is busy" in skipped.reason}
    wanted = {
        (check, name) for check in ("own-name", "peer-names", "paths-there", "filesystems-fit") for name in ("a", "b")
    }
    assert unknown == (set() if judged else wanted)
    assert ("localhost", "a") in {(skipped.code, skipped.host) for skipped in verdict.skipped}


def test_a_load_that_is_not_known_excuses_nothing() -> None:
    assert excused(SILENT, HostFacts(host="a")) == ""


@pytest.mark.parametrize("error", ["Stale file handle", "Input/output error", "", None])
def test_only_silence_is_excused(error: str | None) -> None:
    """A file system that does answer, with an error, is as bad on a busy host."""
    assert excused(error, host("a", 200.0, 60)) == ""
    assert excused(SILENT, host("a", 200.0, 60)) != ""
