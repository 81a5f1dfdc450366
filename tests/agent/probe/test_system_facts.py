"""Memory, mounts, paths, processes, names, the kernel log."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvrun.agent.probe import child, names, paths, processes, system, xid
from nvrun.agent.probe.tree import Tree
from tests.agent.probe import trees

MOUNTS = (
    "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    "22 21 0:5 / /dev/shm rw,nosuid,noexec - tmpfs shm rw,size=65536k\n"
    "23 21 0:40 / /data/my\\040files rw - nfs4 server:/x ro,vers=4.2\n"
    "24 21 0:41 / /data rw - lustre mds@tcp:/fs rw\n"
    "25 24 0:42 / /data rw - tmpfs over rw"
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shmoo", "ext4"),
        ("/data/my files/a", "nfs4"),
        ("/data/a", "tmpfs"),  # mounted over the one before
    ],
)
def test_mount_of(tmp_path: Path, path: str, kind: str) -> None:
    table = system.mount_table(trees.write(tmp_path, {"/proc/self/mountinfo": MOUNTS}))
    assert system.mount_of(table, path)[1] == kind


def test_filesystems(tmp_path: Path) -> None:
    tree = trees.write(tmp_path, {"/proc/self/mountinfo": MOUNTS, "/data/my files/x": "", "/dev/shm/x": ""})
    shared, shm, future = system.filesystems(tree, ["/data/my files", "/dev/shm", "/dev/shm/cache/triton"])
    assert (shared["readonly"], shm["noexec"], shm["readonly"]) == (True, True, False)
    assert shm["total_bytes"] == future["total_bytes"] > 0  # of the folder that it will be made in
    assert shm["error"] is None


def test_a_dead_mount_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(path: str) -> os.statvfs_result:
        if path.endswith("/dead"):
            time.sleep(60)
        return os.fstatvfs(os.open(path, os.O_RDONLY))

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(system, "PATIENCE", 0.3)
    tree = trees.write(tmp_path, {"/proc/self/mountinfo": MOUNTS, "/dead/x": "", "/dev/shm/x": ""})
    dead, alive = system.filesystems(tree, ["/dead", "/dev/shm"])
    assert dead["error"] == "no answer in 0.3 s"
    assert alive["total_bytes"]


CGROUP = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("place", "bounds", "limit"),
    [
        ("0::/a/b", {"a/memory.max": "4096", "a/b/memory.max": "max"}, 4096),
        ("0::/", {"memory.max": "max"}, None),
        ("4:cpu,cpuacct:/\n7:memory:/slurm/j", {"memory/slurm/j/memory.limit_in_bytes": "8192"}, 8192),
        (  # Slurm: the limit is the job's, its step has none of its own
            "9:memory:/slurm/job_7/step_0",
            {
                "memory/slurm/job_7/memory.limit_in_bytes": "512",
                "memory/slurm/job_7/step_0/memory.limit_in_bytes": "9223372036854771712",
            },
            512,
        ),
        ("7:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory(tmp_path: Path, place: str, bounds: dict[str, str], limit: int | None) -> None:
    files = {
        "/proc/self/cgroup": place,
        **{f"{CGROUP}/{name}": text for name, text in bounds.items()},
        "/proc/meminfo": "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  900 kB\nSwapTotal: 5 kB\nSwapFree: 4 kB",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/proc/sys/kernel/numa_balancing": "1",
    }
    facts = system.memory(trees.write(tmp_path, files))
    assert (facts["total_bytes"], facts["available_bytes"], facts["swap_free_bytes"]) == (1024000, 921600, 4096)
    assert (facts["thp"], facts["numa_balancing"], facts["cgroup_limit_bytes"]) == ("madvise", "1", limit)


def test_limits(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/job/step",
        f"{CGROUP}/job/pids.max": "1000",
        f"{CGROUP}/job/pids.current": "990",
        f"{CGROUP}/job/step/pids.max": "max",
        f"{CGROUP}/job/step/pids.current": "7",
    }
    found = system.limits(trees.write(tmp_path, files))
    assert (found["nofile"], found["tasks_left"]) == (resource.getrlimit(resource.RLIMIT_NOFILE)[0], 10)


def test_paths(tmp_path: Path) -> None:
    tree = trees.write(tmp_path, {"/job/train.py": "print(1)", "/proc/self/mountinfo": MOUNTS})
    os.mkfifo(tmp_path / "job/pipe")
    script, folder, pipe, missing = paths.paths(tree, ["/job/train.py", "/job", "/job/pipe", "/job/none.py"])
    assert script["sha256"] == hashlib.sha256(b"print(1)\n").hexdigest()
    assert (script["kind"], script["size"], script["filesystem"]) == ("file", 9, "ext4")
    assert (folder["kind"], folder["readable"], pipe["kind"]) == ("directory", True, "other")
    assert (missing["exists"], missing["error"]) == (False, "No such file or directory")


def test_large_files_are_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "HASH_LIMIT", 4)
    tree = trees.write(tmp_path, {"/big": "12345"})
    assert "sha256" not in paths.paths(tree, ["/big"])[0]


def test_marked_process_and_port_holder() -> None:
    code = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "NVRUN_MARK": "run-7/0"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout
        port = int(worker.stdout.readline())
        found = {entry["pid"]: entry for entry in processes.processes(Tree())}
        held = {entry["port"]: entry for entry in processes.listeners(Tree(), [port])}
        worker.communicate()
    assert found[worker.pid]["run_mark"] == "run-7/0"
    assert held[port]["pid"] == worker.pid
    assert "create_server" in held[port]["command"]


def test_stuck_processes(tmp_path: Path) -> None:
    """Of a process in D only what does not touch its memory is read; its command may hold blanks and brackets."""
    files = {
        "/proc/100/stat": "100 (nfs (v4) io) D 1 100 100 0",
        "/proc/100/environ": "NVRUN_MARK=x\0",
        "/proc/101/stat": "101 (python) S 1 101 101 0",
        "/proc/102/stat": "102 (python) R 1 101 101 0",
        "/proc/102/environ": "A=1\0NVRUN_MARK=run-9/1\0B=2\0",
        "/proc/self/x": "",
    }
    stuck, marked = processes.processes(trees.write(tmp_path, files))
    assert (stuck["pid"], stuck["command"], stuck["state"], stuck["run_mark"]) == (100, "nfs (v4) io", "D", None)
    assert (marked["pid"], marked["run_mark"]) == (102, "run-9/1")


def test_xids(tmp_path: Path) -> None:
    log = (
        "6,1,1000000,-;Linux version\n"
        "3,2,2500000,-;NVRM: Xid (PCI:0000:1B:00): 79, pid=77, GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        "6,3,2600000,-;some module: xid 12 is no GPU\n"
        "3,4,3500000,-;NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed\n"
        "3,5,3600000,-;NVRM: Xid (PCI:0000:47:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).\n"
        "3,6,3700000,-;NVRM: Xid (PCI:0000:47:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception\n"
        "3,7,3800000,-;NVRM: Xid (0000:03:00): 14, Channel 00000001\n"
        "3,8,3900000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO"
    )
    tree = trees.write(tmp_path, {"/dev/kmsg": log, "/proc/stat": "cpu 1\nbtime 1000\nprocesses 3"})
    first, second, mig, instance, old, switch = xid.xids(tree)
    assert (first["code"], first["pci"], first["at"]) == (79, "0000:1b:00.0", 1002.5)
    assert first["text"] == "NVRM: Xid (PCI:0000:1B:00): 79, pid=77, GPU has fallen off the bus."
    assert (second["code"], second["pci"]) == (154, "0009:01:00.0")
    assert [(one["code"], one["pci"]) for one in (mig, instance)] == [(94, "0000:47:00.0"), (13, "0000:47:00.0")]
    assert (old["code"], old["pci"]) == (14, "0000:03:00.0")
    assert (switch["code"], switch["pci"], switch["nvswitch"], old["nvswitch"]) == (28006, "0000:c1:00.0", True, False)


def test_kernel_log_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(child.UnreadError, match="/dev/kmsg: No such file"):
        xid.xids(trees.write(tmp_path, {"/proc/stat": ""}))


def test_own_kernel_log_is_read_to_its_end() -> None:
    answer = child.ask({"xids": child.Call(lambda: xid.xids(Tree()), 5)})["xids"]
    assert answer.error is None or "root" in answer.error or "/dev/kmsg" in answer.error


def test_names() -> None:
    facts = child.ask({"names": child.Call(lambda: names.names(Tree(), ["localhost", "no.such.host.invalid"]), 8)})
    value = facts["names"].value
    assert value["hostname"] == socket.gethostname()
    assert value["localhost_ok"] is True
    assert "127.0.0.1" in value["peers"]["localhost"]
    assert value["peers"]["no.such.host.invalid"] == []
    assert value["peer_errors"]["no.such.host.invalid"]
    assert value["sources"] == {"localhost": "127.0.0.1"}


def test_one_silent_name_does_not_hold_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"addresses": ["192.0.2.1"], "canonical": None, "error": None}
    monkeypatch.setattr(names, "lookup", lambda host: time.sleep(60) if host == "silent" else known)
    call = child.Call(lambda: names.resolve(["a", "silent", "b"], 0.3), 5)
    value = child.ask({"names": call})["names"].value
    assert value["silent"] == {"addresses": [], "canonical": None, "error": "no answer in 0.3 s"}
    assert value["a"] == value["b"] == known


@pytest.mark.parametrize("host", ["x" * 300, "a..b", "*" * 70 + ".example"])
def test_names_that_are_none(host: str) -> None:
    assert names.lookup(host)["error"]


def test_identity(tmp_path: Path) -> None:
    tree = trees.write(tmp_path, {"/proc/sys/kernel/hostname": "a", "/proc/sys/kernel/random/boot_id": "b-1"})
    assert names.identity(tree, {})["nccl_host_hash"] == "ab-1"
    assert names.identity(tree, {"NCCL_HOSTID": "pod7"})["nccl_host_hash"] == "pod7"


def test_environment_holds_no_secrets() -> None:
    env = {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "PATH": "/bin", "RANK": "0"}
    assert names.environment(env) == {"NCCL_DEBUG": "INFO", "RANK": "0"}


def test_conf_files(tmp_path: Path) -> None:
    files = {"/etc/nccl.conf": "NCCL_IB_DISABLE=1", "/home/u/.nccl.conf": "A=1", "/opt/n.conf": "B=2"}
    tree = trees.write(tmp_path, files)
    assert names.conf_files(tree, {"HOME": "/home/u"}) == {
        "/etc/nccl.conf": "NCCL_IB_DISABLE=1\n",
        "/home/u/.nccl.conf": "A=1\n",
    }
    assert list(names.conf_files(tree, {"HOME": "/home/u", "NCCL_CONF_FILE": "/opt/n.conf"})) == [
        "/etc/nccl.conf",
        "/opt/n.conf",
    ]
