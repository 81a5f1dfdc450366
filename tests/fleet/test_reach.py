"""Real hosts, reached in every way: ssh, the ssh program, rsh, jump hosts, proxies, any login shell."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fleet.gather import LISTENER, changed_file, config, finding, gather, interpreter
from tests.lab import faults
from tests.lab.lab import Lab, wait_for

pytestmark = pytest.mark.lab

BOTH = pytest.mark.parametrize("ssh", ["paramiko", "openssh"])


# ------------------------------------------------------------------------------------------------------ healthy hosts


@BOTH
@pytest.mark.parametrize("user", ["root", "ada"])
def test_three_hosts(lab: Lab, ssh: str, user: str) -> None:
    answer = gather(lab, "--hosts", "a,b,c", "--ssh", ssh, user=user)
    assert set(answer["hello"]) == {"a", "b", "c"}
    assert answer["findings"] == {}
    assert {hello["executable"] for hello in answer["hello"].values()} == {sys.executable}
    assert answer["hello"]["b"]["hostname"] == "b"


def test_rsh_and_local(lab: Lab) -> None:
    assert set(gather(lab, "--hosts", "a,b", "--rsh", lab.rsh)["hello"]) == {"a", "b"}
    answer = gather(lab, "--hosts", "launcher,a")
    assert answer["kinds"] == ["local", "ssh"]
    assert set(answer["hello"]) == {"launcher", "a"}


@pytest.mark.parametrize("way", [["--hosts", "launcher"], ["--hosts", "b"], ["--hosts", "b", "--ssh", "openssh"]])
def test_setup_in_and_python_work_for_every_way(lab: Lab, way: list[str]) -> None:
    fake = "d=$(mktemp -d) && mkdir -p $d/bin $d/lib/python3/site-packages/torch"
    make = f"{fake} && ln -s {sys.executable} $d/bin/python3 && PATH=$d/bin:$PATH"
    answer = gather(lab, *way, "--setup", f"echo welcome\n{make}", "--in", "unshare -m")
    (hello,) = answer["hello"].values()
    assert hello["executable"].startswith("/tmp/tmp."), answer
    answer = gather(lab, *way, "--python", sys.executable, "--in", f"sh -c {_in_own_mounts()} sh")
    assert answer["findings"] == {}


def _in_own_mounts() -> str:
    return "'exec unshare -m \"$@\"'"


def test_setup_in_and_python_by_rsh(lab: Lab) -> None:
    answer = gather(lab, "--hosts", "a,b", "--rsh", lab.rsh, "--setup", "exit 4")
    for host in ("a", "b"):
        assert finding(answer, host)[:2] == ("host-setup-failed", "--setup failed (exit 4)")
    assert set(gather(lab, "--hosts", "a,b", "--rsh", lab.rsh, "--setup", "true", "--in", "nice")["hello"]) == {
        "a",
        "b",
    }


@pytest.mark.parametrize("shell", ["dash", "tcsh", "fish", "zsh"])
def test_another_login_shell(lab: Lab, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here (Debian: {shell})")
    accounts = lab.path("a", "/etc/passwd")
    with changed_file(accounts, accounts.read_text().replace("/home/ada:/bin/bash", f"/home/ada:{program}")):
        runs = lab.run(["ssh", "a", "sh -c 'readlink /proc/$PPID/exe'; true"], user="ada").stdout
        assert runs == f"{Path(program).resolve()}\n"
        answer = gather(lab, "--hosts", "a,b", "--setup", "X='it'\"'\"'s'\nexport X", "--in", "env 'A=b c'", user="ada")
    assert set(answer["hello"]) == {"a", "b"}, answer


def test_noise_of_login_scripts(lab: Lab) -> None:
    noise = "echo welcome to $(hostname); printf 'no end of line'; echo oops >&2; printf '\\002ffffj.{}\\n'\n"
    with changed_file(lab.path("a", lab.home()) / ".bashrc", noise):
        assert set(gather(lab, "--hosts", "a,b")["hello"]) == {"a", "b"}
        assert set(gather(lab, "--hosts", "a,b", "--ssh", "openssh")["hello"]) == {"a", "b"}


def test_start_files_that_get_in_the_way(lab: Lab) -> None:
    bad = {
        "a": ("read -t 1 x; echo $x", "host-input-read", "reads the input that is for the agent"),
        "b": ("exit 0", "host-no-agent", "its login shell ended and did not run the command"),
        "c": ("exec >/dev/null", "host-no-agent", "its login shell runs no command in 3 s"),
    }
    with contextlib.ExitStack() as stack:
        for host, (text, _, _) in bad.items():
            stack.enter_context(changed_file(lab.path(host, f"/run/home/{host}.rc"), f"{text}\n"))
        choose = "[ ! -e /run/home/$(hostname).rc ] || . /run/home/$(hostname).rc\n"
        stack.enter_context(changed_file(lab.path("a", lab.home()) / ".bashrc", choose))
        answer = gather(lab, "--hosts", "a,b,c", "--connect-timeout", "3")
    for host, (_, code, words) in bad.items():
        assert finding(answer, host)[0] == code, answer
        assert words in finding(answer, host)[1]
    assert "(exec >)" in finding(answer, "c")[2]


@pytest.mark.parametrize("ssh", ["paramiko", "openssh"])
def test_an_agent_that_a_signal_ends_is_no_dropped_connection(lab: Lab, tmp_path: Path, ssh: str) -> None:
    """Of neither is an exit status told."""
    venv = interpreter(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    code, message, _ = finding(gather(lab, "--hosts", "a", "--python", str(venv), "--ssh", ssh), "a")
    assert (code, "its Python died at once" in message) == ("host-no-agent", True), message
    sshd = "kill -9 $PPID; sleep 5"
    code, message, _ = finding(gather(lab, "--hosts", "a", "--setup", sshd, "--ssh", ssh), "a")
    assert (code, "its connection ended while --setup ran" in message) == ("host-dropped", True), message


def test_noise_of_sitecustomize(lab: Lab, tmp_path: Path) -> None:
    venv = interpreter(tmp_path, "import sys; print('hello'); sys.stdout.write('no end'); sys.stdout.flush()")
    answer = gather(lab, "--hosts", "a", "--python", str(venv))
    assert answer["hello"]["a"]["executable"] == str(venv)


def test_sixty_four_hosts(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab([f"gpu{number:03}" for number in range(1, 65)])
    answer = gather(lab, "--hosts", "gpu[001-064]", "--connect-timeout", "20")
    assert len(answer["hello"]) == 64, answer["findings"]
    assert answer["seconds"] < 20  # 64 sshd and 64 Pythons share this machine


def test_ipv6(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(["a", "b"], ipv6=True)
    for ssh in ("paramiko", "openssh"):
        assert set(gather(lab, "--hosts", f"a,[{lab.address('b')}]", "--ssh", ssh)["hello"]) == {"a", "fd77::2"}


# --------------------------------------------------------------------------------------------------------- jump hosts


def connections(lab: Lab, host: str) -> int:
    """Logins at a host's sshd so far."""
    return lab.path(host, f"/run/lab/{host}/sshd.log").read_text().count("Accepted publickey")


