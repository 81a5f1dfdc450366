"""Who tries what with whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.active import schedule
from nvrun.active.schedule import Pair


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_up_to_64_hosts_every_one_tries_every_other(count: int) -> None:
    pairs = schedule.mesh(list(range(count)))
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(count) if a != b]


@pytest.mark.parametrize(("count", "degree"), [(65, 7), (100, 7), (1000, 10), (1024, 10)])
def test_above_that_each_has_as_many_edges_either_way_as_powers_of_two(count: int, degree: int) -> None:
    pairs = schedule.mesh(list(range(count)))
    assert len(pairs) == len(set(pairs)) == degree * count
    assert all(sum(source == host for source, _ in pairs) == degree for host in range(count))
    assert all(sum(target == host for _, target in pairs) == degree for host in range(count))
    assert all(source != target for source, target in pairs)


@given(st.integers(2, 40))
def test_rounds_are_disjoint_and_meet_everybody(count: int) -> None:
    met: set[frozenset[int]] = set()
    for pairs in schedule.rounds(list(range(count)), count):
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts)) == count - count % 2
        met |= {frozenset(pair) for pair in pairs}
    assert len(met) == count * (count - 1) // 2


def test_fewer_rounds_are_as_many_as_asked_for_and_all_different() -> None:
    chosen = list(schedule.rounds(list(range(64)), 4))
    assert len(chosen) == 4
    assert len({frozenset(pair) for pairs in chosen for pair in pairs}) == 4 * 32


def test_ports_of_a_host_take_turns_where_hosts_are_many() -> None:
    ports = [33000, 40000, 47000, 55000]
    assert schedule.turns(ports, 5, hosts=3) == ports
    assert {schedule.turns(ports, source, hosts=64)[0] for source in range(64)} == set(ports)


def failing(hosts: int, *pairs: Pair) -> dict[Pair, str]:
    return {pair: "ETIMEDOUT" if pair in pairs else "" for pair in schedule.mesh(list(range(hosts)))}


def test_a_suspect_is_tried_again_with_hosts_that_are_well() -> None:
    edges = failing(5, *((host, 2) for host in range(5) if host != 2))
    again = schedule.again(edges, range(5))
    assert all(2 in pair for pair in again)
    assert len(again) == 2 * schedule.PARTNERS
    assert (2, 0) in again
    assert (0, 2) in again


def test_a_pair_alone_is_tried_again_as_a_pair_and_with_others() -> None:
    again = schedule.again(failing(4, (0, 3)), range(4))
    assert (0, 3) in again
    assert {pair for pair in again if pair not in ((0, 3), (3, 0))}


def test_two_hosts_are_tried_with_each_other() -> None:
    assert schedule.again(failing(2, (0, 1)), range(2)) == [(0, 1), (1, 0)]


def test_what_passed_the_second_time_is_well() -> None:
    edges = failing(5, *((host, 2) for host in range(5) if host != 2))
    retried = schedule.again(edges, range(5))
    assert not any(schedule.settled(edges, dict.fromkeys(retried, "")).values())
    still = schedule.settled(edges, {pair: "ETIMEDOUT" if pair[1] == 2 else "" for pair in retried})
    assert {pair for pair, answer in still.items() if answer} == {(host, 2) for host in range(5) if host != 2}


def test_in_the_second_round_everybody_has_another_partner_and_the_bad_ones_good_ones() -> None:
    first = schedule.adjacent(list(range(8)))
    assert first == [(0, 1), (2, 3), (4, 5), (6, 7)]
    second = schedule.mixed(first, {}, bad={4, 5})
    assert sorted(host for group in second for host in group) == list(range(8))
    assert not {frozenset(group) for group in second} & {frozenset(group) for group in first}
    assert all(not {4, 5} <= set(group) for group in second)


def test_an_odd_host_is_alone_in_one_round_only() -> None:
    first = schedule.adjacent([0, 1, 2])
    assert first == [(0, 1), (2,)]
    second = schedule.mixed(first, {0: 1.0, 1: 1.0, 2: 0.0}, bad=set())
    assert any(2 in group for group in second if len(group) == 2)
