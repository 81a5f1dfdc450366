"""nvrun started in the lab, watched from outside."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab, Running, wait_for

NVRUN = (sys.executable, "-m", "nvrun")
RANK = Path(__file__).with_name("rank.py")


class Started:
    """A run of rank.py whose ranks are all up."""

    def __init__(self, lab: Lab, running: Running, hosts: Sequence[str], ready: Path) -> None:
        self.lab, self.running, self.hosts, self.ready = lab, running, hosts, ready

    def alive(self, host: str) -> list[str]:
        """What of the run lives on a host: argv of its processes, the sshd's own and the launcher left out."""
        found = []
        for process in self.lab.processes(host):
            text = " ".join(process.argv)
            if "sshd" not in process.argv[0] and text:
                found.append(text)
        return found

    def seconds_until_gone(self, within: float) -> dict[str, float]:
        """Host -> seconds until nothing of the run lives there."""
        started = time.monotonic()
        gone: dict[str, float] = {}
        while len(gone) < len(self.hosts):
            for host in self.hosts:
                if host not in gone and not self.alive(host):
                    gone[host] = time.monotonic() - started
            if time.monotonic() - started > within:
                left = {host: self.alive(host) for host in self.hosts if host not in gone}
                raise AssertionError(f"still alive after {within} s: {left}")
            time.sleep(0.02)
        return gone

    def finish(self, timeout: float = 30) -> tuple[int, str, str]:
        stdout, stderr = self.running.communicate(timeout=timeout)
        return self.running.returncode, stdout, stderr


@contextmanager
def job(
    lab: Lab,
    tmp_path: Path,
    actions: Sequence[str],
    *,
    flags: Sequence[str] = (),
    hosts: Sequence[str] = ("a", "b"),
    ranks: int = 2,
    user: str = "root",
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Started]:
    """Two hosts with two ranks each, all of them past `ready`."""
    os.chmod(tmp_path, 0o777)
    ready = tmp_path / "ready"
    argv = [*NVRUN, "--hosts", ",".join(hosts), "--nproc-per-node", ranks, "--run-dir", tmp_path / "runs", *flags,
            "--env", f"READY={ready}", RANK, "ready", *actions]  # fmt: skip
    running = lab.popen(argv, user=user, env={"READY": str(ready), **(env or {})}, **options)
    try:
        count = len(hosts) * ranks
        wait_for(
            lambda: running.poll() is not None or all((tmp_path / f"ready.{rank}").exists() for rank in range(count)),
            "all ranks up",
            timeout=40,
        )
        yield Started(lab, running, hosts, ready)
    finally:
        if running.poll() is None:
            running.kill()
        for stream in (running.stdout, running.stderr, running.stdin):
            if stream:
                stream.close()
        running.wait()


def result(tmp_path: Path) -> dict[str, Any]:
    """result.json of the newest run."""
    loaded: dict[str, Any] = json.loads((tmp_path / "runs" / "latest" / "result.json").read_text())
    return loaded
