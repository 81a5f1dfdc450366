"""All facts of this very host, as the launcher would take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvrun import facts
from nvrun.agent import probe, procs
from nvrun.agent.probe import processes, rdma
from tests.lab.lab import wait_for

ROOT = Path(__file__).parents[3]
PYTHONS = [
    path
    for folder in (Path.home() / ".pyenv/versions", Path("/usr/bin"), Path("/usr/local/bin"))
    for version in ("3.9", "3.10", "3.12", "3.13", "3.14")
    for path in [*folder.glob(f"{version}.*/bin/python"), *folder.glob(f"python{version}")]
]


def test_every_section_of_the_schema_is_read_or_missing_with_a_reason() -> None:
    reply = json.loads(json.dumps(probe.collect({"host": "here", "peers": ["localhost"], "script": __file__})))
    host = facts.decode(reply)
    read = set(host.seconds)
    told = {"version", "host", "missing", "seconds", "clock_offset_s", "clock_error_s"}  # by the launcher
    assert read == {field for field in host.__struct_fields__ if field not in told}
    for section in read:
        assert (getattr(host, section) is None) == (section in host.missing)
    assert host.cpus is not None
    assert set(host.cpus.allowed) == os.sched_getaffinity(0)
    assert host.paths is not None
    assert host.paths[0].path == __file__
    assert host.names is not None
    assert "127.0.0.1" in host.names.peers["localhost"]


def test_only_what_is_asked_for() -> None:
    reply = probe.collect({"host": "here", "sections": ["limits", "identity"]})
    assert set(reply) == {"host", "limits", "identity", "missing", "seconds"}


def test_a_section_that_fails_or_hangs_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "ports", lambda tree: 1 / 0)
    monkeypatch.setattr(processes, "processes", lambda tree: time.sleep(60))
    monkeypatch.setattr(probe, "DEADLINE", 0.5)
    reply = probe.collect({"host": "here", "sections": ["rdma", "processes", "cpus"]})
    assert reply["missing"] == {"rdma": "ZeroDivisionError: division by zero", "processes": "no answer in 0.5 s"}
    host = facts.decode(reply)
    assert host.rdma is None
    assert host.cpus is not None


def test_the_jobs_variables_count(tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    env = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf"), "NCCL_HOSTID": "pod"}
    reply = probe.collect({"host": "here", "env": env, "sections": ["env", "conf_files", "identity"]})
    assert reply["conf_files"][str(tmp_path / "nccl.conf")] == "NCCL_DEBUG=WARN\n"
    assert reply["env"]["NCCL_HOSTID"] == reply["identity"]["nccl_host_hash"] == "pod"


def test_relative_paths_are_the_working_directorys(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    request = {
        "host": "h",
        "cwd": str(tmp_path),
        "script": "train.py",
        "paths": ["../none", "~/x"],
        "env": {"HOME": "/h"},
    }
    found = {path["path"]: path["exists"] for path in probe.collect({**request, "sections": ["paths"]})["paths"]}
    assert found == {
        str(tmp_path / "train.py"): True,
        str(tmp_path): True,
        str(tmp_path.parent / "none"): False,
        "/h/x": False,
    }


@pytest.mark.parametrize(
    "python", PYTHONS or [pytest.param(None, marks=pytest.mark.skip(reason="no other Python"))], ids=str
)
def test_other_pythons_without_their_packages(python: Path) -> None:
    """As on a host: isolated, nothing but the standard library."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from nvrun.agent import probe; "
        "print(json.dumps(probe.collect({'host': 'h', 'python': sys.argv[2]})))"
    )
    command: list[str | Path] = [python, "-I", "-S", "-W", "error", "-c", code, ROOT, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    host = facts.decode(json.loads(done.stdout))
    assert host.software is not None
    assert host.software.executable == sys.executable
    assert not set(host.missing) - {"xids"}


def test_the_probe_needs_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); from nvrun.agent import probe; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'nvrun'}), 'asyncio' in new, 'subprocess' in new)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, ROOT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False", "False"]


def test_nothing_that_reads_outlives_who_asked(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from nvrun.agent import probe; probe.collect("
        f"{{'host': 'n1', 'sections': ['software', 'memory'], 'env': {{'PYTHONPATH': {str(tmp_path)!r}}}}})"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", code], env={"NVRUN_MARK": str(tmp_path)}) as asking:
        wait_for(lambda: len(procs.marked(str(tmp_path))) > 2, "the interpreter that is asked")
        asking.kill()
    wait_for(lambda: not procs.marked(str(tmp_path)), "the end of all that read", timeout=3)


def test_a_recorded_tree_is_another_host(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/node/node3").mkdir(parents=True)
    (tmp_path / "sys/devices/system/node/online").write_text("3\n")
    reply = probe.collect(
        {"host": "recorded", "sections": ["numa", "gpus", "gpus_on_pci", "memory"]}, root=str(tmp_path)
    )
    assert [node["node"] for node in reply["numa"]] == [3]
    assert reply["missing"]["gpus"] == "no NVIDIA driver, and sysfs shows no PCI bus"
    assert reply["missing"]["gpus_on_pci"] == "sysfs shows no PCI bus"
    assert reply["missing"]["memory"] == "/proc/meminfo does not tell"
