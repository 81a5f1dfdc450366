"""What nvrun costs: wall time of the same job by nvrun and by bare torchrun, in turns.

    python -m tests.bench.launch              # one host, two hosts of a lab (as root), and `nvrun --help`
    python -m tests.bench.launch --runs 15

One host: `nvrun --nproc-per-node 2` against torchrun. Two hosts of two ranks: nvrun over ssh against one ssh with
torchrun a host, at once. The job is a rank that ends at once, so that all of it is launching. Figures of a machine that
does something else at the same time say nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab, why_not

NVRUN = (sys.executable, "-m", "nvrun")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RANK = Path(__file__).parents[1] / "spine" / "rank.py"
TRAIN = Path(__file__).parents[2] / "examples" / "train_ddp.py"


def seconds(run: Callable[[], object]) -> float:
    started = time.monotonic()
    run()
    return time.monotonic() - started


def compare(
    name: str, bare: Callable[[], object], ours: Callable[[], object], runs: int, *, timed: bool = False
) -> None:
    """Both in turns, after one run each that warms the caches and does not count. `timed`: they return the seconds."""
    bare()
    ours()
    take: Callable[[Callable[[], Any]], float] = (lambda run: run()) if timed else seconds
    pairs = [(take(bare), take(ours)) for _ in range(runs)]
    theirs, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"| {name} | {theirs:.2f} | {mine:.2f} | {mine - theirs:+.2f} | {mine / theirs:.2f} |", flush=True)


def one_host(runs: int, folder: str) -> None:
    rank = (str(RANK), "ended")
    bare = (*TORCHRUN, "--nproc-per-node=2", "--master-port=29800", *rank)
    ours = (*NVRUN, "--nproc-per-node=2", f"--run-dir={folder}", *rank)
    compare("1 host x 2", lambda: quiet(bare), lambda: quiet(ours), runs)


def two_hosts(runs: int, folder: str) -> None:
    with Lab(["a", "b"]) as lab:
        torchrun = (*TORCHRUN, "--nnodes=2", "--nproc-per-node=2", f"--master-addr={lab.address('a')}",
                    "--master-port=29800")  # fmt: skip
        commands = [shlex.join([*torchrun, f"--node-rank={node}", str(RANK), "ended"]) for node in (0, 1)]
        script = "".join(f"ssh {host} {shlex.quote(command)} &\n" for host, command in zip("ab", commands, strict=True))
        ours = [*NVRUN, "--hosts=a,b", "--nproc-per-node=2", f"--run-dir={folder}", str(RANK), "ended"]
        compare(
            "2 hosts x 2",
            lambda: lab.run(["sh", "-c", f"{script}wait"], timeout=120, check=True),
            lambda: lab.run(ours, timeout=120, check=True),
            runs,
        )


def first_line(runs: int, folder: str) -> None:
    """Time to the first line of a training, all checks on: what the preflight costs where it matters."""
    train = (str(TRAIN), "--steps", "20")
    bare = (*TORCHRUN, "--nproc-per-node=2", "--master-port=29800", *train)
    ours = (*NVRUN, "--nproc-per-node=2", f"--run-dir={folder}", *train)
    compare("1 host x 2, first line", lambda: until_step(bare), lambda: until_step(ours), runs, timed=True)
    with Lab(["a", "b"]) as lab:
        torchrun = (*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", f"--master-addr={lab.address('a')}",
                    "--master-port=29800")  # fmt: skip
        commands = [shlex.join([*torchrun, f"--node-rank={node}", *train]) for node in (0, 1)]
        script = "".join(f"ssh {host} {shlex.quote(command)} &\n" for host, command in zip("ab", commands, strict=True))
        start = ["sh", "-c", f"({script}wait) 2>&1"]
        nvrun = [
            "sh",
            "-c",
            shlex.join([*NVRUN, "--hosts=a,b", "--nproc-per-node=1", f"--run-dir={folder}", *train]) + " 2>&1",
        ]
        compare(
            "2 hosts x 1, first line",
            lambda: until_step(start, lab),
            lambda: until_step(nvrun, lab),
            runs,
            timed=True,
        )


def until_step(argv: Sequence[str], lab: Lab | None = None) -> float:
    """Seconds from the start until a line of the training is there; the job is then let run to its end."""
    started = time.monotonic()
    running: subprocess.Popen[Any]
    if lab is None:
        running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    else:
        running = lab.popen(argv)
    assert running.stdout is not None
    taken = 0.0
    text = b""
    while data := os.read(running.stdout.fileno(), 4096):
        text = text[-200:] + data
        if not taken and b"step " in text:
            taken = time.monotonic() - started
    if running.wait():
        raise RuntimeError(f"{shlex.join(argv)}: exit {running.returncode}")
    return taken


def help_page(runs: int) -> None:
    taken = [seconds(lambda: quiet((*NVRUN, "--help"))) for _ in range(runs + 1)][1:]
    print(f"\n`nvrun --help`: {statistics.median(taken):.3f} s (the interpreter alone: {interpreter(runs):.3f} s)")


def interpreter(runs: int) -> float:
    return statistics.median(seconds(lambda: quiet((sys.executable, "-c", ""))) for _ in range(runs))


def quiet(argv: tuple[str, ...]) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="counted runs of each (9)")
    runs = parser.parse_args().runs
    # An installed nvrun is compiled; from a checkout the first run does it, where nothing forbids that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="nvrun-bench-") as folder:
        print("| job | bare (s) | nvrun (s) | more (s) | ratio |\n|---|---|---|---|---|")
        one_host(runs, folder)
        if reason := why_not():
            print(f"(two hosts: {reason})")
        else:
            two_hosts(runs, folder)
            first_line(runs, folder)
        help_page(runs)


if __name__ == "__main__":
    main()
