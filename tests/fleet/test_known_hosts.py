"""Which keys known_hosts allows; the lines are ssh-keygen's own where they are hashed."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from nvrun.fleet.known_hosts import entries, judge, matches, new_line

ONE, TWO = b"\0\0\0\x0bssh-ed25519 one", b"\0\0\0\x0bssh-ed25519 two"


def text(*lines: str) -> str:
    keys = {"ONE": base64.b64encode(ONE).decode(), "TWO": base64.b64encode(TWO).decode()}
    return "".join(f"{line.format(**keys)}\n" for line in lines)


@pytest.mark.parametrize(
    ("patterns", "name", "means"),
    [
        ("gpu1", "gpu1", True),
        ("gpu1", "gpu10", False),
        ("a,gpu1,b", "gpu1", True),
        ("GPU1", "gpu1", True),
        ("*.cluster", "gpu1.cluster", True),
        ("gpu?", "gpu1", True),
        ("*,!gpu1", "gpu1", False),
        ("*,!gpu1", "gpu2", True),
        ("[gpu1]:2222", "[gpu1]:2222", True),
        ("[gpu1]:2222", "g:2222", False),  # brackets are no character class
        ("[*]:2222", "[gpu1]:2222", True),
        ("fd77::1", "fd77::1", True),
        ("|1|bad", "gpu1", False),
        ("|1|AAAA|BBBB", "gpu1", False),
    ],
)
def test_names_of_a_line(patterns: str, name: str, means: bool) -> None:
    assert matches(patterns, name) is means


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["gpu1 ssh-ed25519 {ONE}"], "known"),
        (["gpu1 ssh-ed25519 {TWO}"], "changed"),
        (["gpu2 ssh-ed25519 {ONE}"], "unknown"),
        ([], "unknown"),
        (["gpu1 ssh-ed25519 {TWO}", "*1 ssh-ed25519 {ONE} # a comment"], "known"),
        (["@cert-authority * ssh-ed25519 {TWO}", "gpu1 ssh-ed25519 {ONE}"], "known"),
        (["@cert-authority * ssh-ed25519 {TWO}"], "authority"),
        (["@cert-authority *.other ssh-ed25519 {TWO}"], "unknown"),
        (["@revoked * ssh-ed25519 {ONE}", "gpu1 ssh-ed25519 {ONE}"], "revoked"),
        (["@revoked * ssh-ed25519 {TWO}", "gpu1 ssh-ed25519 {ONE}"], "known"),
        (
            ["@new-marker gpu1 ssh-ed25519 {TWO}", "gpu1", "gpu1 ssh-ed25519 !!!", "", "# gpu1 ssh-ed25519 {TWO}"],
            "unknown",
        ),
    ],
)
def test_judgement(lines: list[str], says: str) -> None:
    assert judge(entries(text(*lines), "gpu1"), ONE) == says


def test_a_line_that_is_added_is_understood() -> None:
    for salt in (None, b"s" * 20):
        line = new_line("[gpu1]:2222", "ssh-ed25519", ONE, salt)
        assert judge(entries(line, "[gpu1]:2222"), ONE) == "known"
        assert judge(entries(line, "gpu1"), ONE) == "unknown"
        assert ("gpu1" in line) is (salt is None)


def test_hashed_names_as_ssh_keygen_writes_them(tmp_path: Path) -> None:
    if not shutil.which("ssh-keygen"):
        pytest.skip("no ssh-keygen here")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    kind, key, _ = (tmp_path / "key.pub").read_text().split()
    (tmp_path / "known").write_text(f"gpu1,[gpu2]:2222 {kind} {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", tmp_path / "known"], check=True, stderr=subprocess.DEVNULL)
    hashed = (tmp_path / "known").read_text()
    assert "gpu" not in hashed
    for name, says in (("gpu1", "known"), ("[gpu2]:2222", "known"), ("gpu2", "unknown")):
        assert judge(entries(hashed, name), base64.b64decode(key)) == says
    ours = tmp_path / "ours"
    ours.write_text(new_line("gpu3", kind, base64.b64decode(key), b"0" * 20))
    found = subprocess.run(["ssh-keygen", "-F", "gpu3", "-f", ours], capture_output=True, text=True, check=False)
    assert key in found.stdout  # and ssh understands ours
