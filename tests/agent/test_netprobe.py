"""What the connecting side reads of its own kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrun.agent import netprobe

HEAD = "entries  allocs   destroys hash_grows forced_gc_runs unresolved_discards"
"""A row for each CPU below it, in hexadecimal (Linux 6.1)."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{HEAD} table_fulls\n02 31 77 07 05 00 34fa\n02 9a 52 03 f7 00 03beb\n", 0x34FA + 0x3BEB),
        (f"{HEAD}\n02 31 77 07 05 00\n", 0),
        ("", 0),
    ],
)
def test_overflows_of_the_neighbour_table(text: str, found: int, tmp_path: Path) -> None:
    (tmp_path / "arp_cache").write_text(text)
    assert netprobe.overflows(str(tmp_path / "arp_cache")) == found
    assert netprobe.overflows(str(tmp_path / "none")) == 0


@pytest.mark.parametrize(
    ("neighbours", "overflown", "answer"),
    [
        ({}, True, "NEIGHBOURSFULL"),
        ({}, False, "ETIMEDOUT"),
        ({"10.0.0.9": True}, True, "ETIMEDOUT"),
        ({"10.0.0.9": False}, True, "EHOSTUNREACH"),
    ],
)
def test_silence_is_told_by_what_the_kernel_knows_of_the_address(
    neighbours: dict[str, bool], overflown: bool, answer: str
) -> None:
    call = netprobe._Call({"host": 1, "address": "10.0.0.9"}, 4000, bytes(16), "10.0.0.1", 0, set())
    call._answer = "ETIMEDOUT"
    result: dict[str, dict[str, str]] = {"ports": {}}
    call.tell(result, neighbours, overflown)
    assert result == {"ports": {"4000": answer}}
