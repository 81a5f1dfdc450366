"""The file that enters a rank: gone at once, the site's own sitecustomize unharmed, steps counted."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvrun import shipped
from nvrun.hooks import inside
from nvrun.hooks.load import find

INSIDE = shipped.folder("hooks") / "inside"
STEPS = """
import torch
model = torch.nn.Linear(4, 4)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
for step in range({steps}):
    model(torch.ones(2, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def python(code: str, env: Mapping[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env}
    return subprocess.run(
        ["sh", "-c", inside._ENTER, str(INSIDE), sys.executable, *flags, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def wish(folder: Path, **changes: object) -> dict[str, str]:
    values = {"rank": 3, "folder": str(folder), "wait": 1, "warmup": 1, "active": 2, "repeat": 1, "stack": False,
              "memory": False, "shapes": False, **changes}  # fmt: skip
    return {"NVRUN_TORCH_PROFILER": json.dumps(values)}


def events(path: Path) -> list[dict[str, object]]:
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]  # type: ignore[no-any-return]


LOOK = """
import os, sys
print(sys.path[0] == "", [path for path in sys.path if "inside" in path], os.environ.get("PYTHONPATH"),
      [name for name in os.environ if name.startswith("NVRUN_")], "torch" in sys.modules,
      type(sys.meta_path[0]).__name__)
"""


def test_it_leaves_no_trace(tmp_path: Path) -> None:
    done = python(LOOK, {**wish(tmp_path), "PYTHONPATH": "/a:/b"})
    assert done.stdout == "True [] /a:/b [] False _When\n", done.stderr
    assert python(LOOK, {"PYTHONPATH": ""}).stdout.startswith("True [] None []")


def test_the_sites_own_sitecustomize_runs_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SITE'] = __file__\nMARK = 7\n")
    code = "import os, sys, sitecustomize; print(os.environ['SITE'], sitecustomize.MARK, sitecustomize.__file__)"
    expected = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    done = python(code, {**wish(tmp_path), "PYTHONPATH": str(tmp_path)})
    assert done.stdout == expected.stdout, done.stderr


def test_a_sitecustomize_that_raises_is_told_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('the site')\n")
    done = python("print('on')", {**wish(tmp_path), "PYTHONPATH": str(tmp_path)})
    assert done.stdout == "on\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ValueError: the site" in done.stderr


def test_a_child_is_not_entered(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    done = subprocess.run(
        ["sh", "-c", inside._ENTER, str(INSIDE), sys.executable, "-c", code, LOOK],
        env={**os.environ, **wish(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "_When" not in done.stdout
    assert "[] None []" in done.stdout or "PYTHONPATH" in os.environ


def test_a_trace_of_the_active_steps(tmp_path: Path) -> None:
    done = python(STEPS.format(steps=10), wish(tmp_path / "traces"))
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "traces").iterdir()
    assert path.name == "rank3.pt.trace.json.gz"
    steps = {str(each["name"]) for each in events(path) if str(each.get("name", "")).startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}


def test_a_job_that_ends_early_leaves_what_there_is(tmp_path: Path) -> None:
    done = python(STEPS.format(steps=4), wish(tmp_path / "traces"))
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "traces").iterdir()
    assert any(str(each.get("name", "")).startswith("Optimizer.step") for each in events(path))


@pytest.mark.parametrize(("broken", "code"), [("{", ""), ('{"rank": 0}', STEPS.format(steps=2))])
def test_what_fails_here_never_fails_the_rank(broken: str, code: str) -> None:
    done = python(code + "\nprint('done')", {"NVRUN_TORCH_PROFILER": broken})
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("profiling is off in this rank") == 1


def test_no_trace_without_python_paths(tmp_path: Path) -> None:
    done = python(STEPS.format(steps=9), wish(tmp_path / "traces"), "-E")
    assert done.returncode == 0
    assert not (tmp_path / "traces").exists()


def test_it_compiles_on_the_oldest_python() -> None:
    import ast

    ast.parse((INSIDE / "sitecustomize.py").read_text(), feature_version=(3, 9))
    assert b"NVRUN_FOLDER" in find("host-state", {"HOME": "/nobody"})[1]


@pytest.mark.parametrize(("before", "kept"), [(0, False), (5, True)])
def test_a_script_that_profiles_itself_goes_first(tmp_path: Path, before: int, kept: bool) -> None:
    """A second session cancels the first, and the end of the first is then a segmentation fault."""
    code = f"""
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
for _ in range({before}):
    step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    for _ in range(12):
        step()
print("its own:", [event.count for event in profile.key_averages() if "SGD.step" in event.key])
"""
    done = python(code, wish(tmp_path, active=9))
    assert (done.returncode, done.stdout) == (0, "its own: [12]\n"), done.stderr
    assert done.stderr.count("nvrun: torch-profiler is off in this rank") == 1
    (mark,) = tmp_path.glob("own.rank*")
    mark.unlink()  # by which the launcher knows
    traces = list(tmp_path.iterdir())
    assert bool(traces) == kept
    assert all(events(trace) for trace in traces)
