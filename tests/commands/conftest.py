"""Runs in the lab that a command is to end, and what they leave on a host."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.lab import LAUNCHER, Lab, Running, wait_for
from tests.lab.processes import Process

NVRUN = (sys.executable, "-m", "nvrun")
LEAVER = Path(__file__).with_name("leaver.py")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every host of an unsplit lab may write to, also one whose hosts have a /tmp each."""
    with tempfile.TemporaryDirectory(prefix="nvrun-commands-", dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@dataclass
class Started:
    """A run whose ranks, one on each host, have each left a daemon behind."""

    lab: Lab
    running: Running
    hosts: Sequence[str]
    runs: Path

    @property
    def id(self) -> str:
        return (self.runs / "latest").readlink().name

    def agents(self, host: str) -> list[Process]:
        return [process for process in self.lab.processes(host) if "nvrun-agent/boot.py" in " ".join(process.argv)]

    def daemons(self, host: str) -> list[Process]:
        return [process for process in self.lab.processes(host) if "left-behind" in process.argv]

    def stop_agents(self, host: str, run_id: str = "") -> list[int]:
        """SIGSTOP to keeper and supervisor: they see nothing of what happens next."""
        torchruns = {each.parent for each in self.lab.processes(host) if each.carries(f"{run_id}.")}
        agents = self.agents(host)
        supervisors = [each for each in agents if each.pid in torchruns and "nvrun-agent" in " ".join(each.argv)]
        keepers = {each.parent for each in supervisors}
        mine = [each.pid for each in agents if each in supervisors or each.pid in keepers]
        for pid in mine:
            os.kill(pid, signal.SIGSTOP)
        return mine

    def kill_agents(self, host: str, run_id: str = "") -> None:
        """kill -9 of keeper and supervisor at once: nobody is left who could sweep."""
        for pid in self.stop_agents(host, run_id):
            os.kill(pid, signal.SIGKILL)

    def kill_launcher(self) -> None:
        (launcher,) = [each for each in self.lab.processes(LAUNCHER) if each.argv[1:3] == ("-m", "nvrun")]
        os.kill(launcher.pid, signal.SIGKILL)
        self.running.wait()


@contextmanager
def started(lab: Lab, place: Path, hosts: Sequence[str], runs: Path | None = None) -> Iterator[Started]:
    """One rank on each host, all of them up. `runs`: where run folders go, else below `place`."""
    place.mkdir(exist_ok=True)
    runs = runs or place / "runs"
    arguments = ["--hosts", ",".join(hosts), "--nproc-per-node", "1", "--run-dir", str(runs), "--check=off",
                 str(LEAVER), str(place / "ready")]  # fmt: skip
    with lab.popen([*NVRUN, *arguments]) as running:
        run = Started(lab, running, hosts, runs)
        ready = [lab.path(host, place / f"ready.{rank}") for rank, host in enumerate(hosts)]
        try:
            wait_for(
                lambda: running.poll() is not None or all(path.exists() for path in ready), "all ranks up", timeout=60
            )
            assert running.poll() is None, running.communicate()
            yield run
        finally:
            running.kill()
            running.wait()
            for host in hosts:
                for process in run.daemons(host):
                    os.kill(process.pid, signal.SIGKILL)
