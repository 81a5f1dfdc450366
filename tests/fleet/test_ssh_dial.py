"""Sockets to sshd on the loopback."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from nvrun.fleet import ssh_dial
from nvrun.fleet.link import Unreachable
from nvrun.fleet.ssh_settings import Settings


def settings(**more: Any) -> Settings:
    return Settings(**{"hostname": "gpu1", "user": "me", **more})


@contextlib.contextmanager
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def addresses(*ports: int) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]


def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as port:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses(1, port))
        wire = ssh_dial.tcp("gpu1", settings(), 2.0)
        assert wire.getpeername() == ("127.0.0.1", port)
        wire.close()


def test_a_refusal_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses(1))
    with pytest.raises(ssh_dial.Dropped) as dropped:
        ssh_dial.tcp("gpu1", settings(port=1), 2.0)
    assert dropped.value.trouble.code == "host-refused"
    assert dropped.value.trouble.message == "gpu1: gpu1 port 1 refused the connection"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(socket.EAI_NONAME, "getent hosts gpu1"), (socket.EAI_AGAIN, "the name server does not answer")],
)
def test_names_without_address(monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    def fail(*_: object) -> None:
        raise socket.gaierror(number, "what the library says")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Unreachable, match="gpu1 has no address: what the library says") as error:
        ssh_dial.tcp("gpu1", settings(), 2.0)
    assert error.value.code == "host-name-unknown"
    assert error.value.hint.startswith(remedy)


def test_a_name_that_is_none() -> None:
    with pytest.raises(Unreachable) as error:
        ssh_dial.tcp("gpu1", settings(hostname="a" * 300), 2.0)
    assert error.value.code == "host-name-unknown"


def test_a_proxy_is_a_socket_and_leaves_its_words() -> None:
    wire, words = ssh_dial.proxied("sh -c 'echo oops >&2; cat'")
    wire.sendall(b"there and back")
    assert wire.recv(100) == b"there and back"
    assert wire.first == b"there and back"
    wire.close()
    wire.close()
    assert words() == "oops"


def test_a_proxy_that_ends() -> None:
    wire, words = ssh_dial.proxied("false")
    assert wire.recv(100) == b""
    assert wire.ended
    wire.close()
    assert words() == ""
