"""Connections tried between hosts: cause from errno, and the one host at fault."""

from __future__ import annotations

import pytest

from nvrun.checks import rendezvous
from nvrun.model import Finding

HOSTS = ("a", "b", "c", "d")


def star(listening: bool | None = True, **results: str) -> list[Finding]:
    return rendezvous.rendezvous(results, server="a", address="10.0.0.1", port=29500, listening=listening)


def test_all_well_says_nothing() -> None:
    assert star(b="", c="", d="") == []
    assert star() == []


@pytest.mark.parametrize(
    ("answer", "listening", "code"),
    [
        ("ETIMEDOUT", True, "port-dropped"),
        ("ETIMEDOUT", False, "port-dropped"),
        ("ECONNREFUSED", True, "port-rejected"),
        ("ECONNREFUSED", False, "port-nobody"),
        ("EHOSTUNREACH", True, "no-route"),
        ("ENETUNREACH", True, "no-route"),
        ("EPROTO", True, "connection-fails"),
    ],
)
def test_cause_by_errno(answer: str, listening: bool, code: str) -> None:
    (finding,) = star(listening, b=answer, c=answer)
    assert (finding.code, finding.host) == (code, "a")
    assert "10.0.0.1:29500" in finding.message
    assert "PORT" not in finding.remedy


def test_refusal_with_unknown_listener_says_both() -> None:
    (finding,) = star(None, b="ECONNREFUSED", c="ECONNREFUSED")
    assert "or nothing listens" in finding.message


def test_one_host_that_cannot_reach_the_rendezvous_is_named() -> None:
    (finding,) = star(b="", c="ETIMEDOUT", d="")
    assert (finding.host, finding.code) == ("c", "port-dropped")


def test_two_hosts_alone_cannot_be_told_apart() -> None:
    (finding,) = star(b="ETIMEDOUT")
    assert finding.host is None
    assert "b cannot reach a" in finding.message


def mesh(failing: dict[tuple[str, str], str]) -> list[Finding]:
    results = {(a, b): failing.get((a, b), "") for a in HOSTS for b in HOSTS if a != b}
    return rendezvous.mesh(
        results, targets={host: f"10.0.0.{n}:40000" for n, host in enumerate(HOSTS)}, ports="32768-60999"
    )


def test_mesh_with_one_host_behind_a_firewall_names_that_host_once() -> None:
    (finding,) = mesh({(host, "b"): "ETIMEDOUT" for host in "acd"})
    assert finding.host == "b"


def test_mesh_with_one_host_that_cannot_send_names_that_host_once() -> None:
    (finding,) = mesh({("c", host): "ETIMEDOUT" for host in "abd"})
    assert finding.host == "c"
    assert "any other host" in finding.message


def test_mesh_with_one_isolated_host_names_it_and_no_pair() -> None:
    failing = {(host, "b"): "EHOSTUNREACH" for host in "acd"} | {("b", host): "EHOSTUNREACH" for host in "acd"}
    assert {finding.host for finding in mesh(failing)} == {"b"}


def test_mesh_with_one_broken_pair_blames_neither() -> None:
    (finding,) = mesh({("a", "c"): "ETIMEDOUT"})
    assert finding.host is None
    assert "a cannot reach c" in finding.message
