"""What the preflight costs: 64 hosts of a lab checked in full, and the facts of a thousand hosts judged.

    python -m tests.bench.preflight                 # as root
    python -m tests.bench.preflight --runs 5 --hosts 64

The full preflight of `nvrun check` against `clush`, which only runs `python3 -c pass` on the same hosts over the same
sshds, in turns. All hosts share this machine's CPUs. Figures of a machine that does something else say nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from nvrun import checks, facts
from nvrun.facts import HostFacts
from tests.lab.lab import Lab, why_not

NVRUN = (sys.executable, "-m", "nvrun")
CLUSH = str(Path(sys.executable).with_name("clush"))
ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "facts"


def seconds(run: Callable[[], object]) -> float:
    started = time.monotonic()
    run()
    return time.monotonic() - started


def lab_hosts(count: int, runs: int) -> None:
    names = [f"n{number:02}" for number in range(count)]
    with Lab(names, own_pids=True) as lab:  # else each looks through the processes of all 64, as no real host does
        introduce(lab)
        hosts = ",".join(names)
        check = [*NVRUN, "check", "--hosts", hosts, "--check", "full"]
        ssh = ["-S", "-f", "64", "-o", "-oStrictHostKeyChecking=yes"]
        plain = [CLUSH, *ssh, "-w", hosts, f"{sys.executable} -c pass"]

        def checked() -> None:
            done = lab.run(check, cwd=ROOT, timeout=300)
            if done.returncode:
                print(f"exit {done.returncode}: {done.stdout[:2000]}{done.stderr[:500]}", flush=True)

        def clushed() -> None:
            lab.run(plain, timeout=300, check=True)

        clushed()
        checked()
        pairs = [(seconds(clushed), seconds(checked)) for _ in range(runs)]
    theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / bare for bare, mine in pairs)
    print(
        f"{count} hosts: clush {theirs:.1f} s, nvrun check {ours:.1f} s, ratio {ratio:.2f} ({runs} pairs)", flush=True
    )


def introduce(lab: Lab) -> None:
    """Every host knows every other's link address for good. The kernel's table of those it asked for is one for all
    namespaces and ends at 1024 (gc_thresh3), 32 hosts' worth; what is entered by hand does not count."""
    macs = {
        host: lab.exec(host, ["cat", "/sys/class/net/eth0/address"], check=True).stdout.strip() for host in lab.hosts
    }
    for host in lab.hosts:
        lines = [
            f"neigh replace {lab.address(other)} lladdr {mac} dev eth0 nud permanent"
            for other, mac in macs.items()
            if other != host
        ]
        lab.exec(host, ["ip", "-batch", "-"], input="\n".join(lines), check=True)


def recorded(name: str, count: int, runs: int) -> None:
    (one,) = facts.from_json((RECORDED / f"{name}.json").read_bytes())
    fleet = {host: _named(one, host, number) for number, host in enumerate(f"n{n:04}" for n in range(count))}
    taken = [seconds(lambda: checks.run(fleet, checks.Job(port=29500))) for _ in range(runs)]
    print(f"{count} x {name}: judged in {statistics.median(taken):.2f} s", flush=True)


def _named(facts: HostFacts, host: str, number: int) -> HostFacts:
    """A host of its own: name, identity and the names of its peers."""
    identity = facts.identity and msgspec.structs.replace(
        facts.identity, hostname=host, nccl_host_hash=f"{host}-{number}", boot_id=f"{number}"
    )
    return msgspec.structs.replace(facts, host=host, identity=identity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=64)
    arguments = parser.parse_args()
    # An installed nvrun is compiled; from a checkout the first run does it, where nothing forbids that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in ("h100x8", "cpu_host"):
        recorded(name, 1000, arguments.runs)
    if reason := why_not():
        print(f"no lab: {reason}")
    else:
        lab_hosts(arguments.hosts, arguments.runs)


if __name__ == "__main__":
    main()
