"""Part two of study.py: what settings win and cost, over NVLink and between two hosts over sockets."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any

from tests.gpu import two_hosts
from tests.gpu.study import GPU, HERE, ROOT, Study

EXAMPLES = ROOT / "examples"
MESSAGE = "256M" if GPU else "256K"
SIZES = [1 << 20, 16 << 20, 256 << 20, 1 << 30] if GPU else [1 << 14, 1 << 18]


def hosts(study: Study) -> list[str]:
    """The flags of the two hosts, which are made once."""
    if not study.two_hosts:
        study.two_hosts = two_hosts.make(study.work)
    return study.two_hosts


def tune(study: Study, name: str, where: list[str], budget: int) -> dict[str, Any]:
    """The search, in how many seconds; what it found; and its page."""
    flags = ["tune", *where, "--messages", MESSAGE, "--budget", str(budget), "--json"]
    done = study.nvrun(name, *flags)
    study.nvrun(f"{name}-report", "report", "nvrun-runs/tune/latest", cwd=name, timeout=10)
    found = done.result()
    if not found:
        return {"exit": done.code, "seconds": done.seconds, "says": done.err.splitlines()[-4:]}
    assert "NVLS" not in json.dumps(found["evidence"]["space"]).upper()
    outcome = found["outcome"]
    dimensions = found["evidence"]["space"]["dimensions"]
    grid = 1
    for each in dimensions:
        grid *= len(each["options"]) + 1

    def shown(config: list[int]) -> dict[str, str]:
        chosen = [each["options"][at - 1]["env"] for each, at in zip(dimensions, config, strict=True) if at]
        return {variable: value for env in chosen for variable, value in env.items()}

    best = sorted(outcome["ratios"], key=lambda item: item[1])[:8]
    return {
        "exit": done.code,
        "seconds": done.seconds,
        "budget": budget,
        "why": outcome["why"],
        "env": found["env"],
        "trials": outcome["trials"],
        "grid": grid,
        "finalists": [
            {"env": shown(each["config"]), "times_the_default": round(1 / each["against"]["ratio"], 3),
             "p": each["against"]["p"], "beside_a_product_the_step_takes": (each.get("overlap") or {}).get("ratio"),
             "refused": each.get("refused", "")}
            for each in outcome.get("finalists", [])
        ],
        "first_measured": [[shown(config), round(1 / ratio, 3)] for config, ratio in best],
        "failed": [[shown(config), why] for config, why in outcome.get("failed", [])],
        "preset": found["preset"],
    }  # fmt: skip


def tune_nvlink(study: Study) -> dict[str, Any]:
    return tune(study, "tune-nvlink", ["--nproc-per-node", "2"], 130 if GPU else 60)


def tune_sockets(study: Study) -> dict[str, Any]:
    return tune(study, "tune-sockets", hosts(study), 170 if GPU else 60)


def session(study: Study, name: str, where: list[str], **schedule: Any) -> dict[str, Any]:
    """Trials of nvrun's bench in one job: records, with the words of their environments."""
    words = schedule["environments"]
    schedule = {"deadline": 40.0, "seconds": 0.1, **schedule}
    path = study.work / f"{name}.json"
    path.write_text(json.dumps(schedule))
    done = study.run(name, [sys.executable, str(HERE / "session.py"), str(path), "--hook", "none", *where])
    found = done.result()
    if not found:
        raise RuntimeError(f"{name}: exit {done.code}: {done.err[-500:]}")
    environment = {end["trial"]: words[end["environment"]] for end in found["trials"]}
    for record in found["records"]:
        record["word"] = environment.get(record["trial"])
    failed = [[words[end["environment"]], end["failed"]] for end in found["trials"] if end.get("failed")]
    return {"records": [each for each in found["records"] if each["word"]], "failed": failed,
            "environments": dict(zip(words, found["environments"], strict=True)), "trials": len(found["trials"]),
            "seconds": done.seconds}  # fmt: skip


def grid(study: Study) -> dict[str, Any]:
    """Every setting of threads, sockets and channels between the two hosts, once; beside it what tune has found."""
    found = study.results.get("tune sockets") or {}
    tuned = " ".join(f"{name}={value}" for name, value in (found.get("env") or {}).items())
    words = ["default", *([tuned] * bool(tuned))]
    for threads in (1, 2, 4, 8):
        for sockets in (1, 2, 4):
            for channels in ("", " NCCL_MIN_NCHANNELS=8", " NCCL_MIN_NCHANNELS=16"):
                words.append(f"NCCL_SOCKET_NTHREADS={threads} NCCL_NSOCKS_PERTHREAD={sockets}{channels}")
    order = [[at, False] for at in range(len(words))]
    order += [[1, False], [0, False]] if tuned else [[0, False]]
    points = [["all_reduce", SIZES[-2]]]
    done = session(study, "grid", hosts(study), environments=words, order=order, points=points, seconds=0.05)
    rates: dict[str, list[float]] = {}
    for record in done["records"]:
        if record.get("bus_bandwidth"):
            rates.setdefault(record["word"], []).append(round(record["bus_bandwidth"] / 1e9, 5))
    ranking = sorted(((max(values), word) for word, values in rates.items()), reverse=True)
    best = max((rate for rate, word in ranking if word != tuned), default=0.0)
    return {
        "seconds": done["seconds"], "settings": len(words), "default": rates.get("default"), "tuned": rates.get(tuned),
        "best": ranking[:6], "worst": ranking[-3:], "failed": done["failed"], "all": rates,
        "tuned_of_best": round(max(rates.get(tuned, [0.0])) / best, 3) if best else None,
        "tuned_of_default": round(max(rates.get(tuned, [0.0])) / max(rates.get("default", [0.0])), 2) if best else None,
    }  # fmt: skip


