"""CPU lists, cores, and their sharing out among ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.topology.cpus import format_cpulist, parse_cpulist, share


@pytest.mark.parametrize(
    ("cpus", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((0, 1, 2, 64, 65, 67), "0-2,64-65,67"), ((2, 0, 1, 1), "0-2")],
)
def test_format(cpus: tuple[int, ...], text: str) -> None:
    assert format_cpulist(cpus) == text


@given(st.sets(st.integers(0, 600)))
def test_parsing_what_was_formatted(cpus: set[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "1-2-3", "0-99999999", "٣"])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match="is not a CPU number or a range"):
        parse_cpulist(text)


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 4))
def test_shares_are_even_disjoint_and_whole(cores: int, ranks: int, smt: int) -> None:
    every = [tuple(range(core * smt, core * smt + smt)) for core in range(cores)]
    shares = share(every, ranks)
    assert sorted(cpu for part in shares for cpu in part) == list(range(cores * smt))
    sizes = [len(part) // smt for part in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert all(len(part) % smt == 0 for part in shares)
