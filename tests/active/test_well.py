"""Healthy hosts: no alarm, nothing left behind, and what the measurements say; spares, levels and time limits."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.active.conftest import NVRUN, ROOT, check
from tests.lab import faults
from tests.lab.lab import Lab, machine_is_busy

pytestmark = pytest.mark.lab
HOSTS = ("a", "b", "c")


@pytest.fixture
def place(lab: Lab) -> Iterator[Path]:
    """A folder that all hosts share."""
    with tempfile.TemporaryDirectory(prefix="nvrun-active-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.parametrize("user", ["root", "ada"])
def test_three_healthy_hosts_give_no_alarm_and_keep_nothing(lab: Lab, user: str) -> None:
    before = {host: lab.exec(host, ["ss", "-Htuan"]).stdout.count("\n") for host in HOSTS}
    checked = check(lab, user=user)
    assert checked.serious == set(), checked.findings
    assert checked.code == 0
    assert checked.seconds < 10 or machine_is_busy(), f"{checked.seconds:.1f} s"
    assert len(checked.answer["judged"]) > 40
    assert {"connections", "path-mtu", "rendezvous-reached"} <= set(checked.answer["judged"])
    assert len(checked.answer["measured"]["connections"]) == 6
    for host in HOSTS:
        left = lab.exec(host, ["ss", "-Htuan"]).stdout
        assert not [line for line in left.splitlines() if "LISTEN" in line and ":22 " not in line], left
        assert left.count("\n") <= before[host] + 2, left  # the session's own connection may still be closing
        assert not lab.processes(host)


def test_ipv6_hosts_are_tried_in_full(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(ipv6=True)
    checked = check(lab)
    assert checked.serious == set(), checked.findings
    assert {"connections", "path-mtu", "rendezvous-reached"} <= set(checked.answer["judged"])
    with faults.reject(lab, "b", "32768-60999"):
        assert ("port-rejected", "b") in check(lab).serious


def test_two_jobs_of_one_user_on_the_same_hosts_do_not_disturb_each_other(lab: Lab) -> None:
    running = [lab.popen([*NVRUN, "check", "--hosts", "a,b,c", "--json"], cwd=ROOT) for _ in range(2)]
    answers = [json.loads(each.communicate(timeout=60)[0]) for each in running]
    for answer in answers:
        assert not [each for each in answer["findings"] if each["severity"] >= 20], answer["findings"]


def test_quick_tries_the_rendezvous_alone(lab: Lab) -> None:
    checked = check(lab, "--check", "quick")
    assert "rendezvous-reached" in checked.answer["judged"]
    assert "connections" not in checked.answer["judged"]


def test_latency_is_judged_while_the_cpus_are_busy(lab: Lab) -> None:
    hogs = [lab.popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        usual, bare_metal = check(lab), check(lab, "--latency", "bare-metal")
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()
    assert usual.answer["measured"]["busy"], "the hogs were seen"
    assert "latency" in usual.answer["judged"]
    assert "latency" not in {each["code"] for each in usual.answer.get("skipped", ())}
    assert not [each for each in usual.findings if each["code"].startswith("latency-")], usual.findings
    assert "latency" in {each["code"] for each in bare_metal.answer["skipped"]}, "its limit is one for medians"


def test_deep_reduces_among_the_hosts(lab: Lab) -> None:
    checked = check(lab, "--check", "deep", hosts=("a", "b"))
    assert checked.serious == set(), checked.findings
    assert "collectives" in checked.answer["judged"]
    assert len(checked.answer["measured"]["bandwidth"]) == 2


def test_a_shared_folder_is_proved_and_the_token_is_gone(lab: Lab, place: Path) -> None:
    same = place / "data"
    same.write_text("1")
    checked = check(lab, "--require-path", place, "--require-same", same)
    assert checked.serious == set(), checked.findings
    assert "folders-shared" in checked.answer["judged"]
    assert [path.name for path in place.iterdir()] == ["data"]


def test_a_folder_that_one_host_does_not_share_and_a_file_that_differs(lab: Lab, place: Path) -> None:
    folder = place / "data"
    folder.mkdir()
    (folder / "set").write_text("1")
    with faults.mounted(lab, "b", str(folder), "size=1m"):
        lab.exec("b", ["sh", "-c", f"echo other > {folder}/set"], check=True)
        checked = check(lab, "--require-path", folder, "--require-same", folder / "set")
    assert {("path-not-shared", "b"), ("path-differs", "b")} <= checked.serious, checked.findings
    with faults.mounted(lab, "a", str(folder), "size=1m"):
        assert ("path-not-shared", "a") in check(lab, "--require-path", folder).serious


def test_ssh_between_hosts_is_tried_where_it_is_asked_for(lab: Lab) -> None:
    assert check(lab, "--check-ssh-mesh").serious == set()
    with faults.no_sshd(lab, "b"):
        checked = check(lab, "--check-ssh-mesh", rsh=True)
    assert ("ssh-between-hosts", "b") in checked.serious, checked.findings


def test_the_time_limit_bounds_it_and_says_what_was_not_tried(lab: Lab) -> None:
    with faults.drop(lab, "b", "32768-60999"):
        checked = check(lab, "--check-timeout", "1")
    reasons = [each["reason"] for each in checked.answer["skipped"]]
    expected = ["--check-timeout 1 s had passed", *(["no answer in 1 s"] if machine_is_busy() else [])]  # by the facts
    assert any(words in reason for words in expected for reason in reasons), checked.answer
    assert checked.seconds < 8 or machine_is_busy()


def test_outputs(lab: Lab, place: Path) -> None:
    metrics = place / "nvrun.prom"
    done = lab.run(
        [*NVRUN, "check", "--hosts", "a,b,c", "--checklist", "--prometheus", str(metrics)], cwd=ROOT, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.startswith(("ok ", "not checked ")) for line in lines), lines
    assert 'nvrun_host_fit{host="b"} 1' in metrics.read_text()
    table = lab.run([*NVRUN, "check", "--hosts", "a,b,c"], cwd=ROOT, check=True).stdout
    assert "6 of 6 directed pairs are open" in table
    assert "1500 (6 pairs)" in table
    assert "Ethernet, 10 Gb/s between all hosts" in table


def test_spares_stand_in_for_a_bad_host_and_for_one_that_cannot_be_reached(lab: Lab, place: Path) -> None:
    program = place / "rank.py"
    program.write_text("import os; print('rank', os.environ['RANK'], flush=True)\n")
    flags = ["--hosts", "a,b,c", "--nodes", "2", "--nproc-per-node", "1", "--run-dir", str(place / "runs")]
    argv = [*NVRUN, *flags, str(program)]
    closed = faults.drop(lab, "b", "1024-65535", way="in")  # of which the pair alone does not tell
    for fault in (faults.no_sshd(lab, "b"), faults.reject(lab, "a", "32768-60999"), closed):
        with fault:
            done = lab.run(argv, cwd=place, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "latency" not in done.stderr, "torchrun imports torch on all these CPUs meanwhile"
        assert sorted(line.partition("rank ")[2] for line in done.stdout.splitlines()) == ["0", "1"], done.stdout
        folder = place / "runs" / "latest"
        good = (folder / "good_hosts.txt").read_text().split()
        bad = (folder / "bad_hosts.txt").read_text().strip()
        assert "c" in good
        assert len(good) == 2
        excluded = lab.run([*NVRUN, "hosts", "--hosts", "a,b,c", "--exclude", bad], cwd=place, check=True).stdout
        assert [f" {host} by ssh" in excluded for host in (*good, bad)] == [True, True, False]


def test_check_says_who_is_left_out(lab: Lab) -> None:
    with faults.no_sshd(lab, "b"):
        done = lab.run([*NVRUN, "check", "--hosts", "a,b,c", "--nodes", "2"], cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out     b: " in done.stdout
    with faults.drop(lab, "a", "1024-65535", way="in"):
        done = lab.run([*NVRUN, "check", "--hosts", "a,b,c", "--nodes", "2", "--check", "quick"], cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out     a: c cannot reach a at " in done.stdout
    assert "left out     b: " not in done.stdout
