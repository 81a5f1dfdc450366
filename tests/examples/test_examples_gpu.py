"""Every example runs a few steps on real GPUs with NCCL: `pytest -m gpu tests/examples`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
GPUS = len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])

RUNS = {
    "train_ddp.py": ["--steps", "40"],
    "train_fsdp.py": ["--bf16"],
    "train_2d.py": [],
    "ddp_overlap.py": ["--bucket-view", "--static-graph", "--keep-buffers", "--accumulate", "2", "--no-sync"],
    "comm_compress.py": [],
    "hierarchical_allreduce.py": [],
    "mixed_precision.py": [],
    "elastic_checkpoint.py": ["--folder", "checkpoints"],
    "profile_me.py": [],
    "nvlink_check.py": [],
    "align.py": ["--largest", "64"],
    "resnet152.py": ["--steps", "3", "--windows", "2", "--overlap", "--compress"],
    "large_batch.py": ["--steps", "40"],
    "alltoall_moe.py": [],
    "horovod_train.py": [],
}
SIGN = {
    "train_ddp.py": r"nccl, loss=0\.",
    "resnet152.py": r"nccl, loss=\d",
    "hierarchical_allreduce.py": r"steps, powersgd .* relative error",
    "profile_me.py": r"communication [\d.]+ ms",
    "nvlink_check.py": r"GPU 0 NVIDIA",
    "align.py": r"nine tenths of the best",
    "alltoall_moe.py": r"largest difference from one rank: output \d\.\de-0[5-9]|output 0\.0e",
}
"""What the output holds where the run was good; a loss elsewhere."""

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU here")]


def test_no_example_is_left_out() -> None:
    assert set(RUNS) == {path.name for path in EXAMPLES.glob("*.py")} - {"group.py", "models.py", "ladder.py"}


@pytest.mark.parametrize("script", list(RUNS))
def test_it_runs_under_nvrun_with_nccl(script: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "nvrun", "--nproc-per-node", str(GPUS), str(EXAMPLES / script), *RUNS[script]]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(SIGN.get(script, r"loss=\d"), done.stdout), done.stdout


def test_sharded_checkpoints_come_back(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "nvrun", "--nproc-per-node", str(GPUS), str(EXAMPLES / "elastic_checkpoint.py")]
    outputs = []
    for steps in ("10", "14"):
        flags = ["--folder", "shards", "--fsdp", "--steps", steps]
        done = subprocess.run([*argv, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "from the start" in outputs[0]
    assert "from {'step': 10," in outputs[1]
