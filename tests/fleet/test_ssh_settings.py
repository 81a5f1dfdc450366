"""What `ssh -G` says, as settings."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nvrun.fleet.link import Unreachable
from nvrun.fleet.ssh_settings import expand, jump_host, parse, read, without_ssh
from nvrun.model import Host

PLAIN = """\
host gpu1
user ada
hostname gpu1.cluster
port 2222
addressfamily inet6
gssapiauthentication yes
hashknownhosts yes
identitiesonly yes
stricthostkeychecking accept-new
controlpath /home/ada/.ssh/cm-abc
identityagent SSH_AUTH_SOCK
identityfile ~/.ssh/%h_%r
identityfile %d/key of %u
certificatefile ~/.ssh/c-cert.pub
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile /home/ada/.ssh/known_hosts
proxycommand nc -X 5 %h %p # 100%%
proxyjump ada@b1:22,b2
"""


def test_settings() -> None:
    found = parse(PLAIN, "gpu1", "/home/me", "me")
    assert (found.hostname, found.port, found.user, found.family) == ("gpu1.cluster", 2222, "ada", socket.AF_INET6)
    assert found.identity_files == ("/home/me/.ssh/gpu1.cluster_ada", "/home/me/key of me")
    assert found.certificate_files == ("/home/me/.ssh/c-cert.pub",)
    assert found.identity_agent is None
    assert found.identities_only
    assert found.known_hosts[0] == "/home/ada/.ssh/known_hosts"
    assert len(found.known_hosts) == 3
    assert found.strict == "accept-new"
    assert found.hash_names
    assert found.gssapi
    assert found.control_path == "/home/ada/.ssh/cm-abc"
    assert found.proxy_jump == ("ada@b1:22", "b2")
    assert found.proxy_command == "nc -X 5 gpu1.cluster 2222 # 100%"
    assert found.key_name == "[gpu1.cluster]:2222"
    assert found.where == "gpu1.cluster port 2222"


def test_settings_that_are_off() -> None:
    found = parse(
        "host a\nuser me\nhostname a\nport 22\nproxyjump none\nproxycommand none\ncontrolpath none\n"
        "stricthostkeychecking ask\nidentityagent none\nuserknownhostsfile none\n",
        "a",
        "/h",
        "me",
    )
    assert found.proxy_jump == ()
    assert found.proxy_command is None
    assert found.control_path is None
    assert found.identity_agent == "none"
    assert found.known_hosts == ()
    assert found.strict == "yes"
    assert found.key_name == "a"


@pytest.mark.parametrize(
    ("value", "strict"),
    [
        ("ask", "yes"),
        ("yes", "yes"),
        ("true", "yes"),
        ("no", "no"),
        ("false", "no"),
        ("off", "no"),
        ("accept-new", "accept-new"),
    ],
)
def test_strict_host_key_checking(value: str, strict: str) -> None:
    assert parse(f"stricthostkeychecking {value}\n", "a", "/h", "me").strict == strict


def test_host_key_alias_is_the_name_in_known_hosts() -> None:
    assert parse("hostname 10.0.0.1\nport 2222\nhostkeyalias gpu1\n", "a", "/h", "me").key_name == "gpu1"


def test_tokens() -> None:
    assert expand("~/x/%h-%%-%z", {"h": "gpu1", "%": "%"}, "/home/me") == "/home/me/x/gpu1-%-%z"
    assert expand("~/%h", {"h": "gpu1"}, None) == "~/gpu1"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("b1", Host(name="b1")),
        ("ada@b1:2222", Host(name="b1", user="ada", port=2222)),
        ("ssh://ada@b1:2222", Host(name="b1", user="ada", port=2222)),
        ("[fd77::1]:22", Host(name="fd77::1", port=22)),
        ("a@b@c", Host(name="c", user="a@b")),
    ],
)
def test_jump_hosts(text: str, host: Host) -> None:
    assert jump_host(text) == host


def test_a_jump_host_that_is_none() -> None:
    with pytest.raises(Unreachable) as error:
        jump_host("b1:port")
    assert error.value.code == "host-ssh-config"


def test_without_ssh_its_defaults_hold() -> None:
    found = without_ssh(Host(name="gpu1", port=2222), "/home/me", "me")
    assert found.where == "gpu1 port 2222"
    assert found.user == "me"
    assert found.strict == "yes"
    assert found.known_hosts[0] == "/home/me/.ssh/known_hosts"


def test_ssh_itself_reads_include_and_match(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu*\n Port 2200\n")
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/more\nMatch host gpu7\n User turing\nHost gpu7\n HostName %h.cluster\n")
    found = read(Host(name="gpu7"), str(config), 5.0)
    assert (found.hostname, found.port, found.user) == ("gpu7.cluster", 2200, "turing")
    found = read(Host(name="gpu7", user="me", port=22), str(config), 5.0)
    assert (found.port, found.user) == (22, "me")


def test_a_configuration_that_ssh_refuses(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n NoSuchOption yes\n")
    with pytest.raises(Unreachable, match=r"(?i)bad configuration option: nosuchoption") as error:
        read(Host(name="gpu7"), str(config), 5.0)
    assert error.value.code == "host-ssh-config"
    assert error.value.hint == f"ssh -F {config} -G gpu7"


def test_a_match_exec_that_hangs(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text('Match exec "exec sleep 5"\n User x\n')
    with pytest.raises(Unreachable, match=r"no answer in 0\.3 s"):
        read(Host(name="gpu7"), str(config), 0.3)
