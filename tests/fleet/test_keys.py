"""Keys, agents and passwords: who is let in, and what the others are told."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.gather import LISTENER, changed_file, config, finding, gather
from tests.lab import faults
from tests.lab.lab import Lab, machine_is_busy, wait_for

pytestmark = pytest.mark.lab

BOTH = pytest.mark.parametrize("ssh", ["paramiko", "openssh"])


@pytest.fixture(scope="module")
def keys(lab: Lab) -> Iterator[Path]:
    """A folder of keys on the launcher; host a lets in whoever has one of them."""
    folder = Path(lab.home()) / "keys"
    here = lab.path("launcher", folder)
    here.mkdir()
    script = "\n".join(
        f"ssh-keygen -q -t {kind} -N '{phrase}' -C {name} -f {folder}/{name}"
        for name, kind, phrase in (
            ("ed25519", "ed25519", ""),
            ("ecdsa", "ecdsa", ""),
            ("rsa", "rsa", ""),
            ("locked", "ed25519", "secret"),
        )
    )
    lab.run(["sh", "-ec", f"{script}\ncat {folder}/*.pub > {folder}/all"], check=True)
    with faults.other_sshd(lab, "a", "-o", f"AuthorizedKeysFile={folder}/all"):
        yield folder
    shutil.rmtree(here)


def identity(key: Path) -> str:
    return f"Host *\n IdentityFile {key}\n IdentitiesOnly yes\n"


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_kinds_of_keys(lab: Lab, keys: Path, kind: str) -> None:
    with config(lab, identity(keys / kind)) as path:
        assert set(gather(lab, "--hosts", "a", "--ssh-config", str(path))["hello"]) == {"a"}


def test_a_key_that_is_not_accepted(lab: Lab, keys: Path) -> None:
    answer = gather(lab, "--hosts", "a")  # the lab's own key, which host a does not take now
    code, message, remedy = finding(answer, "a")
    assert code == "host-auth"
    assert "none of the keys tried is accepted for user root" in message
    assert "/.ssh/id_ed25519" in message
    assert remedy == "ssh-copy-id root@a, or load the key: ssh-add"
    code, message, remedy = finding(gather(lab, "--hosts", "a", "--ssh", "openssh"), "a")
    assert (code, remedy) == ("host-auth", "ssh-copy-id a, or load the key: ssh-add")


def test_a_locked_key_and_the_agent_that_opens_it(lab: Lab, keys: Path) -> None:
    with config(lab, identity(keys / "locked")) as path:
        code, message, remedy = finding(gather(lab, "--hosts", "a", "--ssh-config", str(path)), "a")
        assert code == "host-auth"
        assert "locked by a passphrase" in message
        assert remedy == f"ssh-add {keys}/locked"
        with agent(lab, keys / "locked", "secret") as sock:
            env = {"SSH_AUTH_SOCK": sock}
            assert set(gather(lab, "--hosts", "a", "--ssh-config", str(path), env=env)["hello"]) == {"a"}
            assert set(gather(lab, "--hosts", "a", env=env)["hello"]) == {"a"}  # also without a word about it
    with config(lab, f"Host *\n IdentityAgent {keys}/agent\n") as path, agent(lab, keys / "rsa", "", f"{keys}/agent"):
        assert set(gather(lab, "--hosts", "a", "--ssh-config", str(path))["hello"]) == {"a"}


def test_an_agent_that_hangs_does_not_hold_the_launch(lab: Lab) -> None:
    with lab.popen([sys.executable, LISTENER, "unix"]) as running:
        assert running.stdout is not None
        sock = running.stdout.readline().strip()
        answer = gather(lab, "--hosts", "b", env={"SSH_AUTH_SOCK": sock})
        running.kill()
    Path(sock).unlink()
    assert set(answer["hello"]) == {"b"}
    assert answer["seconds"] < 8 or machine_is_busy()


@contextlib.contextmanager
def agent(lab: Lab, key: Path, phrase: str, sock: str = "/run/lab/ssh-agent") -> Iterator[str]:
    """An ssh-agent on the launcher that holds the key."""
    seen = lab.path("launcher", sock)
    seen.unlink(missing_ok=True)
    with lab.popen(["ssh-agent", "-D", "-a", sock]) as running:
        wait_for(seen.exists, "ssh-agent")
        ask = lab.path("launcher", key.parent / "ask")
        ask.write_text(f"#!/bin/sh\necho '{phrase}'\n")
        ask.chmod(0o700)
        env = {"SSH_AUTH_SOCK": sock, "SSH_ASKPASS": str(key.parent / "ask"), "SSH_ASKPASS_REQUIRE": "force"}
        lab.run(["ssh-add", key], env=env, check=True)
        try:
            yield sock
        finally:
            running.kill()
    seen.unlink(missing_ok=True)


def test_a_users_certificate(lab: Lab, keys: Path) -> None:
    folder = lab.path("launcher", keys)
    make = f"""
        ssh-keygen -q -t ed25519 -N '' -f {keys}/authority
        ssh-keygen -q -t ed25519 -N '' -f {keys}/certified
        ssh-keygen -q -s {keys}/authority -I test -n root {keys}/certified.pub"""
    lab.run(["sh", "-ec", make], check=True)
    with faults.other_sshd(lab, "b", "-o", f"TrustedUserCAKeys={keys}/authority.pub", "-o", "AuthorizedKeysFile=none"):
        with config(lab, identity(keys / "certified")) as path:
            assert set(gather(lab, "--hosts", "b", "--ssh-config", str(path))["hello"]) == {"b"}
        (folder / "certified-cert.pub").rename(folder / "elsewhere.pub")
        with config(lab, f"{identity(keys / 'certified')} CertificateFile {keys}/elsewhere.pub\n") as path:
            assert set(gather(lab, "--hosts", "b", "--ssh-config", str(path))["hello"]) == {"b"}
        with config(lab, identity(keys / "certified")) as path:
            assert finding(gather(lab, "--hosts", "b", "--ssh-config", str(path)), "b")[0] == "host-auth"


def test_a_host_known_by_certificate_only_needs_the_ssh_program(lab: Lab) -> None:
    state = "/run/lab/b"
    make = f"""
        cd {state}; rm -f authority*; ssh-keygen -q -t ed25519 -N '' -f authority
        ssh-keygen -q -s authority -I b -h -n b host_key.pub"""
    lab.exec("b", ["sh", "-ec", make], check=True)
    authority = lab.path("b", f"{state}/authority.pub").read_text()
    known = lab.path("launcher", lab.home()) / ".ssh" / "known_hosts"
    with (
        faults.other_sshd(lab, "b", "-o", f"HostCertificate={state}/host_key-cert.pub"),
        changed_file(known, f"@cert-authority * {authority}"),
    ):
        code, message, remedy = finding(gather(lab, "--hosts", "b"), "b")
        assert (code, remedy) == ("host-key-unknown", "--ssh openssh")
        assert "certificate" in message
        assert set(gather(lab, "--hosts", "b", "--ssh", "openssh")["hello"]) == {"b"}


def test_a_live_control_path_is_the_remedy(lab: Lab, keys: Path) -> None:
    sock = Path(lab.home()) / "cm"
    with config(lab, f"Host a\n ControlPath {sock}\n IdentityFile {keys}/ed25519\n") as path:
        master: list[str | Path] = ["ssh", "-F", path, "-M", "-N", "-o", "BatchMode=yes", "a"]
        with lab.popen(master) as running:
            wait_for(lambda: lab.path("launcher", sock).exists(), "ssh's master")
            with config(lab, f"Host a\n ControlPath {sock}\n") as bare:
                code, _, remedy = finding(gather(lab, "--hosts", "a", "--ssh-config", str(bare)), "a")
                assert code == "host-auth"
                assert remedy.startswith("--ssh openssh")
                answer = gather(lab, "--hosts", "a", "--ssh-config", str(bare), "--ssh", "openssh")
                assert set(answer["hello"]) == {"a"}
            running.kill()
        lab.path("launcher", sock).unlink(missing_ok=True)


def test_a_host_that_wants_a_password(lab: Lab) -> None:
    with faults.other_sshd(lab, "b", "-o", "PasswordAuthentication=yes", "-o", "PubkeyAuthentication=no"):
        code, message, remedy = finding(gather(lab, "--hosts", "b"), "b")
    assert code == "host-auth"
    assert "only by password" in message
    assert "--ssh openssh" in remedy
