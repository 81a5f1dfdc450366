"""The ladder: what each step of tuning really wins, in images a second, with spread, as a table and a plot.

    python examples/ladder.py --nproc-per-node 2
    python examples/ladder.py --rows default overlap --rounds 5 -- --batch-size 128
    python examples/ladder.py --model wide --plot ladder.png

Every row is a run of resnet152.py under nvrun. Rows are interleaved, and every second round goes backwards, so that a
machine that warms up or gets company harms all rows alike. A gain smaller than the spread is no gain, and the table
says so. What stands after -- goes to resnet152.py.
"""

from __future__ import annotations

import argparse
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SCRIPT = Path(__file__).parent / "resnet152.py"

ROWS: dict[str, tuple[list[str], list[str]]] = {
    "default": ([], []),
    "no-p2p": (["--preset", "ab-no-p2p"], []),
    "preset": (["--preset", "auto"], []),
    "overlap": ([], ["--overlap"]),
    "compress": ([], ["--compress"]),
    "all": (["--preset", "auto"], ["--overlap", "--compress"]),
}
"""Row -> what it adds to nvrun's flags and to the script's."""


def run(launcher: Sequence[str], row: str, script_flags: Sequence[str]) -> float:
    """Images a second of one run of a row; ends the program with its output where the run failed."""
    more_launcher, more_script = ROWS[row]
    argv = [*launcher, *more_launcher, str(SCRIPT), *more_script, *script_flags]
    done = subprocess.run(argv, capture_output=True, text=True)
    found = re.search(r"images_per_second=([0-9.]+)", done.stdout)
    if done.returncode or not found:
        sys.exit(f"{row}: exit {done.returncode}: {shlex.join(argv)}\n{done.stdout}{done.stderr}")
    return float(found[1])


def gain(row: Sequence[float], base: Sequence[float]) -> str:
    """The change of the median, and whether every run of one row beats every run of the other."""
    change = statistics.median(row) / statistics.median(base) - 1
    if len(row) == 1:
        return f"{change:+.1%}, one run only"
    apart = min(row) > max(base) or max(row) < min(base)
    return f"{change:+.1%}" if apart else f"{change:+.1%}, within the spread"


def table(results: Mapping[str, Sequence[float]]) -> str:
    """Markdown; the first row is what the others are compared with."""
    base = next(iter(results.values()))
    lines = ["| row | images/s | from - to | gain |", "|---|---:|---:|---|"]
    for row, rates in results.items():
        change = "" if rates is base else gain(rates, base)
        lines.append(f"| {row} | {statistics.median(rates):.1f} | {min(rates):.1f} - {max(rates):.1f} | {change} |")
    return "\n".join(lines)


def bars(results: Mapping[str, Sequence[float]], width: int = 50) -> str:
    """The plot for a terminal: the bar is the median, the dashes reach to the best run."""
    top = max(max(rates) for rates in results.values())
    lines = []
    for row, rates in results.items():
        middle, best = (round(width * value / top) for value in (statistics.median(rates), max(rates)))
        lines.append(f"{row:>10} {'█' * middle}{'-' * (best - middle)} {statistics.median(rates):.1f}")
    return "\n".join(lines)


def draw(results: Mapping[str, Sequence[float]], path: str) -> str:
    """The plot as an image, where matplotlib is installed; returns what was done."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return "no image: matplotlib is not installed"
    medians = [statistics.median(rates) for rates in results.values()]
    low = [middle - min(rates) for middle, rates in zip(medians, results.values(), strict=True)]
    high = [max(rates) - middle for middle, rates in zip(medians, results.values(), strict=True)]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.bar(list(results), medians, yerr=[low, high], capsize=4)
    axes.set_ylabel("images/s")
    figure.savefig(path)
    return f"image: {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--model", choices=["resnet152", "wide"], default="resnet152")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every row")
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument(
        "--launcher", default=f"{shlex.quote(sys.executable)} -m nvrun", help="the command to launch with"
    )
    parser.add_argument("--plot", metavar="FILE", help="write the plot as an image too")
    parser.add_argument("script", nargs="*", help="flags for resnet152.py, after --")
    args = parser.parse_args()

    launcher = [*shlex.split(args.launcher), "--nproc-per-node", str(args.nproc_per_node)]
    results: dict[str, list[float]] = {row: [] for row in args.rows}
    for number in range(args.rounds):
        for row in args.rows if number % 2 == 0 else reversed(args.rows):
            results[row].append(run(launcher, row, ["--model", args.model, *args.script]))
            print(f"round {number + 1} {row}: {results[row][-1]:.1f} images/s", file=sys.stderr)
    print(table(results))
    print()
    print(bars(results))
    if args.plot:
        print(draw(results, args.plot))


if __name__ == "__main__":
    main()
