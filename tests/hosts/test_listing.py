"""--hosts, host files and --exclude."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrun.errors import UsageError
from nvrun.hosts import hostfile, listing
from nvrun.model import Host


def short(hosts: tuple[Host, ...]) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(host.name, host.user, host.port, host.slots) for host in hosts]


def test_the_forms_of_a_list() -> None:
    assert short(
        listing.parse("a,b:4, user@c:2222,gpu[01-02]:2,user@d:22:8,[fe80::1%eth0]:4,[::1],r@[::2]:2022", "x")
    ) == [
        ("a", None, None, None),
        ("b", None, None, 4),
        ("c", "user", 2222, None),
        ("gpu01", None, None, 2),
        ("gpu02", None, None, 2),
        ("d", "user", 22, 8),
        ("fe80::1%eth0", None, None, 4),
        ("::1", None, None, None),
        ("::2", "r", 2022, None),
    ]


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("a:b", "expected 1 to 1024 ranks, got 'b'", ""),
        ("a:0", "expected 1 to 1024 ranks, got '0'", ""),
        ("a:", "expected 1 to 1024 ranks, got ''", ""),
        ("a:2222", "expected 1 to 1024 ranks, got '2222'", "a port needs a user: USER@a:2222"),
        ("a:4:5", "one number after a host is its ranks", "USER@HOST:PORT"),
        ("u@a:4", "the first number is the ssh port", "for 4 ranks write u@a:22:4"),
        ("u@a:99999", "expected a port from 1 to 65535", ""),
        ("fe80::1", "is no host", "[fe80::1]"),
        ("[fe80::g]", "is no IPv6 address", ""),
        ("a,b,a", "a is listed twice", "a:2"),
        ("-oProxyCommand=x@a", "expected a user name before @", ""),
        ("@a", "expected a user name before @", ""),
        ("-a", "is no host name", ""),
        ("", "names no host", ""),
    ],
)
def test_mistakes_in_a_list(text: str, words: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        listing.parse(text, "--hosts")
    assert error.value.message.startswith("--hosts: ")
    assert words in error.value.message
    assert hint in error.value.hint


_WILD = st.text(alphabet="ab1:@[]-,.% \n#=slot\0", max_size=14) | st.text(max_size=8)


@settings(max_examples=200, deadline=None)
@given(_WILD)
def test_any_list_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        for host in listing.parse(text, "x"):
            assert not host.name.startswith("-")
            assert not (host.user or "").startswith("-")


@settings(max_examples=200, deadline=None)
@given(_WILD)
def test_any_host_file_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert hostfile.parse(text, "x")


def test_host_files_of_both_kinds() -> None:
    text = (
        "# cluster\nworker-1 slots=4\nworker-2   slots=8 max_slots=8 # Open MPI\n\n"
        "c count=2 max-slots=4\nu@d:2222\ngpu[1-2]:3\n"
    )
    assert short(hostfile.parse(text, "hosts")) == [
        ("worker-1", None, None, 4),
        ("worker-2", None, None, 8),
        ("c", None, None, 2),
        ("d", "u", 2222, None),
        ("gpu1", None, None, 3),
        ("gpu2", None, None, 3),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb slot=4\n", "hosts:2: expected slots=N after the host, got 'slot=4'"),
        ("a slots=x\n", "hosts:1: expected slots=1 to 1024, got 'slots=x'"),
        ("a slots=0\n", "hosts:1: expected slots=1 to 1024, got 'slots=0'"),
        ("a slots=4 slots=4\n", "hosts:1: slots is given twice"),
        ("a slots=4 max_slots=2\n", "hosts:1: slots=4 is above max_slots=2"),
        ("a:2 slots=2\n", "hosts:1: ranks are given twice, by :N and by slots="),
        ("a\n\na\n", "hosts:3: a is already in line 1"),
        ("a b\n", "hosts:1: expected slots=N after the host, got 'b'"),
        ("# a\n", "hosts: names no host"),
    ],
)
def test_mistakes_in_a_host_file_name_the_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        hostfile.parse(text, "hosts")
    assert error.value.message == message


def test_excluded_hosts() -> None:
    hosts = listing.parse("a,gpu[1-4]", "x")
    left, unknown = listing.without(hosts, "gpu[2-3],z", "--exclude")
    assert [host.name for host in left] == ["a", "gpu1", "gpu4"]
    assert unknown == ("z",)
    with pytest.raises(UsageError, match="--exclude: excludes every host"):
        listing.without(hosts, "a,gpu[1-4]", "--exclude")
