"""Interpreter, torch, CUDA and NCCL as they will be loaded, without importing torch."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from nvrun.agent.probe import software
from nvrun.agent.probe.child import UnreadError
from nvrun.agent.probe.tree import Tree
from tests.agent.probe import trees

SITE = Path(sysconfig.get_paths()["purelib"])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    torch = tmp_path / "torch"
    (torch / "distributed").mkdir(parents=True)
    (torch / "__init__.py").write_text('raise SystemExit("torch was imported")')
    (torch / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\n"
        "git_version = 'abc'\nhip: Optional[str] = None\n"
    )
    (tmp_path / "nvidia_cudnn_cu12-9.5.1.17.dist-info").mkdir()
    return tmp_path


def test_torch_is_read_and_not_imported(site: Path) -> None:
    facts = software.torch(["/nowhere", str(site)], {})
    assert (facts["torch"], facts["cuda"], facts["torch_git"]) == ("2.7.1+cu126", "12.6", "abc")
    assert facts["cudnn"] == "9.5.1.17"
    assert facts["torch_path"] == f"{site}/torch"


def test_cpu_build_and_no_torch(site: Path) -> None:
    (site / "torch/version.py").write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    facts = software.torch([str(site)], {})
    assert (facts["torch"], facts["cuda"], facts["nccl"]) == ("2.13.0+cpu", None, None)
    assert software.torch(["/nowhere"], {}) == {}


def test_a_torch_without_version_file_has_its_wheels(site: Path) -> None:
    (site / "torch/version.py").unlink()
    (site / "torch-2.4.0.dist-info").mkdir()
    assert software.torch([str(site)], {})["torch"] == "2.4.0"


@pytest.mark.skipif(not (SITE / "torch/distributed/run.py").exists(), reason="torch is not installed")
def test_flags_of_the_installed_torchrun() -> None:
    source = (SITE / "torch/distributed/run.py").read_text()
    declared = [
        argument.value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant) and str(argument.value).startswith("--")
    ]
    assert software.torchrun_flags(source) == declared
    assert "--nproc-per-node" in declared


def test_flags_of_another_source() -> None:
    assert software.torchrun_flags("def main():\n    print('--nnodes')\n") == []
    source = "x = '--not'\ndef get_args_parser():\n    p.add_argument('-m', '--module')\ndef main(): '--no'\n"
    assert software.torchrun_flags(source) == ["--module"]


def test_another_interpreter_tells_its_own_path(tmp_path: Path) -> None:
    """One that prints first, sees PYTHONPATH, and stands in another folder."""
    other = tmp_path / "bin/python"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\necho "welcome to the cluster"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    version, executable, _, path = software.interpreter(str(other), env)
    assert version == ".".join(map(str, sys.version_info[:3]))
    assert executable == sys.executable
    assert str(tmp_path) in path


def test_own_interpreter_with_pythonpath_is_asked_too(tmp_path: Path) -> None:
    assert str(tmp_path) in software.interpreter(None, {**os.environ, "PYTHONPATH": str(tmp_path)})[3]


def test_an_interpreter_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text('#!/bin/sh\necho "libpython3.11.so.1.0: cannot open shared object file" >&2\nexit 127\n')
    broken.chmod(0o755)
    with pytest.raises(UnreadError, match="cannot open shared object file"):
        software.interpreter(str(broken), dict(os.environ))
    broken.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(software, "INTERPRETER_PATIENCE", 0.7)
    with pytest.raises(UnreadError, match=r"no answer in 0.2 s"):
        software.interpreter(str(broken), dict(os.environ))
    with pytest.raises(UnreadError, match=f"{tmp_path}/none: .*No such file"):
        software.software(Tree(), str(tmp_path / "none"), dict(os.environ))


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Thu Feb 22 2024", "535.161.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (a@b)", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86  Release Build", "570.86"),
        ("something else", None),
    ],
)
def test_kernel_module(tmp_path: Path, line: str, version: str | None) -> None:
    tree = trees.write(tmp_path, {"/proc/driver/nvidia/version": f"{line}\nGCC version:  gcc version 12.3.0"})
    assert software.kernel_module(tree) == version


def test_this_host() -> None:
    facts = software.software(Tree(), None, dict(os.environ))
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["kernel"] == os.uname().release
    assert facts["mempolicy_allowed"] in (True, False)


def test_which(tmp_path: Path) -> None:
    (tmp_path / "numactl").write_text("")
    assert software.which("numactl", f"/nowhere:{tmp_path}") is None  # not executable
    (tmp_path / "numactl").chmod(0o755)
    assert software.which("numactl", f"/nowhere:{tmp_path}") == f"{tmp_path}/numactl"
