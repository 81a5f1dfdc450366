"""A study on a machine with two GPUs, by hand: nvrun bench against a plain loop in turn, and nvrun tune over NVLink.

    python tests/gpu/bench_two_gpus.py OUT [bench] [compare] [tune]      bench: 2 minutes at most, tune: 8

Writes OUT/bench_two_gpus.json and what every run printed. NVLink multicast stays off in all of it; the study ends at
once where a trial would say otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
SIZES = [*(8 * 4**step for step in range(14)), 1 << 30, 4 << 30]
ROUNDS = 4
NVRUN = [sys.executable, "-m", "nvrun"]


def run(out: Path, name: str, argv: list[str], timeout: float) -> tuple[int, str]:
    """Exit code and standard output of a command; all it printed is kept in OUT."""
    begun = time.monotonic()
    environment = {**os.environ, **KEPT, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment |= {"XDG_CONFIG_HOME": str(out / "config"), "HOME": str(out)}
    try:
        done = subprocess.run(
            argv, cwd=out, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        code, stdout, stderr = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, stdout, stderr = 124, str(late.stdout), str(late.stderr)
    with open(out / "runs.txt", "a") as file:
        file.write(f"==== {name}: exit {code}, {time.monotonic() - begun:.1f} s\n{stdout}\n{stderr[-6000:]}\n")
    print(f"{name}: exit {code}, {time.monotonic() - begun:.1f} s", flush=True)
    return code, stdout


WAYS = {"nvrun": [], "without recorders": ["--hook", "none"]}


def bench(out: Path) -> dict[str, Any]:
    """Plain loop and nvrun bench, as it is and without what records, in turn; their seconds for each size, and the
    ratios of the medians."""
    plain: dict[int, list[float]] = {size: [] for size in SIZES}
    ours: dict[str, dict[int, list[float]]] = {way: {size: [] for size in SIZES} for way in WAYS}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    measure = ["bench", "--nproc-per-node", "2", "--collectives", "all-reduce", "--json"]
    for at in range(ROUNDS):
        _, text = run(
            out, f"plain {at}", [*torchrun, str(ROOT / "tests/gpu/plain_loop.py"), *map(str, SIZES)], timeout=40
        )
        for line in text.splitlines():
            if line.startswith("PLAIN "):
                for size, seconds in json.loads(line[6:]).items():
                    plain[int(size)].append(seconds)
        for way, flags in WAYS.items():
            sizes = ["--sizes", ",".join(map(str, SIZES))]
            code, text = run(out, f"{way} {at}", [*NVRUN, *measure, *sizes, *flags], timeout=60)
            for row in json.loads(text)["records"] if code == 0 else []:
                if "median" in row:
                    ours[way][row["bytes"]].append(row["median"])
    ratios = {
        way: {size: median(found[size]) / median(plain[size]) for size in SIZES if found[size] and plain[size]}
        for way, found in ours.items()
    }
    return {"plain": plain, "ours": ours, "ratio": ratios}


def compare(out: Path) -> dict[str, Any]:
    """A small buffer is known to be slow (about 248 of 346 GB/s at 4 GB): the verdict must say so; A against A none."""
    found: dict[str, Any] = {}
    for name, other in (("same", "default"), ("small buffer", "NCCL_BUFFSIZE=262144")):
        flags = ["bench", "--nproc-per-node", "2", "--sizes", "16M,256M", "--pairs", "8", "--json", "--compare"]
        code, text = run(out, f"compare {name}", [*NVRUN, *flags, "default", other], timeout=150)
        found[name] = json.loads(text)["verdict"] if code == 0 else f"exit {code}"
        print(name, found[name], flush=True)
    flags = ["bench", "--nproc-per-node", "2", "--sizes", "16M,256M", "--collectives", "all-reduce", "--overlap"]
    found["overlap"] = run(out, "overlap", [*NVRUN, *flags], timeout=60)[1]
    return found


def tune(out: Path) -> dict[str, Any]:
    """Over NVLink for 256 MB messages; then a run with what was found, if anything was."""
    flags = ["tune", "--nproc-per-node", "2", "--messages", "256M*4", "--budget", "360", "--json"]
    code, text = run(out, "tune", [*NVRUN, *flags], timeout=480)
    if code:
        return {"exit": code}
    found: dict[str, Any] = json.loads(text)
    for each in found["evidence"]["space"]["dimensions"]:
        assert "NVLS" not in json.dumps(each).upper(), each
    if found["preset"]:
        flags = ["bench", "--nproc-per-node", "2", "--sizes", "256M", "--pairs", "8", "--json", "--compare"]
        code, text = run(out, "tuned", [*NVRUN, *flags, "default", found["preset"]], timeout=150)
        found["again"] = json.loads(text)["verdict"] if code == 0 else f"exit {code}"
    return found


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    parts = {"bench": bench, "compare": compare, "tune": tune}
    report: dict[str, Any] = {}
    for name in sys.argv[2:] or ["bench"]:
        report[name] = parts[name](out)
        (out / "bench_two_gpus.json").write_text(json.dumps(report, indent=1))
    for way, found in report.get("bench", {}).get("ratio", {}).items():
        print(f"{way} / plain: " + ", ".join(f"{size} B {ratio:.3f}" for size, ratio in found.items()))


if __name__ == "__main__":
    main()