def test_hosts_behind_a_jump_host_share_one_connection_to_it(make_lab: Callable[..., Lab]) -> None:
    behind = [f"n{number}" for number in range(4)]
    lab = make_lab(["gate", *behind], behind=dict.fromkeys(behind, "gate"))
    answer = gather(lab, "--hosts", ",".join(behind))
    assert set(answer["hello"]) == set(behind), answer
    assert connections(lab, "gate") == 1
    wait_for(lambda: not lab.processes("gate"), "end of the connection to the jump host")
    assert set(gather(lab, "--hosts", "n1,gate", "--ssh", "openssh")["hello"]) == {"n1", "gate"}
    with faults.no_sshd(lab, "n1"):
        answer = gather(lab, "--hosts", "n0,n1")
        code, message, _ = finding(answer, "n1")
        assert code == "host-unreachable"
        assert "jump host gate cannot connect to n1 port 22: connect failed" in message
        assert set(answer["hello"]) == {"n0"}
    with faults.hung_sshd(lab, "n1"):
        assert finding(gather(lab, "--hosts", "n0,n1", "--connect-timeout", "2"), "n1")[0] == "host-ssh-hung"
    with faults.no_sshd(lab, "gate"):
        answer = gather(lab, "--hosts", "n0,n1")
        for host in ("n0", "n1"):
            code, message, _ = finding(answer, host)
            assert code == "host-refused"
            assert "its jump host cannot be used: gate: gate port 22 refused" in message
    with faults.other_sshd(lab, "gate", "-o", "AllowTcpForwarding=no"):
        code, message, remedy = finding(gather(lab, "--hosts", "n0"), "n0")
        assert (code, "prohibited" in message.lower()) == ("host-unreachable", True)
        assert "AllowTcpForwarding" in remedy


