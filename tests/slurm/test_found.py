"""The traps of a job script over the facts of its hosts, and who is at fault."""

from __future__ import annotations

import msgspec
import pytest

from nvrun import job, slurm
from nvrun.agent.loop import Loop
from nvrun.agent.slurm import Signals, shields
from nvrun.config import parse
from tests.checks.fleets import machine

BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_SUBMIT_HOST": "login",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_JOB_CPUS_PER_NODE": "192(x2)",
}


def found(hostname: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, **env: str) -> list[tuple[str, ...]]:
    monkeypatch.setattr("socket.gethostname", lambda: hostname)
    hosts = [
        msgspec.structs.replace(machine("h100x8"), host=name, env=env if name == "n2" else {}) for name in ("n1", "n2")
    ]
    asked = job.read(parse(["--fleet", "ssh", "train.py"], environ), environ)
    return [(finding.code, finding.host or "job") for finding in slurm.found(asked, environ, hosts)]


def test_a_sound_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("n1", BATCH, monkeypatch) == []


def test_what_holds_for_the_job_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("elsewhere", BATCH | {"SLURM_RESTART_COUNT": "1"}, monkeypatch) == [
        ("slurm-variables-left-over", "job"),
        ("slurm-requeued", "job"),
    ]


def test_what_one_host_shows_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = BATCH | {"SLURM_GPUS_PER_TASK": "1"}
    assert found("n1", environ, monkeypatch, CUDA_VISIBLE_DEVICES="3") == [("slurm-gpus-isolated", "n2")]


def test_gpus_are_those_that_cuda_shows() -> None:
    host = machine("h100x8")
    assert slurm.seen(host).gpus == 8
    assert slurm.seen(msgspec.structs.replace(host, env={"CUDA_VISIBLE_DEVICES": "0,3"})).gpus == 2
    assert slurm.seen(msgspec.structs.replace(host, env={"CUDA_VISIBLE_DEVICES": "NoDevFiles"})).gpus == 0
    assert slurm.seen(msgspec.structs.replace(host, gpus=None, env=None)).gpus is None


@pytest.mark.parametrize(
    ("environ", "argv", "shielded"),
    [
        ({"SLURM_JOB_ID": "7"}, ["python", "--nnodes=2", "--", "train.py", "--signals=x"], True),
        ({"SLURM_JOB_ID": "7"}, ["python", "--signals-to-handle=SIGTERM", "--", "train.py"], False),
        ({"SLURM_JOB_ID": "7", "PET_SIGNALS_TO_HANDLE": "SIGTERM"}, ["python", "--", "train.py"], False),
        ({}, ["python", "--", "train.py"], False),
    ],
)
def test_when_torchrun_is_shielded_from_term(environ: dict[str, str], argv: list[str], shielded: bool) -> None:
    assert shields(environ, argv) is shielded


def test_a_signal_that_came_by_itself_is_not_handed_on() -> None:
    class Later(Loop):
        def __init__(self) -> None:
            self.calls: list[object] = []

        def later(self, seconds: float, call: object) -> None:
            self.calls.append(call)

    loop = Later()
    under_slurm, elsewhere = Signals(loop, {"SLURM_JOB_ID": "7"}), Signals(loop, {})
    for signals in (under_slurm, elsewhere):
        assert not signals.came(10)
        signals.note(10)
    assert (under_slurm.came(10), under_slurm.came(12), elsewhere.came(10)) == (True, False, False)
    told: list[str] = []
    elsewhere.when_settled(lambda: told.append("at once"))
    under_slurm.when_settled(lambda: told.append("later"))
    assert (told, len(loop.calls)) == (["at once"], 1)
