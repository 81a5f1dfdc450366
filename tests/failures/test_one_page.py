"""Jobs that fail in the lab: the cause and its host on one page of the console, the exit code the true one, and a
bundle with all of it. As the ordinary user, who may trace no process; the hosts share nothing."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lab import faults
from tests.lab.lab import Lab, wait_for
from tests.spine.jobs import NVRUN

pytestmark = pytest.mark.lab
RANK = Path(__file__).with_name("rank.py")
USER = "ada"
TOKEN = "hf_madefortestsonly0123"

Fault = Callable[[Lab], AbstractContextManager[object]]


class Case(NamedTuple):
    """What happens to a job of one rank on a and one on b, and what must be told."""

    does: str
    code: int | None
    """nvrun's exit code; None where it depends on which rank was quicker."""
    ended_by: str
    finding: str
    """Code of the first finding."""
    host: str | None
    said: tuple[str, ...]
    """All of it on the page."""
    before: Fault = lambda lab: nullcontext()
    meanwhile: Fault | None = None
    """After the ranks have begun, until nvrun has ended."""
    flags: tuple[str, ...] = ()


CASES = {
    "a rank is killed for want of memory": Case(
        "eat", 137, "rank", "oom-killed", "b",
        ("First to fail: rank 1 on b", "signal 9 (SIGKILL)", "the kernel's OOM killer killed a process of its cgroup"),
        before=lambda lab: faults.small_memory(lab, "b", 1 << 30),
    ),
    "ranks call different collectives": Case(
        "disagree", None, "rank", "ranks-disagree", None, ("different shapes", "branches that depend on the rank"),
    ),
    "a firewall closes": Case(
        "reduce", 1, "rank", "port-dropped", None, ("a and b cannot reach each other", "a firewall drops the packets"),
        meanwhile=lambda lab: faults.firewall(
            lab, "b", arriving=f"ip saddr {lab.address('a')} drop", leaving=f"ip daddr {lab.address('a')} drop"
        ),
    ),
    "a host vanishes": Case(
        "sleep", 69, "lost", "host-lost", "b", ("b was lost while its ranks ran: nothing heard for", "--exclude"),
        meanwhile=lambda lab: faults.cut(lab, "b"), flags=("--lost-after", "4"),
    ),
    "the disk for logs is full": Case(
        "shout", 1, "rank", "python-exception", "b",
        ("KeyError: 'weights'", "rank.py", "output could not be written to", "No space left on device"),
        before=lambda lab: faults.mounted(lab, "b", "/tmp", "size=2m"), flags=("--check", "off"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(namespaces: None) -> Iterator[Lab]:
    """Nobody may look into another process there, as where Yama or a container forbids it."""
    forbid = [sys.executable, str(Path(__file__).parents[1] / "lab/forbidden.py"), "ptrace,process_vm_readv"]
    with Lab(["a", "b"], split=True) as lab:
        for host in lab.hosts:
            lab.stop_sshd(host)
            lab.start_sshd(host, prefix=forbid)
        yield lab


@pytest.mark.parametrize("name", CASES)
def test_it_is_named_on_one_page(cluster: Lab, name: str) -> None:
    case = CASES[name]
    if case.does == "eat" and (reason := faults.why_no_group("memory")):
        pytest.skip(reason)
    code, err = failed(cluster, case)
    assert case.code in (None, code), err
    page = err.partition("\n\n")[2]
    assert len(page.splitlines()) <= 42, page
    for words in case.said:
        assert words in " ".join(page.split()), page
    assert TOKEN not in err
    runs = cluster.path("launcher", cluster.home(USER)) / "nvrun-runs"
    folder = runs / (runs / "latest").readlink()
    result = json.loads((folder / "result.json").read_text())
    assert (result["ended_by"], result["exit_code"]) == (case.ended_by, code)
    if case.ended_by == "rank":
        status = result["first_failure"]["code"]
        assert code == (status if status > 0 else 128 - status)
    told = bundled(cluster, folder, missing={"logs/b"} if case.ended_by == "lost" else set())
    first = told["findings"][0]
    assert (first["code"], first.get("host")) == (case.finding, case.host or first.get("host"))


def failed(lab: Lab, case: Case) -> tuple[int, str]:
    """nvrun's exit code and what it said."""
    for host in lab.hosts:
        lab.path(host, "/tmp/up").unlink(missing_ok=True)
    flags = ["--hosts", "a,b", "--nproc-per-node", "1", "--env", f"HF_TOKEN={TOKEN}", *case.flags]
    argv = [*NVRUN, *flags, str(RANK), case.does]
    with case.before(lab):
        if not case.meanwhile:
            done = lab.run(argv, user=USER, timeout=60)
            return done.returncode, done.stderr
        running = lab.popen(argv, user=USER)
        try:
            up = [lab.path(host, "/tmp/up") for host in lab.hosts]
            wait_for(lambda: running.poll() is not None or all(path.exists() for path in up), "ranks up", 60)
            with case.meanwhile(lab):
                _, err = running.communicate(timeout=120)
        finally:
            if running.poll() is None:
                running.kill()
                running.communicate()
    return running.returncode, err


def bundled(lab: Lab, folder: Path, missing: set[str]) -> dict[str, Any]:
    """The findings in the bundle, which has all that the run's folder has and no secret."""
    made = lab.run([*NVRUN, "bundle", "latest"], user=USER, timeout=60)
    assert made.returncode == 0, made.stderr
    archive = lab.path("launcher", lab.home(USER)) / f"nvrun-{folder.name}.tar.gz"
    with tarfile.open(archive) as tar:
        found = {each.name.partition("/")[2]: tar.extractfile(each).read() for each in tar.getmembers()}  # type: ignore[union-attr]
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there <= found.keys()
    assert {"plan.json", "facts.json", "result.json", "failure.txt"} <= found.keys()
    assert {f"logs/{host}" for host in lab.hosts} - missing <= {"/".join(name.split("/")[:2]) for name in there}
    assert not [name for name, data in found.items() if TOKEN.encode() in data]
    told: dict[str, Any] = json.loads(found["findings.json"])
    return told
