"""Every way in which a host is not reached: its code, cause and remedy, in time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.gather import LISTENER, changed_file, config, finding, gather, interpreter, listener
from tests.lab import faults
from tests.lab.lab import Lab, machine_is_busy, wait_for

pytestmark = pytest.mark.lab

BOTH = pytest.mark.parametrize("ssh", ["paramiko", "openssh"])


@BOTH
def test_names_ports_and_keys(lab: Lab, ssh: str) -> None:
    with faults.no_sshd(lab, "b"), faults.wrong_host_key(lab, "c"):
        answer = gather(lab, "--hosts", "a,b,c,nobody", "--ssh", ssh)
    assert set(answer["hello"]) == {"a"}
    code, message, remedy = finding(answer, "b")
    assert (code, "b port 22 refused the connection" in message) == ("host-refused", True)
    code, message, remedy = finding(answer, "c")
    assert (code, "not the one in known_hosts" in message) == ("host-key-changed", True)
    assert "ssh-keygen -R c && ssh c true" in remedy
    code, message, remedy = finding(answer, "nobody")
    assert (code, "nobody has no address" in message) == ("host-name-unknown", True)
    assert remedy.startswith("getent hosts nobody")
    assert answer["seconds"] > 2.0  # three tries of the refused one
    assert answer["seconds"] < 5.0 or machine_is_busy()


@BOTH
def test_an_unknown_key(lab: Lab, ssh: str) -> None:
    address = lab.address("b")
    known = lab.path("launcher", lab.home()) / ".ssh" / "known_hosts"
    with changed_file(known, "".join(line for line in known.read_text().splitlines(True) if address not in line)):
        code, message, remedy = finding(gather(lab, "--hosts", address, "--ssh", ssh), address)
    assert code == "host-key-unknown"
    assert "not known here" in message
    assert address in remedy


@BOTH
def test_hosts_that_hang_at_any_stage_are_named_in_time_and_hold_nobody_up(lab: Lab, ssh: str) -> None:
    """A dropped port, an sshd that says nothing, one that stops after its banner, one that stops at the login, a login
    shell that waits: all at once, beside one healthy host."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(listener(lab, "a", "silent", 2201))
        stack.enter_context(listener(lab, "a", "banner", 2202))
        stack.enter_context(faults.drop(lab, "b", "22"))
        stack.enter_context(
            faults.other_sshd(
                lab,
                "c",
                "-o",
                "AuthorizedKeysFile=none",
                "-o",
                "AuthorizedKeysCommandUser=root",
                "-o",
                "AuthorizedKeysCommand=/bin/sleep 20",
            )
        )
        rc = lab.path("launcher", lab.home("ada")) / ".bashrc"
        stack.enter_context(changed_file(rc, "echo hello; [ $(hostname) != a ] || exec sleep 8\n"))
        ports = "Host silent\n HostName a\n Port 2201\nHost banner\n HostName a\n Port 2202\n"
        shell = "Host shell\n HostName a\n User ada\nHost well\n HostName a\n"
        path = stack.enter_context(config(lab, ports + shell))
        hosts = "silent,banner,b,c,shell,well"
        answer = gather(lab, "--hosts", hosts, "--ssh", ssh, "--ssh-config", str(path), "--connect-timeout", "2")
    codes = {host: finding(answer, host)[0] for host in answer["findings"]}
    assert codes == {
        "silent": "host-ssh-hung",
        "banner": "host-ssh-hung",
        "b": "host-silent",
        "c": "host-ssh-hung",
        "shell": "host-no-agent",
    }, answer["findings"]
    assert "login shell" in finding(answer, "shell")[1]
    assert set(answer["hello"]) == {"well"}
    assert answer["spoke"]["well"] < 2.0 or machine_is_busy(), "nobody waits for the others"
    assert answer["seconds"] < 2.0 + 4.0 or machine_is_busy()


@BOTH
def test_a_crowded_sshd_is_tried_again(lab: Lab, ssh: str) -> None:
    with faults.other_sshd(lab, "b", "-o", "MaxStartups=1:100:1"):
        holder: list[str | Path] = [sys.executable, LISTENER, "hold", "b", "22", "0.3"]
        with lab.popen(holder) as running:
            assert running.stdout is not None
            running.stdout.readline()
            answer = gather(lab, "--hosts", "b", "--ssh", ssh)
    assert set(answer["hello"]) == {"b"}, answer


@BOTH
@pytest.mark.parametrize(
    ("manner", "code", "word"),
    [
        ("close", "host-ssh-hung", "before its banner"),
        ("http", "host-ssh-protocol", "does not speak ssh"),
    ],
)
def test_what_is_no_sshd(lab: Lab, ssh: str, manner: str, code: str, word: str) -> None:
    with listener(lab, "a", manner, 2203):
        found, message, _ = finding(gather(lab, "--hosts", "root@a:2203", "--ssh", ssh), "a")
    if (ssh, manner) == ("openssh", "http"):  # ssh takes the answer for noise before a banner, and then sees the end
        code, word = "host-ssh-hung", "before its banner"
    assert found == code
    assert word in message


