"""What decides does nothing; what travels needs nothing; what is not needed is not imported; every module says what it
is."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for top in ("nvrun", "hooks", "tests")
           for path in sorted((ROOT / top).rglob("*.py"))}  # fmt: skip

PURE_FOLDERS = ("nvrun/checks/", "nvrun/topology/", "nvrun/diagnose/", "nvrun/nccl/")
READERS = {"nvrun/diagnose/files.py", "nvrun/nccl/catalogue.py", "nvrun/report/html.py"}
"""What reads files for its pure neighbours, or those that lie beside it in the package."""
PURE_AS_WELL = {"nvrun/plan.py", "nvrun/placement.py", "nvrun/binding.py", "nvrun/environment.py", "nvrun/readback.py",
                "nvrun/torchrun.py", "nvrun/mode.py", "nvrun/options.py", "nvrun/numactl.py", "nvrun/travel.py",
                "nvrun/mask.py", "nvrun/bindfile.py", "nvrun/preset_fit.py", "nvrun/model.py", "nvrun/errors.py",
                "nvrun/report/shell.py", "nvrun/report/text.py", "nvrun/report/findings.py", "nvrun/preflight.py",
                "nvrun/fleet/known_hosts.py", "nvrun/fleet/ssh_words.py", "nvrun/fleet/start.py",
                "nvrun/fleet/trouble.py"}  # fmt: skip
"""No docstring can take one of these off the list."""
EFFECTS = {"asyncio", "fcntl", "getpass", "glob", "http", "importlib", "io", "mmap", "multiprocessing", "os",
           "paramiko", "pathlib", "platform", "psutil", "pynvml", "random", "resource", "rich", "secrets", "select",
           "selectors", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "torch",
           "urllib", "uuid"}  # fmt: skip
HARMLESS = {"pathlib.PurePath", "pathlib.PurePosixPath", "random.Random", "io.BytesIO", "io.StringIO",
            "signal.Signals", "time.gmtime", "time.strftime"}  # fmt: skip
"""Names of those modules that neither look at the machine nor at the clock."""
FILE_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "rglob"}


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(SOURCES[name], name)


def says_pure(name: str) -> bool:
    return bool(re.search(r"\bPure\b", ast.get_docstring(tree_of(name)) or ""))


def pure() -> list[str]:
    ours = {name for name in SOURCES if name.startswith("nvrun/")}
    return sorted({name for name in ours if says_pure(name) or name.startswith(PURE_FOLDERS)} - READERS | PURE_AS_WELL)


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules and `module.name`s that are imported anywhere in it, but for those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (base + alias.name for alias in node.names)
        yield from imported(node)


def effects(tree: ast.Module) -> set[str]:
    """What could look at the machine or change it: names of effectful modules, `open`, methods of files."""
    whole = {name for name in imported(tree) if name in EFFECTS}
    found = {name for name in imported(tree) if name.partition(".")[0] in EFFECTS and name not in whole}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in whole:
                found.add(f"{node.value.id}.{node.attr}")
            elif node.attr in FILE_METHODS:
                found.add(node.attr)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "input", "print")
        ):
            found.add(node.func.id)
    return {each for each in found - HARMLESS if not re.fullmatch(r"signal\.SIG[A-Z0-9]+", each)}


def test_pure_modules_do_nothing() -> None:
    assert {name: found for name in pure() if (found := effects(tree_of(name)))} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os\nos.getcwd()", {"os.getcwd"}),
        ("from os import environ", {"os.environ"}),
        ("def f():\n    import time\n    return time.time()", {"time.time"}),
        ("from pathlib import Path, PurePath\nPath('x').read_text()", {"pathlib.Path", "read_text"}),
        ("open('x')", {"open"}),
        ("import signal\nsignal.Signals(9)", set()),
        ("if TYPE_CHECKING:\n    import os", set()),
    ],
)
def test_an_effect_is_seen(text: str, found: set[str]) -> None:
    assert effects(ast.parse(text)) == found


# -------------------------------------------------------------------------------------------------------- what travels

AGENT = sorted(name for name in SOURCES if name.startswith("nvrun/agent/"))
ELSEWHERE = [*AGENT, *sorted(name for name in SOURCES if name.startswith("hooks/inside/"))]
"""Runs in interpreters that are not the launcher's."""
NOT_IN_3_9 = {"tomllib"}


def foreign(name: str) -> set[str]:
    """What a module of the agent takes from outside of it. pynvml travels along; it must be imported where it is used,
    so that a host without NVML is no reason to fail."""
    depth = len(Path(name).parts) - len(Path("nvrun/agent").parts)
    tree = tree_of(name)
    at_once = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    allowed = sys.stdlib_module_names - NOT_IN_3_9
    found = {each for each in imported(at_once) if each.startswith("pynvml")}
    for each in imported(tree):
        climbs = len(each) - len(each.lstrip("."))
        if climbs > depth or (not climbs and each.partition(".")[0] not in allowed | {"pynvml"}):
            found.add(each)
    return found


def test_the_agent_needs_only_the_standard_library_and_itself() -> None:
    assert "nvrun/agent/boot.py" in AGENT
    assert {name: found for name in AGENT if (found := foreign(name))} == {}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_runs_elsewhere_is_python_3_9(name: str) -> None:
    ast.parse(SOURCES[name], name, feature_version=(3, 9))


# -------------------------------------------------------------------------------------------------- what is not needed


@pytest.mark.parametrize("line", [["--help"], ["--version"], ["plan", "--help"]], ids=" ".join)
def test_help_does_not_wait_for_what_only_a_job_needs(line: list[str]) -> None:
    program = (
        f"import sys\nfrom nvrun.cli import main\ncode = main({line!r}, {{}})\nprint(*sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "nvrun.cli" in loaded
    assert loaded & {"torch", "paramiko", "yaml", "rich", "psutil", "pynvml", "ClusterShell"} == set()


# ------------------------------------------------------------------------------------------------------ what it is for


def test_every_module_says_what_it_is() -> None:
    assert [name for name in SOURCES if not ast.get_docstring(tree_of(name))] == []
