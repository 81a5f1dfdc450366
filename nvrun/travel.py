"""Which of the launcher's variables go along to hosts that do not have them (ssh, --rsh). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nvrun.model import EnvVar

PREFIXES = ("NCCL_", "TORCH", "PYTORCH_", "GLOO_", "UCX_", "FI_", "CUDA_", "OMP_", "MKL_", "KMP_", "PYTHON", "CONDA_",
            "HF_", "TRANSFORMERS_", "WANDB_", "MLFLOW_", "TRITON_", "TORCHINDUCTOR_", "NVSHMEM_")  # fmt: skip
NAMES = ("VIRTUAL_ENV", "PATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")
NEVER_PREFIXES = ("SLURM_", "SSH_", "DBUS_")
NEVER = ("CUDA_VISIBLE_DEVICES", "HOME", "USER", "HOSTNAME", "PWD", "TMPDIR", "DISPLAY", "XDG_RUNTIME_DIR")


def travels(name: str) -> bool:
    """Whether a variable of this name goes along unasked."""
    if name in NEVER or name.startswith(NEVER_PREFIXES):
        return False
    return name in NAMES or name.startswith(PREFIXES)


def stays(environ: Mapping[str, str], given: Collection[str]) -> str | None:
    """What to tell a user whose GPUs other hosts would not keep to; `given`: variables that --env and files name."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or "CUDA_VISIBLE_DEVICES" in given:
        return None
    return f"CUDA_VISIBLE_DEVICES={chosen} holds here alone: --env CUDA_VISIBLE_DEVICES gives it to the other hosts"


def travelling(environ: Mapping[str, str]) -> tuple[EnvVar, ...]:
    """The launcher's variables that travel, by name."""
    return tuple(
        EnvVar(name=name, value=value, source="forwarded", why="set where nvrun was started")
        for name, value in sorted(environ.items())
        if travels(name)
    )