def test_a_chain_of_jump_hosts(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(["a", "b", "c"], behind={"b": "a", "c": "b"})
    assert set(gather(lab, "--hosts", "c,b")["hello"]) == {"c", "b"}
    config = lab.path("launcher", lab.home()) / ".ssh" / "config"
    circle = "Host r1\n ProxyJump r2\nHost r2\n ProxyJump r1\n"
    with changed_file(config, f"Host c\n ProxyJump root@{lab.address('a')}:22,b\nHost x\n ProxyJump x\n{circle}"):
        assert set(gather(lab, "--hosts", "c")["hello"]) == {"c"}
        code, message, _ = finding(gather(lab, "--hosts", "x"), "x")
        assert (code, "loop" in message) == ("host-ssh-config", True)
        answer = gather(lab, "--hosts", "r1,r2")
        for host in ("r1", "r2"):
            assert finding(answer, host)[0] == "host-ssh-config"
            assert "its ProxyJump comes back to" in finding(answer, host)[1]
        assert answer["seconds"] < 3


# ------------------------------------------------------------------------------------------------ ssh's configuration


@BOTH
def test_proxy_command(lab: Lab, ssh: str) -> None:
    relay = f"{sys.executable} {LISTENER} relay %h %p"
    with config(lab, f"Host b\n ProxyCommand {relay}\nHost c\n ProxyCommand echo no way >&2; false\n") as path:
        answer = gather(lab, "--hosts", "b,c", "--ssh", ssh, "--ssh-config", str(path))
        assert set(answer["hello"]) == {"b"}, answer
        if ssh == "paramiko":
            assert finding(answer, "c")[:2] == ("host-unreachable", "its ProxyCommand ended: no way")
    wait_for(lambda: not lab.pids("launcher", str(LISTENER)), "end of the proxy")


@BOTH
def test_alias_user_and_port_of_the_configuration(lab: Lab, ssh: str) -> None:
    with config(lab, f"Host gpu\n HostName {lab.address('b')}\n HostKeyAlias b\n User ada\n") as path:
        answer = gather(lab, "--hosts", "gpu", "--ssh", ssh, "--ssh-config", str(path))
        assert answer["hello"]["gpu"]["uid"] == 4711


@pytest.mark.parametrize(("strict", "code"), [("ask", "host-key-unknown"), ("accept-new", ""), ("no", "")])
def test_an_unknown_key_is_taken_and_added_only_where_ssh_would(lab: Lab, strict: str, code: str) -> None:
    known = Path(lab.home()) / "known.test"
    seen = lab.path("launcher", known)
    with (
        changed_file(seen, ""),
        config(lab, f"Host b\n StrictHostKeyChecking {strict}\n UserKnownHostsFile {known}\n") as path,
    ):
        answer = gather(lab, "--hosts", "b", "--ssh-config", str(path))
        if code:
            found, message, remedy = finding(answer, "b")
            assert found == code
            assert "SHA256:" in message
            assert remedy.endswith("ssh-keyscan -p 22 b >> ~/.ssh/known_hosts")
            assert seen.read_text() == ""
        else:
            assert set(answer["hello"]) == {"b"}
            line = seen.read_text()
            assert line.startswith("b ssh-ed25519 ")
            with faults.wrong_host_key(lab, "b"):
                answer = gather(lab, "--hosts", "b", "--ssh-config", str(path))
                assert bool(answer["hello"]) is (strict == "no")
                assert seen.read_text() == line


def test_known_hosts_with_lines_of_every_kind(lab: Lab) -> None:
    path = lab.path("launcher", lab.home()) / ".ssh" / "known_hosts"
    lines = path.read_text()
    key = next(line.split()[2] for line in lines.splitlines() if line.startswith("c,"))
    other = "@cert-authority * ssh-ed25519 AAAA\nnonsense\n\n# a comment\n"
    with changed_file(path, f"{other}{lines}@revoked * ssh-ed25519 {key}\n"):
        answer = gather(lab, "--hosts", "a,b,c")
        assert set(answer["hello"]) == {"a", "b"}
        assert finding(answer, "c")[:2][0] == "host-key-changed"
        assert "revoked" in finding(answer, "c")[1]
