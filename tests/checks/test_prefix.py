"""Planned numactl commands that were tried."""

from __future__ import annotations

from nvrun.checks.prefix import Tried, tried

GOOD = Tried(argv=("numactl", "--physcpubind=0"), code=0)
WORDS = "libnuma: Warning: cpu argument 0-15 out of range"
BAD = Tried(argv=("numactl", "--physcpubind=0-15"), code=1, stderr=f"{WORDS}\nusage: ...")


def test_what_works_says_nothing() -> None:
    assert list(tried({"a": [GOOD, GOOD]})) == []


def test_failure_is_told_once_with_numactls_words() -> None:
    (finding,) = tried({"a": [GOOD, BAD, BAD], "b": [GOOD]})
    assert (finding.host, finding.code) == ("a", "numactl-fails")
    assert finding.message == f"numactl --physcpubind=0-15: {WORDS}"


def test_silence_and_an_end_without_words() -> None:
    slow = Tried(argv=("numactl",), code=None)
    mute = Tried(argv=("numactl",), code=-31)
    assert [finding.message for finding in tried({"a": [slow, mute]})] == [
        "numactl: did not end in time",
        "numactl: ended with -31",
    ]
