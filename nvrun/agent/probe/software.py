"""The job's interpreter, its torch, the libraries torch would load, the driver module and the kernel.

torch is never imported: that takes seconds and may make CUDA contexts.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import partial
from typing import Any

from .. import procs
from . import libraries
from .child import Call, UnreadError, ask
from .tree import Tree

INTERPRETER_PATIENCE = 5.0
PATH_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR")
"""What changes an interpreter's sys.path, unless it runs isolated."""
SYSCALLS = {"x86_64": 238, "aarch64": 237}
"""set_mempolicy."""
MPOL_PREFERRED = 1
ASK = (
    "import sys; print('\\x1e' + '\\n'.join("
    "['.'.join(map(str, sys.version_info[:3])), sys.executable, sys.prefix, *sys.path]))"
)
"""Behind a record separator, for what the host's sitecustomize prints first."""


def software(tree: Tree, python: str | None, env: dict[str, str]) -> dict[str, Any]:
    """The `Software` of the schema, but for what only NVML knows (driver, cuda_driver)."""
    answers = ask(
        {
            "interpreter": Call(lambda: interpreter(python, env), INTERPRETER_PATIENCE),
            "mempolicy": Call(mempolicy_allowed, 2.0),
        }
    )
    own = answers["interpreter"]
    if own.value is None:
        raise UnreadError(f"{python or sys.executable}: {own.error}")
    version, executable, prefix, path = own.value
    return {
        "python": version,
        "executable": executable,
        "prefix": prefix,
        **torch(path, env),
        "nccl_net_plugins": libraries.net_plugins(env),
        "kernel_module": kernel_module(tree),
        "numactl": which("numactl", env.get("PATH", os.defpath)),
        "py_spy": which("py-spy", os.pathsep.join([env.get("PATH", os.defpath), os.path.dirname(executable)])) or "",
        "nvidia_peermem": _peermem(tree),
        "machine": os.uname().machine,
        "hypervisor": _hypervisor(tree),
        "kernel": tree.text("/proc/sys/kernel/osrelease") or "",
        "distribution": _distribution(tree),
        "mempolicy_allowed": answers["mempolicy"].value,
    }


def interpreter(python: str | None, env: dict[str, str]) -> tuple[str, str, str, list[str]]:
    """Version, executable, prefix and sys.path of the job's Python.

    The agent runs isolated (-I) and so does not see PYTHONPATH and the user's site: then the interpreter is asked."""
    same = python is None or os.path.abspath(python) == os.path.abspath(sys.executable)
    if same and not any(name in env for name in PATH_VARIABLES) and not _user_site(env):
        version = ".".join(map(str, sys.version_info[:3]))
        return version, sys.executable, sys.prefix, [entry for entry in sys.path if entry]
    import subprocess  # 10 ms, and rarely needed

    command = [python or sys.executable, "-c", ASK]
    patience = INTERPRETER_PATIENCE - 0.5  # ended by us, before this process is
    try:
        done = subprocess.run(
            command,
            env=env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=patience,
            check=False,
            # This process has one thread; and a sitecustomize that sleeps must not outlive it.
            preexec_fn=partial(procs.set_pdeathsig, signal.SIGKILL),
        )
    except subprocess.TimeoutExpired:
        raise UnreadError(f"no answer in {patience:g} s") from None
    _, found, said = done.stdout.decode("utf-8", "replace").rpartition("\x1e")
    if not found:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UnreadError(lines[-1][:200] if lines else f"exit status {done.returncode}")
    version, executable, prefix, *path = said.splitlines()
    return version, executable, prefix, [entry for entry in path if entry]


def torch(path: list[str], env: dict[str, str]) -> dict[str, Any]:
    """What torch's own files say; {} where torch is not on the path."""
    folder = next((f"{entry}/torch" for entry in path if os.path.isfile(f"{entry}/torch/__init__.py")), None)
    if folder is None:
        return {}
    version = _read(f"{folder}/version.py")
    return {
        "torch": _assigned(version, "__version__") or libraries.wheel_version(path, "torch"),
        "torch_path": folder,
        "torch_git": _assigned(version, "git_version"),
        "cuda": _assigned(version, "cuda"),
        "cudnn": libraries.wheel_version(path, r"nvidia_cudnn_cu\d+"),
        **libraries.nccl(folder, env, path),
        "torchrun_flags": torchrun_flags(_read(f"{folder}/distributed/run.py")),
    }


def torchrun_flags(source: str) -> list[str]:
    """Long flags that torch.distributed.run's parser takes, in its order, from its source."""
    parser = re.search(r"^def get_args_parser\b.*?(?=^def |\Z)", source, re.MULTILINE | re.DOTALL)
    return list(dict.fromkeys(re.findall(r"""["'](--[a-z][\w-]*)["']""", parser[0]))) if parser else []


def kernel_module(tree: Tree) -> str | None:
    """The first version number of `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ...`."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", tree.text("/proc/driver/nvidia/version") or "")
    return found[1] if found else None


def mempolicy_allowed() -> bool | None:
    """Whether set_mempolicy works here, by calling it; None on a machine whose system call number is not known."""
    import ctypes

    number = SYSCALLS.get(os.uname().machine)
    if number is None:
        return None
    return bool(ctypes.CDLL(None).syscall(number, MPOL_PREFERRED, None, 0) == 0)


def which(program: str, path: str) -> str | None:
    """First executable file of that name on the search path."""
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def _user_site(env: dict[str, str]) -> bool:
    """A site-packages of the user exists that this interpreter would read outside -I (a venv does not)."""
    folder = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    home = env.get("HOME")
    return sys.prefix == sys.base_prefix and bool(home) and os.path.isdir(f"{home}/.local/{folder}")


def _assigned(source: str, name: str) -> str | None:
    """The string that `name` is set to: `cuda: Optional[str] = '12.6'`."""
    found = re.search(rf"""^{name}\b[^=\n]*=\s*["']([^"'\n]+)["']""", source, re.MULTILINE)
    return found[1] if found else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _peermem(tree: Tree) -> bool | None:
    if not tree.exists("/sys/module"):
        return None
    return any(tree.exists(f"/sys/module/{name}") for name in ("nvidia_peermem", "nv_peer_mem"))


def _hypervisor(tree: Tree) -> bool | None:
    flags = re.search(r"^flags\s*:(.*)$", tree.text("/proc/cpuinfo") or "", re.MULTILINE)
    return " hypervisor" in flags[1] if flags else None


def _distribution(tree: Tree) -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', tree.text("/etc/os-release") or "", re.MULTILINE)
    return found[1] if found else ""
