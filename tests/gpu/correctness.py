"""Part one of study.py: what runs, what is named when it fails, what is read while it trains."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.study import GPU, HERE, ROOT, Done, Study, together

SHARED = {"NVRUN_CHECK": "off"}
"""For runs that use the same GPUs at the same time: what they show is no figure."""
TIMEOUT = 15
"""Seconds of a collective, in the jobs that are made to fail."""
EXAMPLES = ROOT / "examples"
FINDINGS = "findings"


def at_once(study: Study) -> dict[str, Any]:
    """The examples, the failing jobs, the bindings and the absent nsys, side by side."""
    names = ("examples", "other", "none", "hang", "numa", "nsys")
    works: list[Callable[[], Any]] = [
        lambda: examples(study),
        lambda: odd(study, "other"),
        lambda: odd(study, "none"),
        lambda: odd(study, "hang"),
        lambda: numa(study),
        lambda: nsys(study),
    ]
    return dict(zip(names, together(*works), strict=True))


def examples(study: Study) -> dict[str, Any]:
    chosen = ["-m", "gpu", "tests/examples"]
    if not GPU:
        chosen = ["tests/examples/test_examples.py", "-k", "quickstart_learns"]
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", "--rootdir", str(ROOT)]
    argv += ["-c", str(ROOT / "pyproject.toml"), "--durations=0", "-q", *chosen]
    at_root = ["sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), *argv]
    several = ["-n", "5"] if importlib.util.find_spec("xdist") and GPU else []
    done = study.run("examples", [*at_root, *several], env=SHARED)
    if several and done.code in (3, 4):  # the plugin does not work here
        done = study.run("examples-one-by-one", at_root, env=SHARED)
    failed = re.findall(r"^FAILED (.*)$|^ERROR (.*)$", done.out, re.MULTILINE)
    return {"exit": done.code, "failed": failed, "says": done.out.splitlines()[-1:], "seconds": done.seconds}


def odd(study: Study, kind: str) -> dict[str, Any]:
    """A rank that calls another collective, leaves one out, or hangs before it: who is named, and when."""
    found: dict[str, Any] = {}
    name = f"odd-{kind}"
    reading = threading.Thread(target=lambda: found.update(ras=ras(study.work / name, study)))
    if kind == "hang":
        reading.start()
    done = study.nvrun(name, *study.ranks("odd", kind, str(TIMEOUT)), env=SHARED)
    ended = time.time()
    if kind == "hang":
        reading.join(timeout=30)
    stuck = [float(text) for text in re.findall(r"stuck from now ([\d.]+)", done.out)]
    told = study.nvrun(f"{name}-diagnose", "diagnose", "--json", cwd=name)
    findings = (told.result() or {}).get(FINDINGS, [])
    dumps = sorted(path.name for path in done.run.rglob("flight_*"))
    page = study.nvrun(f"{name}-page", "diagnose", cwd=name)
    first = findings[0] if findings else {}
    return {
        **found,
        "exit": done.code,
        "seconds_from_stuck_to_end": round(ended - max(stuck), 1) if stuck else None,
        "timeout": TIMEOUT,
        "dumps": dumps,
        "first": {key: first.get(key) for key in ("code", "message", "rank", "subject", "confidence")},
        "names_rank_1": "rank 1" in json.dumps(first).lower(),
        "codes": [finding["code"] for finding in findings],
        "page": page.out.splitlines()[:14],
        "launch_said": [line for line in done.err.splitlines() if "rank" in line][-12:],
    }


def watched(study: Study) -> dict[str, Any]:
    """A rank that never comes to a collective, seen by nvrun's own watch while the job lives, long before any time-out
    of PyTorch's: its stacks, and what NCCL's RAS answers to nvrun."""
    flags = ["--hang-after", "8", "--hang-timeout", "8"]
    done = study.nvrun("watched", *flags, *study.ranks("odd", "hang", "300"))
    ended = time.time()
    stuck = [float(text) for text in re.findall(r"stuck from now ([\d.]+)", done.out)]
    page = study.nvrun("watched-page", "diagnose", cwd="watched")
    return {
        "exit": done.code,
        "seconds_from_stuck_to_end": round(ended - max(stuck), 1) if stuck else None,
        "launch_said": [line for line in done.err.splitlines() if line.startswith("nvrun:")][-14:],
        "page": page.out.splitlines()[:14],
    }


def ras(folder: Path, study: Study) -> dict[str, Any]:
    """NCCL's RAS of a run, while one rank of it hangs: the text that its `ncclras` shows, asked for by hand."""
    end = time.monotonic() + min(60, study.left)
    out = folder / "odd-hang.stdout"
    while time.monotonic() < end and not (out.exists() and "stuck from now" in out.read_text()):
        time.sleep(0.2)
    time.sleep(6)  # the other rank waits in the collective by now
    plan = json.loads((folder / "nvrun-runs/latest/plan.json").read_text())
    given = {each["name"]: each["value"] for each in plan["hosts"][0]["ranks"][0]["env"]}
    given |= {each["name"]: each["value"] for each in plan["hosts"][0].get("env", [])}
    address = given.get("NCCL_RAS_ADDR")
    if not address:
        return {"read": False, "why": "no NCCL_RAS_ADDR in the plan"}
    host, _, port = address.rpartition(":")
    found: dict[str, Any] = {"address": address}
    for command in ("status", "verbose status"):
        begun = time.monotonic()
        try:
            with socket.create_connection((host, int(port)), timeout=5) as link:
                link.settimeout(8)
                link.sendall(f"{command}\n".encode())
                text = b""
                while part := link.recv(1 << 16):
                    text += part
        except OSError as error:
            text = f"{type(error).__name__}: {error}".encode()
        (folder / f"ras-{command.replace(' ', '-')}.txt").write_bytes(text)
        found[command] = {
            "seconds": round(time.monotonic() - begun, 2),
            "lines": text.decode(errors="replace").splitlines()[-40:],
        }
    return found


