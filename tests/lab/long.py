"""Long and large, by hand: memory over a gigabyte of output, 64 hosts, two hundred jobs one after the other.

python -m tests.lab.long [output] [hosts] [cycles]      # prints what it measured; the figures stand in README.md
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.__main__ import names
from tests.lab.lab import Lab, wait_for, why_not
from tests.spine.jobs import NVRUN, job

MEGABYTES = 1000
CYCLES = 200


def resident(pid: int) -> int:
    """Resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS:"))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def output(place: Path) -> None:
    """A gigabyte by one rank: resident memory of nvrun and of the supervisors on the way."""
    with (
        Lab(["a", "b"]) as lab,
        job(lab, place, ["wait", f"print:0:{MEGABYTES}"], stdout=subprocess.DEVNULL) as running,
    ):
        watched = {"nvrun": running.nvrun().pid} | {
            f"supervisor of {host}": running.one(host, "supervisor").pid for host in running.hosts
        }
        before = {name: resident(pid) for name, pid in watched.items()}
        most = dict(before)
        file = place / "runs/latest/logs/a/rank0.out"
        shown = 0
        began = time.monotonic()
        running.go()
        while running.running.poll() is None:
            for name, pid in watched.items():
                try:
                    most[name] = max(most[name], resident(pid))
                except (OSError, StopIteration):  # it has ended
                    continue
            if file.stat().st_size >= (shown + 1) * MEGABYTES * 100_000:
                shown += 1
                print(f"  {shown * 10} % written: {most}", flush=True)
            time.sleep(0.05)
        code = running.finish()[0]
        size = file.stat().st_size
        print(
            f"output: {size >> 20} MiB in {time.monotonic() - began:.0f} s, exit {code}; resident MiB before: {before}"
        )
        print(f"        most: {most}", flush=True)
        assert code == 0
        assert size == MEGABYTES * 1_000_000
        assert all(most[name] < before[name] + 64 for name in most), (before, most)


def hosts(place: Path) -> None:
    """64 hosts of one rank each, launched, and ended by SIGTERM. Not looked at: they share a machine's few CPUs."""
    all_hosts = names(64)
    with Lab(all_hosts) as lab:
        began = time.monotonic()
        flags = ["--check", "off", "--grace", "5"]
        with job(lab, place, ["sleep"], hosts=all_hosts, ranks=1, flags=flags, wait=400.0) as running:
            up = time.monotonic() - began
            memory = resident(running.nvrun().pid)
            running.running.terminate()
            stopped = time.monotonic()
            running.running.wait(timeout=200)
            ended = time.monotonic() - stopped
            wait_for(lambda: not any(lab.pids(host) for host in all_hosts), "an empty cluster", timeout=60)
            clean = time.monotonic() - stopped
            code = running.running.returncode
        print(f"hosts: 64 up in {up:.0f} s, nvrun {memory} MiB; exit {code}", flush=True)
        print(f"       ended {ended:.1f} s and clean {clean:.1f} s after SIGTERM", flush=True)
        assert code == 143


def cycles(place: Path) -> None:
    """Jobs of two hosts one after the other; then everything is as after the first."""
    with Lab(["a", "b"]) as lab:
        began = time.monotonic()

        def cycle() -> None:
            flags = ["--check", "off", "--hosts", "a,b", "--nproc-per-node", "1", "--run-dir", str(place / "runs")]
            argv = [*NVRUN, *flags, "--monitor", "off", "--no-python", "true"]
            done = lab.run(argv, timeout=120)
            assert done.returncode == 0, done.stderr

        cycle()
        first = state(lab)
        for number in range(1, CYCLES):
            cycle()
            if number % 50 == 0:
                print(f"  {number} cycles", flush=True)
        wait_for(lambda: state(lab)[0] == first[0], "the end of the last agents")
        last = state(lab)
        seconds = time.monotonic() - began
        print(f"cycles: {CYCLES} in {seconds:.0f} s; processes, file handles of sshd, namespaces, folders in /tmp:")
        print(f"        {first} after the first, {last} after the last", flush=True)
        assert last == first


def state(lab: Lab) -> tuple[int, int, int, int]:
    """What a job could leave: processes of the hosts, file handles of their sshd, namespaces, folders in /tmp."""
    here = [process for host in lab.hosts for process in (*lab.processes(host), *lab.daemons(host))]
    handles = sum(descriptors(each.pid) for host in lab.hosts for each in lab.daemons(host))
    spaces = {Path(f"/proc/{each.pid}/ns/{kind}").readlink() for each in here for kind in ("mnt", "net", "pid", "ipc")}
    folders = sum(1 for host in lab.hosts for _ in lab.path(host, "/tmp").glob("nvrun-0/*"))
    return len(here), handles, len(spaces), folders


STUDIES: dict[str, Callable[[Path], None]] = {"output": output, "hosts": hosts, "cycles": cycles}


def main() -> int:
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    for name in sys.argv[1:] or STUDIES:
        with tempfile.TemporaryDirectory(prefix="nvrun-long-", dir="/tmp") as folder:
            Path(folder).chmod(0o777)
            STUDIES[name](Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
