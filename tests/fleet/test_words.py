"""What is made of the words of ssh, of the start and of a dying Python."""

from __future__ import annotations

import pytest

from nvrun.checks.unreachable import UNREACHABLE
from nvrun.fleet import routes, ssh_words, trouble
from nvrun.fleet.link import Unreachable
from nvrun.fleet.ssh_words import explain
from nvrun.fleet.start import Start
from nvrun.model import Host

START = Start(pythons=("/opt/venv/bin/python", "python3"), setup="module load cuda", within="apptainer exec x.sif")


@pytest.mark.parametrize(
    ("said", "code", "word", "again"),
    [
        ("ssh: Could not resolve hostname gpu1: Name or service not known", "host-name-unknown", "gpu1 has no", False),
        ("ssh: connect to host gpu1 port 22: Connection refused", "host-refused", "port 22 refused", True),
        ("ssh: connect to host gpu1 port 22: Connection timed out", "host-silent", "no answer", False),
        ("ssh: connect to host gpu1 port 22: No route to host", "host-unreachable", "No route to host", False),
        ("ssh: connect to host gpu1 port 22: Network is unreachable", "host-unreachable", "Network is", False),
        (
            "Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out",
            "host-ssh-hung",
            "does not speak",
            False,
        ),
        (
            "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.1 port 22",
            "host-ssh-hung",
            "before its banner",
            True,
        ),
        ("kex_exchange_identification: read: Connection reset by peer", "host-ssh-hung", "before its banner", True),
        ("ssh_exchange_identification: Connection closed by remote host", "host-ssh-hung", "before its banner", True),
        (
            "kex_exchange_identification: banner line contains invalid characters",
            "host-ssh-protocol",
            "speak ssh",
            False,
        ),
        (
            "No ED25519 host key is known for gpu1 and you have requested strict checking.\nHost key verification "
            "failed.",
            "host-key-unknown",
            "not known here",
            False,
        ),
        (
            "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @\nHost key verification failed.",
            "host-key-changed",
            "not the one",
            False,
        ),
        (
            "@ WARNING: REVOKED HOST KEY DETECTED! @\nHost key verification failed.",
            "host-key-changed",
            "revoked",
            False,
        ),
        ("ada@gpu1: Permission denied (publickey,password).", "host-auth", "publickey,password", False),
        (
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.1",
            "host-auth",
            "too many keys",
            False,
        ),
        (
            "Unable to negotiate with 10.0.0.1 port 22: no matching host key type found. Their offer: ssh-rsa",
            "host-ssh-protocol",
            "no matching host key type",
            False,
        ),
        (
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed",
            "host-unreachable",
            "jump host cannot connect to it: Connection refused",
            False,
        ),
        (
            "/home/ada/.ssh/config: line 3: Bad configuration option: foo\n/home/ada/.ssh/config: terminating, 1 bad "
            "configuration options",
            "host-ssh-config",
            "foo",
            False,
        ),
        ("Bad owner or permissions on /home/ada/.ssh/config", "host-ssh-config", "Bad owner", False),
    ],
)
def test_sentences_of_ssh(said: str, code: str, word: str, again: bool) -> None:
    found = explain(f"Warning: something else\n{said} (ended with 255)", "gpu1")
    assert found is not None
    assert (found.code, found.again) == (code, again)
    assert word in found.cause
    assert "ended with" not in found.cause
    assert found.hint


def test_what_is_no_sentence_of_ssh_is_not_explained() -> None:
    assert explain("bash: line 1: python: command not found", "gpu1") is None


def test_every_row_counts() -> None:
    """Each code that the table gives has its page."""
    assert {meaning.code for meaning in ssh_words.MEANINGS} <= set(UNREACHABLE)


def codes() -> set[str]:
    said = "x"
    all_troubles = [trouble.late("h", stage, 3.0, said, START) for stage in trouble.SECONDS]
    all_troubles += [trouble.ended("h", stage, said, START) for stage in trouble.SECONDS]
    all_troubles += [
        trouble.refused("h", code, "why", said, START)
        for code in ("host-no-python", "host-setup-failed", "host-in-failed", "host-old-python")
    ]
    assert all(each.message.startswith("h: ") and each.hint for each in all_troubles)
    return {each.code for each in all_troubles}


def test_every_trouble_has_cause_remedy_and_page() -> None:
    assert codes() <= set(UNREACHABLE)


def test_no_python_says_what_was_tried_and_what_there_is() -> None:
    found = trouble.refused("h", "host-no-python", " /usr/bin/python2: /opt/x/bin/python3", "", START)
    assert found.message == (
        "h: no Python there: tried /opt/venv/bin/python, python3; the host has /usr/bin/python2, /opt/x/bin/python3"
    )


def test_a_setup_shows_its_last_lines() -> None:
    said = "\n".join(f"line {number}" for number in range(9)) + " (ended with 1)"
    found = trouble.refused("h", "host-setup-failed", "exit 3", said, START)
    assert found.message == "h: --setup failed (exit 3): line 4 | line 5 | line 6 | line 7 | line 8"


@pytest.mark.parametrize("said", ["", "Loading cuda/12", "client_loop: send disconnect: Broken pipe (ended with 255)"])
def test_a_connection_that_ends_is_not_the_fault_of_what_ran_over_it(said: str) -> None:
    stages: tuple[trouble.Stage, ...] = ("shell", "setup", "in", "python")
    for stage in stages:
        found = trouble.ended("h", stage, said, START)
        assert found.code == "host-dropped"
        assert found.message.startswith("h: its connection ended while ")
    assert trouble.ended("h", "setup", f"{said} (ended with 1)", START).code != "host-dropped" or "255" in said
    assert trouble.ended("h", "python", f"{trouble.GARBLED}: no message", START).code == "host-no-agent"


def test_words_of_a_host_are_harmless_on_a_terminal() -> None:
    found: Unreachable = trouble.ended(
        "h", "python", "\x1b[2J\x1b]0;title\x07Fatal\tPython error\x00\n(ended with 1)", START
    )
    assert "\x1b" not in found.message
    assert "\x07" not in found.message
    assert "Fatal Python error" in found.message
    assert found.code == "host-no-agent"


def test_the_remedy_goes_the_way_that_the_host_is_reached() -> None:
    rsh = "kubectl exec -i {host} --"
    ways: list[routes.Kind] = ["ssh", "local", "srun", "rsh"]
    by_hand = {f"h{n}": routes.by_hand(Host(name=f"h{n}"), kind, rsh) for n, kind in enumerate(ways)}
    start = Start(pythons=("python3",), within="podman exec x", by_hand=by_hand)
    assert [trouble.ended(name, "in", "(ended with 1)", start).hint for name in by_hand] == [
        "ssh h0 podman exec x true",
        "podman exec x true",
        "srun --nodelist=h2 podman exec x true",
        "kubectl exec -i h3 -- podman exec x true",
    ]


def test_a_stage_that_lasts_too_long_is_named() -> None:
    assert "login shell" in trouble.late("h", "connected", 4.0, "", START).message
    assert "--setup has not ended in 120 s" in trouble.late("h", "setup", 120.0, "", START).message
    assert "apptainer exec x.sif" in trouble.late("h", "in", 120.0, "", START).message
    assert trouble.limit("connected", 4.0) == 4.0
    assert trouble.limit("python", 4.0) == 20.0
