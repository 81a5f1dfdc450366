"""A study on a machine with two GPUs, by hand: NCCL under nvrun on one host, and on the same two GPUs as two hosts.

    python -m tests.gpu.two_gpus OUT [part ...]        parts: spine hosts preflight deep

The two hosts are those of two_hosts.py. What came later is study.py.
Writes OUT/two_gpus.json and what every run printed. NVLink multicast stays as the user has set it: the study refuses to
start unless NCCL_NVLS_ENABLE=0.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu import two_hosts

ROOT = Path(__file__).resolve().parents[2]
KEPT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
TRAIN = str(ROOT / "examples/train_ddp.py")
OUT = Path(sys.argv[1])
WORK = OUT / "work"
report: dict[str, Any] = {}


def run(name: str, argv: list[str], timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in the study's folder; what it printed is kept."""
    begun = time.monotonic()
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    try:
        done = subprocess.run(
            argv,
            cwd=WORK,
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess(argv, 124, str(late.stdout), str(late.stderr))
    seconds = round(time.monotonic() - begun, 2)
    with open(OUT / "runs.txt", "a") as file:
        file.write(f"==== {name}: exit {done.returncode}, {seconds} s\n{done.stdout}\n{done.stderr[-6000:]}\n")
    report.setdefault("runs", {})[name] = {"exit": done.returncode, "seconds": seconds}
    print(name, done.returncode, seconds, flush=True)
    return done


def nvrun(name: str, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(name, [sys.executable, "-m", "nvrun", *arguments], timeout, **environment)


def nccl_logs() -> str:
    logs = sorted((WORK / "nvrun-runs/latest/logs").rglob("nccl.*.log"))
    return "\n".join(log.read_text(errors="replace") for log in logs)


def spine() -> None:
    done = nvrun("spine two ranks", "--nproc-per-node", "2", TRAIN, "--steps", "200")
    logs = nccl_logs()
    plan = json.loads((WORK / "nvrun-runs/latest/plan.json").read_text())
    report["spine"] = {
        "loss": re.findall(r"loss=\S+", done.stdout),
        "p2p": sorted(set(re.findall(r"via (P2P\S*)", logs))),
        "nvls_zero_in_ranks": logs.count("NCCL_NVLS_ENABLE set by environment to 0"),
        "gpus_differ": len({rank["binding"]["gpu"] for rank in plan["hosts"][0]["ranks"]}) == 2,
        "readback": json.loads((WORK / "nvrun-runs/latest/result.json").read_text()).get("findings", []),
    }
    bare = run("spine bare torchrun", ["torchrun", "--nproc-per-node", "2", TRAIN, "--steps", "200"])
    report["spine"]["bare_loss"] = re.findall(r"loss=\S+", bare.stdout)
    (OUT / "nccl_two_ranks.log").write_text(logs)


def hosts(common: list[str]) -> None:
    nvrun("two hosts check", "check", *common)
    done = nvrun("two hosts train", *common, TRAIN, "--steps", "200")
    logs = nccl_logs()
    report["hosts"] = {
        "loss": re.findall(r"loss=\S+", done.stdout),
        "network": sorted(set(re.findall(r"Using network (\S+)", logs))),
        "via": sorted(set(re.findall(r"via (NET/\S+)", logs))),
        "ifname": sorted(set(re.findall(r"NCCL_SOCKET_IFNAME set by environment to (\S+)", logs))),
        "nvls_zero": logs.count("NCCL_NVLS_ENABLE set by environment to 0"),
    }
    (OUT / "nccl_two_hosts.log").write_text(logs)
    victim = WORK / "victim.py"
    victim.write_text(
        "import os, time, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(0)\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1 << 20, device='cuda')\n"
        "for step in range(10000):\n"
        "    dist.all_reduce(x); torch.cuda.synchronize(); time.sleep(0.01)\n"
        "    if step == 100 and os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n"
    )
    begun = time.monotonic()
    done = nvrun("two hosts, a rank killed", *common, str(victim))
    report["hosts"]["killed"] = {
        "exit": done.returncode,
        "says": [line for line in done.stderr.splitlines() if "killed" in line][:1],
        "seconds_all": round(time.monotonic() - begun, 1),
    }


def preflight() -> None:
    facts = json.loads(nvrun("facts", "facts", "--json").stdout)
    (OUT / "facts.json").write_text(json.dumps(facts, indent=1))
    gpus = facts[0]["gpus"]
    report["preflight"] = {
        "nvlinks": [[link["active"] for link in gpu["nvlinks"]].count(True) for gpu in gpus],
        "speeds": sorted({link.get("speed_mb_s") for gpu in gpus for link in gpu["nvlinks"]}),
        "p2p": [list(gpu["p2p"].values()) for gpu in gpus],
        "fabric": [gpu.get("fabric_state") for gpu in gpus],
        "gpu_seconds": facts[0]["seconds"].get("gpus"),
    }
    nvrun("check", "check", "--nproc-per-node", "2")
    hidden = nvrun("check, one GPU hidden", "check", "--nproc-per-node", "2", CUDA_VISIBLE_DEVICES="0")
    report["preflight"]["hidden"] = hidden.stdout.splitlines()[:3]
    hog = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import torch,time; x=torch.ones(1<<31, device='cuda:1'); print('up',flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert hog.stdout
    hog.stdout.readline()
    busy = nvrun("check, GPU 1 busy", "check", "--nproc-per-node", "2")
    report["preflight"]["busy"] = busy.stdout.splitlines()[:3]
    hog.kill()
    hog.wait()
    (OUT / "topo.txt").write_text(nvrun("topo", "topo").stdout)


def deep() -> None:
    """The deep check and its time, and the same with P2P switched off."""
    report["deep"] = {}
    for name, more in (("healthy", {}), ("p2p off", {"NCCL_P2P_DISABLE": "1"})):
        done = nvrun(f"check deep, {name}", "check", "--check", "deep", "--nproc-per-node", "2", timeout=120, **more)
        seconds = report["runs"][f"check deep, {name}"]["seconds"]
        report["deep"][name] = {"exit": done.returncode, "seconds": seconds, "says": done.stdout.splitlines()[:6]}


def main() -> None:
    if any(os.environ.get(name) != value for name, value in KEPT.items()):
        sys.exit(f"this study runs only with {KEPT} in the environment")
    WORK.mkdir(parents=True, exist_ok=True)
    parts = sys.argv[2:] or ["spine", "hosts", "preflight", "deep"]
    two = two_hosts.make(OUT) if "hosts" in parts else []
    for part in parts:
        try:
            if part == "spine":
                spine()
            elif part == "hosts":
                hosts(two)
            elif part == "preflight":
                preflight()
            elif part == "deep":
                deep()
        except Exception as error:  # noqa: BLE001 - one part's failure must not cost the others their time
            report[f"{part} failed"] = f"{type(error).__name__}: {error}"
        (OUT / "two_gpus.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1)[-6000:])


if __name__ == "__main__":
    main()