def numa(study: Study) -> dict[str, Any]:
    """torchrun's own binding through nvrun, which then binds nothing itself; and by bare torchrun."""
    flags = ["--numa-binding", "node"]
    done = study.nvrun("numa", *flags, *study.ranks("where"), env=SHARED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--master-port", "29777"]
    bare = study.run("numa-bare", [*torchrun, *flags, *study.ranks("where")])
    plan = json.loads((done.run / "plan.json").read_text())
    return {
        "exit": [done.code, bare.code],
        "planned": [rank.get("binding") for rank in plan["hosts"][0]["ranks"]],
        "ranks": wheres(done),
        "bare": wheres(bare),
        "bare_says": bare.err.splitlines()[-3:] if bare.code else [],
    }


def wheres(done: Done) -> list[Any]:
    found = sorted(
        (json.loads(text) for text in re.findall(r"WHERE (\{.*\})", done.out)), key=lambda each: each["rank"]
    )
    return [{**each, "cpus": spans(each["cpus"])} for each in found]


def spans(cpus: list[int]) -> str:
    return f"{cpus[0]}-{cpus[-1]} ({len(cpus)})"


def nsys(study: Study) -> dict[str, Any]:
    """Where nsys is not installed the hook says so, and nothing of the job runs."""
    done = study.nvrun("nsys", "--hook", "nsys", *study.ranks("where"), env=SHARED)
    return {"installed": shutil.which("nsys"), "exit": done.code, "ran": "WHERE" in done.out,
            "says": [line for line in done.err.splitlines() if "nsys" in line]}  # fmt: skip


def profiler(study: Study) -> dict[str, Any]:
    """Traces of both ranks, then of one; their summary; and what `nvrun nccl` reads of the same run."""
    small = ["--depths", "3", "4", "6", "3", "--steps", "8", "--windows", "2", "--warmup", "3"]
    if not GPU:
        small = ["--width", "8", "--depths", "1", "1", "1", "1", "--size", "32", "--batch-size", "4", "--steps", "8"]
        small += ["--windows", "2", "--warmup", "3"]
    script = ["--nproc-per-node", "2", str(EXAMPLES / "resnet152.py"), *small]
    found: dict[str, Any] = {}
    for name, hook in (("both", "torch-profiler:ranks=all"), ("one", "torch-profiler")):
        done = study.nvrun(f"profile-{name}", "--hook", hook, *script)
        page = study.nvrun(f"profile-{name}-page", "profile", cwd=f"profile-{name}")
        summary = study.nvrun(f"profile-{name}-json", "profile", "--json", cwd=f"profile-{name}")
        found[name] = {
            "exit": [done.code, page.code],
            "traces": {path.name: path.stat().st_size for path in done.run.rglob("*.pt.trace.json.gz")},
            "says": page.out.splitlines()[:40] or page.err.splitlines()[-3:],
            "findings": [finding["code"] for finding in (summary.result() or {}).get(FINDINGS, [])],
        }
    study.nvrun("profile-report", "report", cwd="profile-both")
    read = study.nvrun("profile-nccl", "nccl", cwd="profile-both")
    found["nccl"] = {"exit": read.code, "says": read.out.splitlines()[:30]}
    return found


def monitor(study: Study) -> dict[str, Any]:
    """A training run that is watched every second: its figures beside NVML's own, the bytes of a known all-reduce, and
    the step's time while the monitor's process runs and while it stands still, every two seconds in turn."""
    name, seconds = "monitor", 24.0 if GPU else 10.0
    folder = study.work / name
    over = threading.Event()
    turns: list[tuple[float, bool]] = []
    own: list[dict[str, Any]] = []
    beside = [
        threading.Thread(target=lambda: turns.extend(alternate(folder, over))),
        threading.Thread(target=lambda: own.extend(nvml(over))),
    ]
    for thread in beside:
        thread.start()
    done = study.nvrun(name, "--monitor", "1", *study.ranks("steps", str(seconds)))
    over.set()
    for thread in beside:
        thread.join(timeout=5)
    report = study.nvrun("monitor-report", "report", cwd=name)
    said = json.loads((folder / "steps.json").read_text())
    path = next((done.run / "logs").glob("*/samples.jsonl"))
    (folder / "nvml.json").write_text(json.dumps(own))
    samples = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return {
        "exit": done.code,
        "samples": len(samples),
        "against_nvml": against(samples, own),
        "known": known(samples, said["known"]),
        "step": with_and_without(said["steps"], turns),
        "report": report.out.strip() or report.err[-300:],
    }


def alternate(folder: Path, over: threading.Event) -> list[tuple[float, bool]]:
    """(since when, whether the monitor's process may run); from the first training step on."""
    turns: list[tuple[float, bool]] = []
    pid = None
    while pid is None and not over.wait(0.5):
        if (folder / "steps.begun").exists():
            pid = sampler((folder / "nvrun-runs/latest").resolve().name)
    while pid is not None and not over.wait(2.0):
        runs = bool(turns) and not turns[-1][1]
        try:
            os.kill(pid, signal.SIGCONT if runs else signal.SIGSTOP)
        except ProcessLookupError:
            break
        turns.append((time.time(), runs))
    return turns


def sampler(run: str) -> int | None:
    """The process that writes this run's samples."""
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.endswith("samples.jsonl") and run in target:
            return int(entry.parts[2])
    return None


def nvml(over: threading.Event) -> list[dict[str, Any]]:
    """Each GPU as NVML says by itself, twice a second."""
    if not GPU:
        return []
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
    rows = []
    while not over.wait(0.5):
        for index, handle in enumerate(handles):
            rows.append(
                {
                    "at": time.time(),
                    "index": index,
                    "memory_used": pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used,  # as nvidia-smi
                    "util": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                    "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                    "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                    "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                }
            )
    return rows


def against(samples: list[dict[str, Any]], own: list[dict[str, Any]]) -> dict[str, Any]:
    """Field -> how many readings have one of NVML within 0.4 s, the median and the greatest difference."""
    differences: dict[str, list[float]] = {}
    for sample in samples:
        for index, gpu in enumerate(sample.get("gpus", [])):
            near = [row for row in own if row["index"] == index and abs(row["at"] - sample["at"]) < 0.4]
            if not near:
                continue
            row = min(near, key=lambda each: abs(each["at"] - sample["at"]))
            for field in ("memory_used", "util", "power_w", "temperature_c", "sm_mhz"):
                if gpu.get(field) is not None:
                    differences.setdefault(field, []).append(abs(gpu[field] - row[field]))
    return {
        field: {"readings": len(rows), "median": statistics.median(rows), "most": max(rows)}
        for field, rows in differences.items()
    }


def known(samples: list[dict[str, Any]], said: dict[str, Any]) -> dict[str, Any]:
    """NVLink bytes that each GPU sent between the last sample before the known all-reduce and the first after it."""
    before = [sample for sample in samples if sample["at"] <= said["begun"]]
    after = [sample for sample in samples if sample["at"] >= said["ended"]]
    if not before or not after or not before[-1].get("gpus"):
        return {"sent": said["bytes_sent"], "read": None}
    pairs = zip(before[-1]["gpus"], after[0]["gpus"], strict=True)
    read = [(b.get("nvlink_tx") or 0) - (a.get("nvlink_tx") or 0) for a, b in pairs]
    return {"sent": said["bytes_sent"], "read": read, "ratio": [round(each / said["bytes_sent"], 4) for each in read]}


def with_and_without(steps: list[list[float]], turns: list[tuple[float, bool]]) -> dict[str, Any]:
    """Median step while the monitor ran and while it stood still, over all and stretch by stretch."""
    stretches: list[tuple[bool, list[float]]] = []
    for number, (begun, runs) in enumerate(turns):
        ended = turns[number + 1][0] if number + 1 < len(turns) else float("inf")
        took = [seconds for at, seconds in steps if begun + 0.1 < at < ended - 0.1]
        if len(took) > 5:
            stretches.append((runs, took))
    found: dict[str, Any] = {}
    for title, wanted in (("with", True), ("without", False)):
        all_of = [seconds for runs, took in stretches if runs is wanted for seconds in took]
        if all_of:
            medians = [statistics.median(took) for runs, took in stretches if runs is wanted]
            found[title] = {"steps": len(all_of), "median_ms": 1e3 * statistics.median(all_of),
                            "stretches_ms": [round(1e3 * each, 4) for each in medians]}  # fmt: skip
    if len(found) == 2:
        found["ratio"] = round(found["with"]["median_ms"] / found["without"]["median_ms"], 5)
    return found


def ladder(model: str, windows: int, steps: int) -> Callable[[Study], dict[str, Any]]:
    """The rows of examples/ladder.py, all started at once, their windows measured in turn (turns.py)."""

    def climb(study: Study) -> dict[str, Any]:
        sys.path.insert(0, str(EXAMPLES))
        module = importlib.import_module("ladder")
        flags = ["--model", model, "--windows", str(windows), "--steps", str(steps), "--warmup", "4"]
        if not GPU:
            flags = ["--model", model, "--width", "8", "--depths", "1", "1", "1", "1", "--size", "32"]
            flags += ["--batch-size", "4", "--windows", "3", "--steps", "2", "--warmup", "1"]
        folder = study.work / f"ladder-{model}"
        folder.mkdir()
        rows = list(module.ROWS)
        (folder / "turn").write_text(f"0 {rows[0]}")

        def run(row: str) -> Done:
            launcher, script = module.ROWS[row]
            turns = [str(HERE / "turns.py"), str(folder), row, ",".join(rows), str(EXAMPLES / "resnet152.py")]
            argv = ["--nproc-per-node", "2", *launcher, *turns, *script, *flags]
            return study.nvrun(f"ladder-{model}-{row}", *argv, env=SHARED)

        ends = dict(zip(rows, together(*(lambda row=row: run(row) for row in rows)), strict=True))
        rates: dict[str, list[float]] = {}
        for row, done in ends.items():
            found = re.search(r"images_per_second=([\d.]+) \(([\d.]+) to ([\d.]+) in", getattr(done, "out", ""))
            if found:
                rates[row] = [float(found[2]), float(found[1]), float(found[3])]  # whose median is the median
        losses = {row: re.findall(r"loss=[\d.]+", getattr(done, "out", "")) for row, done in ends.items()}
        table = module.table(rates).splitlines() if rows[0] in rates else []
        return {"rates": rates, "windows": windows, "losses": losses, "table": table}

    return climb


STEPS: dict[str, tuple[float, Callable[[Study], Any]]] = {
    "at once": (130, at_once),
    "watched": (40, watched),
    "profiler": (75, profiler),
    "monitor": (62, monitor),
    "ladder resnet152": (112, ladder("resnet152", windows=6, steps=10)),
    "ladder wide": (104, ladder("wide", windows=6, steps=40)),
}
"""Step -> seconds at most, and what it does; the most valuable first."""
