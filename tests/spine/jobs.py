"""nvrun started in the lab, watched from outside."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.lab.lab import LAUNCHER, Lab, Running, wait_for
from tests.lab.processes import Process

NVRUN = (sys.executable, "-m", "nvrun")
RANK = Path(__file__).with_name("rank.py")

Way = Literal["ssh", "rsh", "srun", "sbatch"]
"""How nvrun reaches its hosts: `srun` from within salloc on the launcher, `sbatch` from a batch script on host a."""


def command(lab: Lab, way: Way, hosts: Sequence[str], arguments: Sequence[str | Path], place: Path) -> list[str]:
    """nvrun's command line for these hosts, ready for `lab.run` or `lab.popen`."""
    slurm = [f"--nodes={len(hosts)}", f"--nodelist={','.join(hosts)}", "--exclusive"]
    argv = [*NVRUN, *map(str, arguments)]
    if way == "srun":
        return ["salloc", "--quiet", *slurm, *argv]
    if way == "sbatch":
        script = place / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {shlex.join(argv)}\n")
        submit = shlex.join(
            ["sbatch", "--parsable", *slurm, f"--output={place}/out", f"--error={place}/err", str(script)]
        )
        return [
            "sh",
            "-c",
            f"id=$({submit}); while squeue --noheader --jobs=$id 2>&1 | grep -q $id; do sleep 0.1; done",
        ]
    reach = ["--hosts", ",".join(hosts), *(["--rsh", lab.rsh] if way == "rsh" else [])]
    return [*NVRUN, *reach, *map(str, arguments)]


def kind(process: Process, agents: Mapping[int, Process]) -> str:
    """What a process of a run is; "" for what only carries the connection."""
    text = " ".join(process.argv)
    if "left-behind" in process.argv:
        return "daemon"
    if process.pid in agents:
        parent = agents.get(process.parent)
        if parent is None:
            return "keeper"
        return "task" if parent.parent in agents else "supervisor"
    if "torch.distributed.run" in text:
        return "torchrun"
    if process.argv[1:3] == ("-m", "nvrun"):
        return "nvrun"
    if str(RANK) in process.argv and Path(process.argv[0]).name.startswith("python"):
        return "rank"
    if process.argv[0].startswith(("sshd", "slurmstepd")) or not text:
        return ""
    return text[:60]


@dataclass(frozen=True)
class Watched:
    """When what was gone, in seconds after `Job.watch` began."""

    gone: Mapping[str, Mapping[str, float]]
    """Host -> kind of process -> when the last of them was gone."""
    nvrun: float


@dataclass
class Job:
    """A run whose ranks are all up."""

    lab: Lab
    running: Running
    hosts: Sequence[str]
    place: Path
    way: Way
    mend: Callable[[], object] = lambda: None
    """What a fault left to be undone."""

    def processes(self, host: str) -> dict[str, list[Process]]:
        """What of the run lives on a host, by kind."""
        living = self.lab.processes(host)
        agents = {process.pid: process for process in living if "nvrun-agent/boot.py" in " ".join(process.argv)}
        found: dict[str, list[Process]] = {}
        for process in living:
            if name := kind(process, agents):
                found.setdefault(name, []).append(process)
        return found

    def nvrun(self) -> Process:
        where = "a" if self.way == "sbatch" else LAUNCHER
        return self.processes(where)["nvrun"][0]

    def one(self, host: str, name: str) -> Process:
        """The only process of a kind there."""
        (found,) = self.processes(host)[name]
        return found

    def watch(self, before: Mapping[str, Mapping[str, Sequence[Process]]], within: float) -> Watched:
        """Until all of `before` and nvrun are gone; AssertionError with what still lives after `within` seconds.

        Of a batch job nvrun is one of the processes on host a.
        """
        started = time.monotonic()
        left = {(host, name): list(found) for host, kinds in before.items() for name, found in kinds.items()}
        gone: dict[str, dict[str, float]] = {host: {} for host in before}
        ended = 0.0 if self.way == "sbatch" else None
        while left or ended is None:
            now = time.monotonic() - started
            for (host, name), found in list(left.items()):
                found[:] = [process for process in found if lives(process.pid)]
                if not found:
                    gone[host][name] = now
                    del left[host, name]
            if ended is None and self.running.poll() is not None:
                ended = now
            if now > within:
                names = {key: [process.pid for process in found] for key, found in left.items()}
                raise AssertionError(f"after {within} s: nvrun ended at {ended}, still alive: {names}; gone: {gone}")
            time.sleep(0.01)
        for host in self.hosts:  # what was started meanwhile counts as well
            assert not self.processes(host), f"left on {host}: {self.processes(host)}"
        return Watched(gone, ended or gone["a"]["nvrun"])

    def go(self) -> None:
        """Ranks that `wait` go on."""
        (self.place / "ready.go").touch()

    def finish(self, timeout: float = 30) -> tuple[int, str, str]:
        """nvrun's exit code and its output."""
        stdout, stderr = self.running.communicate(timeout=timeout)
        if self.way == "sbatch":
            return self.running.returncode, (self.place / "out").read_text(), (self.place / "err").read_text()
        return self.running.returncode, stdout, stderr


@contextmanager
def job(
    lab: Lab,
    place: Path,
    actions: Sequence[str],
    *,
    way: Way = "ssh",
    flags: Sequence[str] = (),
    hosts: Sequence[str] = ("a", "b"),
    ranks: int = 2,
    prefix: Sequence[str] = (),
    wait: float = 60.0,
    **options: Any,
) -> Iterator[Job]:
    """nvrun with `ranks` ranks of rank.py on each host, all past their first action, `ready`. `prefix`: what starts
    nvrun, as nohup does."""
    own: list[str | Path] = ["--nproc-per-node", str(ranks), "--run-dir", place / "runs"]
    arguments = [*own, *flags, "--env", f"READY={place}/ready", RANK, "ready", *actions]
    argv = [*prefix, *command(lab, way, hosts, arguments, place)]
    with up(lab, place, argv, hosts, ranks, way, wait=wait, **options) as running:
        yield running


@contextmanager
def up(
    lab: Lab,
    place: Path,
    argv: Sequence[str],
    hosts: Sequence[str],
    ranks: int,
    way: Way,
    *,
    wait: float = 60.0,
    **options: Any,
) -> Iterator[Job]:
    """Whatever starts those ranks, once they are up; it is killed at the end where it still runs."""
    wanted = [place / f"ready.{rank}" for rank in range(len(hosts) * ranks)]
    with lab.popen(argv, start_new_session=True, **options) as running:
        try:
            wait_for(
                lambda: running.poll() is not None or all(path.exists() for path in wanted),
                "all ranks up",
                timeout=wait,
            )
            assert running.poll() is None, f"it ended with {running.returncode}: {running.communicate()}"
            yield Job(lab, running, hosts, place, way)
        finally:
            running.kill()


def result(place: Path) -> dict[str, Any]:
    """result.json of the newest run."""
    loaded: dict[str, Any] = json.loads((place / "runs" / "latest" / "result.json").read_text())
    return loaded


def lives(pid: int) -> bool:
    """Not a zombie, not gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def signal_group(process: Process, number: int) -> None:
    """What a terminal does on Ctrl-C: the signal goes to every process of nvrun's group, the lab's nsenter left out."""
    group = os.getpgid(process.pid)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            mine = os.getpgid(int(entry.name)) == group and (entry / "comm").read_text().strip() != "nsenter"
        except OSError:
            continue
        if mine:
            os.kill(int(entry.name), number)
