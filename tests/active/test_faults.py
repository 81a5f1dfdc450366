"""Faults of a network and of hosts, each made for real: found, with the host and the cause, within ten seconds."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.active.conftest import ROOT, check
from tests.lab import faults
from tests.lab.lab import Lab, Running, machine_is_busy, wait_for

pytestmark = pytest.mark.lab
Fault = Callable[[Lab], contextlib.AbstractContextManager[object]]

SECONDS = 10.0
EPHEMERAL = "32768-60999"


@contextlib.contextmanager
def orphan(lab: Lab, host: str, port: int) -> Iterator[Running]:
    """A rank that an ended run left behind listens on the rendezvous port."""
    code = f"import socket, time; s = socket.create_server(('', {port})); time.sleep(600)"
    mark = {"NVRUN_MARK": "20260101-000000-abcd.0"}
    quiet = subprocess.DEVNULL
    with lab.popen([sys.executable, "-c", code], place=host, env=mark, stdout=quiet, stderr=quiet) as running:
        wait_for(lambda: lab.listens(host, port), "the orphan")
        yield running
        running.kill()


FAULTS: list[tuple[str, Fault, str, str | None, str, tuple[str, ...]]] = [
    (
        "firewalld's REJECT",
        lambda lab: faults.reject(lab, "b", EPHEMERAL, reply="icmpx type admin-prohibited"),
        "no-route",
        "b",
        "firewall",
        (),
    ),
    ("DROP of the ephemeral range", lambda lab: faults.drop(lab, "b", EPHEMERAL), "port-dropped", "b", EPHEMERAL, ()),
    (
        "DROP of half of the range",
        lambda lab: faults.drop(lab, "b", "47000-60999", way="in"),
        "port-dropped",
        "b",
        "firewall",
        (),
    ),
    (
        "one-way firewall",
        lambda lab: faults.drop(lab, "a", way="in", peer="b"),
        "port-dropped",
        None,
        "a and b cannot reach each other",
        (),
    ),
    ("own MTU too small", lambda lab: faults.mtu(lab, "b", 1300), "mtu-differs", "b", "MTU 1300, but 1500", ()),
    ("larger MTU", lambda lab: faults.mtu(lab, "c", 9000), "mtu-differs", "c", "MTU 9000, but 1500", ()),
    (
        "black hole",
        lambda lab: faults.black_hole(lab, "b", 1400),
        "connection-stalls",
        "b",
        "packets over 1400 bytes vanish",
        (),
    ),
    (
        "address twice",
        lambda lab: faults.extra_address(lab, "c", f"{lab.address('b')}/{lab.prefix}"),
        "address-twice",
        None,
        "b,c have the address",
        ("--rsh", "/run/lab/rsh {host}"),
    ),
    (
        "wrong subnet",
        lambda lab: faults.moved(lab, "b", "10.78.0.2/16"),
        "subnet-differs",
        "b",
        "10.78.0.0/16",
        ("--rsh", "/run/lab/rsh {host}"),
    ),
    ("full disk", lambda lab: faults.full_disk(lab, "b", "/tmp"), "disk-full", "b", "/tmp", ()),
    ("no programs in /tmp", lambda lab: faults.mounted(lab, "b", "/tmp", "noexec"), "cache-noexec", "b", "noexec", ()),
    (
        "orphan",
        lambda lab: orphan(lab, "a", 29500),
        "ports-taken",
        "a",
        "of the nvrun run 20260101",
        ("--port-range", "29500"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "code", "host", "cause", "flags"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_fault_is_found_named_and_explained(
    lab: Lab, fault: Fault, code: str, host: str | None, cause: str, flags: tuple[str, ...]
) -> None:
    with fault(lab):
        checked = check(lab, *flags)
    found = [each for each in checked.findings if each["code"] == code and each.get("host") == host]
    assert found, checked.findings
    assert any(cause in each["message"] or cause in each.get("remedy", "") for each in found)
    assert all(each["remedy"] for each in found)
    named = {each.get("host") for each in checked.findings if each["severity"] >= 30}
    assert named <= {host, None, *("ab" if "each other" in cause else "")}, checked.findings
    assert checked.seconds < SECONDS or machine_is_busy(), f"{checked.seconds:.1f} s"


def test_what_is_left_of_a_run_is_named_where_another_port_is_free(lab: Lab) -> None:
    with orphan(lab, "a", 29500) as running:
        checked = check(lab)
        assert running.poll() is None
    assert any("20260101-000000-abcd" in each["message"] for each in checked.findings), checked.findings


def test_two_faults_are_two_findings(lab: Lab) -> None:
    with faults.reject(lab, "b", EPHEMERAL), faults.name_to_loopback(lab, "c"):
        checked = check(lab)
    assert {("port-rejected", "b"), ("own-name-loopback", "c")} <= checked.serious


def test_the_checkout_is_left_as_it_was() -> None:
    wait_for(lambda: not list(ROOT.glob(".nvrun-*")), "no file of a check, that of one that runs meanwhile included")