@BOTH
def test_noise_before_the_banner(lab: Lab, ssh: str) -> None:
    with config(lab, "Host a\n HostKeyAlias a\n Port 2204\n") as path, listener(lab, "a", "noise", 2204):
        assert set(gather(lab, "--hosts", "a", "--ssh", ssh, "--ssh-config", str(path))["hello"]) == {"a"}


def test_algorithms_without_one_in_common(lab: Lab) -> None:
    with faults.other_sshd(lab, "b", "-o", "KexAlgorithms=sntrup761x25519-sha512@openssh.com"):
        code, message, remedy = finding(gather(lab, "--hosts", "b"), "b")
        assert code == "host-ssh-protocol", message
        assert remedy == "--ssh openssh"
        assert set(gather(lab, "--hosts", "b", "--ssh", "openssh")["hello"]) == {"b"}


@pytest.mark.parametrize("way", [[], ["--ssh", "openssh"], ["--rsh", Lab.rsh]])
def test_no_python(lab: Lab, way: Sequence[str]) -> None:
    code, message, remedy = finding(gather(lab, "--hosts", "b", "--python", "/opt/no/python", *way), "b")
    assert code == "host-no-python"
    assert message.startswith("no Python there: tried /opt/no/python; the host has /usr/bin/python3")
    assert remedy.startswith("--python PATH")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
def test_old_pythons_answer_in_words(lab: Lab, version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} in ~/.pyenv/versions")
    code, message, _ = finding(gather(lab, "--hosts", "b", "--python", str(found[0])), "b")
    assert code == "host-old-python"
    assert message.startswith(f"needs Python 3.9 or newer, found Python {version[0]}")
    assert version[0] == "2" or f"{version}." in message


def test_a_python_that_dies_at_once(lab: Lab, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'error while loading shared libraries: libpython3.so' >&2\nexit 127\n")
    broken.chmod(0o755)
    code, message, _ = finding(gather(lab, "--hosts", "b", "--python", str(broken)), "b")
    assert code == "host-no-agent"
    assert "its Python died at once: error while loading shared libraries" in message
    broken.write_text("#!/no/such/interpreter\n")
    assert finding(gather(lab, "--hosts", "b", "--python", str(broken)), "b")[0] == "host-no-agent"
    dying = interpreter(tmp_path / "venv", "import os; os._exit(3)")
    assert "(ended with 3)" in finding(gather(lab, "--hosts", "b", "--python", str(dying)), "b")[1]


@BOTH
def test_a_setup_that_fails_shows_its_last_lines(lab: Lab, ssh: str) -> None:
    setup = "for i in $(seq 9); do echo step $i; done; echo no such module >&2; exit 3"
    code, message, _ = finding(gather(lab, "--hosts", "b", "--setup", setup, "--ssh", ssh), "b")
    assert code == "host-setup-failed"
    assert message.startswith("--setup failed (exit 3): ")
    assert message.endswith("step 9 | no such module")


def test_an_account_without_a_shell(lab: Lab) -> None:
    accounts = lab.path("a", "/etc/passwd")
    with changed_file(accounts, accounts.read_text().replace("/home/ada:/bin/bash", "/home/ada:/usr/sbin/nologin")):
        code, message, _ = finding(gather(lab, "--hosts", "b", user="ada"), "b")
    assert code == "host-no-agent"
    assert "not available" in message


def test_hosts_leave_nothing_behind(lab: Lab) -> None:
    hosts = ("a", "b", "c")
    before = {host: set(lab.pids(host)) for host in hosts}  # what hung in other tests may not have ended yet
    gather(lab, "--hosts", "a,b,c")
    wait_for(lambda: all(set(lab.pids(host)) <= before[host] for host in hosts), "end of the agents")


def test_a_hostile_name_runs_nothing(lab: Lab, tmp_path: Path) -> None:
    for name in (f"-oProxyCommand=touch${{IFS}}{tmp_path}/x", f"a;touch {tmp_path}/x"):
        for way in (["--rsh", "ssh {host}"], ["--ssh", "openssh"], []):
            assert gather(lab, f"--hosts={name}", *way)["usage"]
    assert not (tmp_path / "x").exists()


# ---------------------------------------------------------------------------------------------------------------- srun


def test_srun(slurm_lab: Lab) -> None:
    def run(*flags: str) -> Any:
        import json

        command = [sys.executable, "-m", "tests.fleet.gather", "--hosts", "a,b,c", "--fleet", "srun", *flags]
        root = str(Path(__file__).parents[2])
        done = slurm_lab.run(["salloc", "-Q", "-N3", *command], env={"PYTHONPATH": root}, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    answer = run("--setup", "export X=1\necho noise", "--in", "unshare -m")
    assert set(answer["hello"]) == {"a", "b", "c"}
    answer = run("--setup", "[ $(hostname) != b ] || { echo no module; exit 3; }")
    code, message, _ = finding(answer, "b")
    assert code == "host-setup-failed"
    assert "no module" in message
    assert set(answer["hello"]) == {"a", "c"}
    assert answer["seconds"] < 8 or machine_is_busy()
    answer = run("--python", "/no/python")
    assert {finding(answer, host)[0] for host in "abc"} == {"host-no-python"}
