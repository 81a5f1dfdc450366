"""On a machine with a GPU: what is read there is true, the rank is bound, NCCL trains, the user's variables hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nvrun import facts
from nvrun.agent.probe import collect

ROOT = Path(__file__).parents[2]
KEPT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver on this machine"),
]


def smi(*fields: str) -> list[list[str]]:
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]


def nvrun(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvrun", *arguments],
        cwd=tmp_path,
        env={**os.environ, **KEPT, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def result(tmp_path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((tmp_path / "nvrun-runs/latest/result.json").read_text())
    return loaded


def test_facts_agree_with_nvidia_smi() -> None:
    begun = time.monotonic()
    known = facts.decode(collect({"host": "here", "sections": ["gpus", "gpus_on_pci"]}))
    seconds = time.monotonic() - begun
    print(f"GPU part of the facts: {seconds:.3f} s")
    assert known.gpus is not None
    assert seconds < 1.0
    rows = smi("uuid", "name", "memory.total", "pcie.link.width.current", "driver_version")
    assert [(gpu.uuid, gpu.name) for gpu in known.gpus] == [(row[0], row[1]) for row in rows]
    for gpu, row in zip(known.gpus, rows, strict=True):
        assert gpu.memory_total is not None
        assert abs((gpu.memory_total >> 20) - int(row[2])) <= 1
        assert str(gpu.pcie_width) == row[3]
    assert len(known.gpus_on_pci or ()) == len(rows)


def test_one_rank_trains_with_nccl_where_the_plan_says(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl', device_id=torch.device('cuda', int(os.environ['LOCAL_RANK'])))\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())\n"
        "end = time.time() + 6\n"
        "while time.time() < end:\n"
        "    model(torch.ones(8, 64).cuda()).sum().backward()\n"
        "print('backend', dist.get_backend(), 'uuid', torch.cuda.get_device_properties(0).uuid)\n"
        f"print('kept', all(os.environ.get(name) == value for name, value in {KEPT!r}.items()))\n"
        "dist.destroy_process_group()\n"
    )
    done = nvrun(tmp_path, "--nproc-per-node", "1", "train.py")
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    assert "backend nccl" in done.stdout
    assert "kept True" in done.stdout
    assert result(tmp_path)["ended_by"] == "success"
    assert not [finding for finding in result(tmp_path).get("findings", ()) if finding["code"].startswith("rank-")]
    plan = json.loads((tmp_path / "nvrun-runs/latest/plan.json").read_text())
    binding = plan["hosts"][0]["ranks"][0]["binding"]
    assert binding["gpu"] == smi("uuid")[0][0]
    assert binding["gpu"].removeprefix("GPU-") in done.stdout
    logs = list((tmp_path / "nvrun-runs/latest/logs").rglob("nccl.*.log"))
    assert logs, "NCCL wrote no log"
    assert "NVLS_ENABLE set by environment to 0" in "".join(log.read_text(errors="replace") for log in logs)


def test_the_quickstart_script_uses_nccl_and_every_preset_keeps_the_users_word(tmp_path: Path) -> None:
    for preset in ("auto", "hopper", "throughput"):
        done = nvrun(
            tmp_path, "--preset", preset, "--nproc-per-node", "1", str(ROOT / "examples/train_ddp.py"), "--steps", "20"
        )
        assert done.returncode == 0, done.stderr
        assert "nccl" in done.stdout, done.stdout
        logs = (tmp_path / "nvrun-runs/latest/logs").rglob("nccl.*.log")
        assert "NVLS_ENABLE set by environment to 0" in "".join(log.read_text(errors="replace") for log in logs)


def test_a_busy_gpu_and_too_many_ranks_are_found(tmp_path: Path) -> None:
    hog = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import torch,time; x=torch.ones(1<<30, device='cuda'); print('up', flush=True); time.sleep(90)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert hog.stdout
        assert hog.stdout.readline() == "up\n"
        busy = nvrun(tmp_path, "check", "--nproc-per-node", "1", "--json")
        codes = {finding["code"]: finding for finding in json.loads(busy.stdout)["findings"]}
        print(busy.stdout)
        assert any("busy" in code or "process" in code or "memory" in code for code in codes), codes
    finally:
        hog.kill()
        hog.wait()
    many = nvrun(tmp_path, "check", "--nproc-per-node", str(len(smi("uuid")) + 1))
    assert many.returncode == 78, many.stdout
    assert "more-ranks-than-gpus" in many.stdout


def test_a_hidden_gpu_is_told(tmp_path: Path) -> None:
    hidden = nvrun(tmp_path, "plan", "--nproc-per-node", "1", "x.py", CUDA_VISIBLE_DEVICES="7")
    print(hidden.stdout, hidden.stderr)
    assert "CUDA_VISIBLE_DEVICES" in hidden.stdout