TUNED = "NCCL_MIN_CTAS=8 NCCL_MAX_CTAS=8 NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=1"
BEST = [
    "NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=1 NCCL_MIN_NCHANNELS=16",
    "NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=4 NCCL_MIN_NCHANNELS=8",
    "NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=2 NCCL_MIN_NCHANNELS=8",
]
"""What tune found and the best of the grid on 2x H200 (2026-11-29), for a study that has no time for its own."""


def best_again(study: Study) -> dict[str, Any]:
    """The best of the grid, of which each was measured once and the luckiest stand first, and what tune has found, ten
    times in turn."""
    found = study.results.get("tune sockets") or {}
    tuned = " ".join(f"{name}={value}" for name, value in (found.get("env") or {}).items()) or TUNED
    grids = [word for _, word in (study.results.get("grid") or {}).get("best", []) if word not in ("default", tuned)]
    words = list(dict.fromkeys([tuned, *(grids or BEST)[:3], "default"]))
    order = [[len(words) - 1, False]]  # the first one warms up
    for times in range(10 if GPU else 2):
        order += [[at, False] for at in (range(len(words)) if times % 2 else reversed(range(len(words))))]
    points = [["all_reduce", SIZES[-2]]]
    done = session(study, "again", hosts(study), environments=words, order=order, points=points, seconds=0.1)
    rates: dict[str, list[float]] = {}
    for record in done["records"]:
        if record.get("bus_bandwidth") and record["trial"]:
            rates.setdefault(record["word"], []).append(round(record["bus_bandwidth"] / 1e9, 2))
    medians = {word: statistics.median(values) for word, values in rates.items()}
    best = max((rate for word, rate in medians.items() if word != tuned), default=0.0)
    return {"tuned": tuned, "rates": rates, "medians": medians, "failed": done["failed"], "seconds": done["seconds"],
            "tuned_of_best": round(medians.get(tuned, 0.0) / best, 3) if best else None}  # fmt: skip


RECORDERS = ("hook nccl-debug", "hook flight-recorder")


def set_by(study: Study, name: str, where: list[str], sources: tuple[str, ...]) -> list[str]:
    """The variables that NCCL and PyTorch get from these, without a word of the user's, as words of an environment;
    files go into one folder."""
    plan = study.nvrun(f"{name}-plan", "plan", "--json", *where, str(HERE / "ranks.py"), "where").result()
    host = plan["hosts"][0]
    host = host.get("plan", host)
    folder = study.work / f"{name}-captured"
    folder.mkdir()
    words = []
    for each in [*host.get("env", []), *host["ranks"][0]["env"]]:
        if each["source"] in sources and each["name"].startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_")):
            _, slash, last = each["value"].rpartition("/")
            words.append(f"{each['name']}={f'{folder}/{last}' if slash else last}")
    return words


def capture(study: Study) -> dict[str, Any]:
    """The very variables of nccl-debug and flight-recorder against none, in pairs."""
    where = ["--nproc-per-node", "2"]
    words = set_by(study, "capture", where, RECORDERS)
    both = ["default", " ".join(words)]
    pairs = 8 if GPU else 3
    order = [[which, False] for at in range(pairs) for which in ((0, 1) if at % 2 == 0 else (1, 0))]
    points = [["all_reduce", size] for size in SIZES[1:]]
    done = session(study, "capture", where, environments=both, order=[[0, False], *order], points=points)
    by_trial: dict[int, dict[int, float]] = {}
    for record in done["records"]:
        if record.get("bus_bandwidth"):
            by_trial.setdefault(record["trial"], {})[record["bytes"]] = record["bus_bandwidth"] / 1e9
    found: dict[str, Any] = {"variables": words, "failed": done["failed"], "seconds": done["seconds"]}
    for size in SIZES[1:]:
        ratios: list[float] = []
        rates: dict[str, list[float]] = {"none": [], "capture": []}
        for at in range(pairs):
            first, second = by_trial.get(1 + 2 * at, {}).get(size), by_trial.get(2 + 2 * at, {}).get(size)
            if first and second:
                none, on = (first, second) if at % 2 == 0 else (second, first)
                ratios.append(round(on / none, 4))
                rates["none"].append(round(none, 1))
                rates["capture"].append(round(on, 1))
        if ratios:
            found[str(size)] = {"capture_over_none": statistics.median(ratios), "pairs": ratios, "GB/s": rates}
    found["logs"] = sorted(path.name for path in (study.work / "capture-captured").iterdir())[:4]
    return found


def compression(study: Study) -> dict[str, Any]:
    """Flat against hierarchical and PowerSGD between two hosts; DDP's hooks over NVLink and over sockets."""
    size = ["--mb", "256"] if GPU else ["--mb", "1"]
    model = ["--dim", "1024", "--layers", "8", "--steps", "12"] if GPU else ["--steps", "8"]
    found: dict[str, Any] = {}
    for name, where, script, flags in (
        ("hooks, sockets", hosts(study), "comm_compress.py", model),
        ("hooks, NVLink", ["--nproc-per-node", "2"], "comm_compress.py", model),
        ("hierarchical, sockets", hosts(study), "hierarchical_allreduce.py", size),
    ):
        done = study.nvrun(name.replace(", ", "-"), *where, str(EXAMPLES / script), *flags, timeout=45)
        found[name] = {"exit": done.code, "says": [re.sub(r"^\S+: ", "", line) for line in done.out.splitlines()]}
    return found


STEPS: dict[str, tuple[float, Callable[[Study], Any]]] = {
    "tune NVLink": (140, tune_nvlink),
    "tune sockets": (182, tune_sockets),
    "capture": (45, capture),
    "grid": (72, grid),
    "best again": (75, best_again),
}
"""Step -> seconds at most, and what it does; the most valuable first."""
