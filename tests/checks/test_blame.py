"""Failed edges between hosts, and the one host that explains them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from nvrun.checks.blame import Edge, blame, suspects

HOSTS = "abcde"


def mesh(failed: Iterable[Edge], hosts: str = HOSTS) -> dict[Edge, str]:
    bad = set(failed)
    return {(a, b): "no" if (a, b) in bad else "" for a in hosts for b in hosts if a != b}


def into(host: str, hosts: str = HOSTS) -> list[Edge]:
    return [(other, host) for other in hosts if other != host]


def out_of(host: str, hosts: str = HOSTS) -> list[Edge]:
    return [(host, other) for other in hosts if other != host]


@pytest.mark.parametrize(
    ("failed", "named"),
    [
        ([], []),
        (into("b"), [("in", "b")]),
        (out_of("c"), [("out", "c")]),
        ([*into("d"), *out_of("d")], [("both", "d")]),
        ([*into("b"), *out_of("c")], [("in", "b"), ("out", "c")]),
        ([*into("b"), *out_of("b"), *into("e"), *out_of("e")], [("both", "b"), ("both", "e")]),
        ([("a", "b")], [("pair", None)]),
        ([("a", "b"), ("b", "a")], [("pair", None)]),
        ([("a", "b"), ("c", "b")], [("pair", None)]),
    ],
)
def test_as_few_as_explain_it(failed: list[Edge], named: list[tuple[str, str | None]]) -> None:
    found = blame(mesh(failed))
    assert [(each.kind, each.host) for each in found] == named
    assert {edge for each in found for edge in each.edges} == set(failed)
    assert sum(len(each.edges) for each in found) == len(set(failed))


def test_with_two_hosts_nobody_can_be_named() -> None:
    assert [(each.kind, each.host) for each in blame(mesh([("a", "b")], "ab"))] == [("pair", None)]
    (both,) = blame(mesh([("a", "b"), ("b", "a")], "ab"))
    assert (both.kind, both.host, both.answer) == ("pair", None, "no")


def test_where_no_host_reaches_any_other_none_is_named() -> None:
    (found,) = blame(dict.fromkeys(mesh([], "abc"), "no"))
    assert (found.kind, found.host, found.between, len(found.edges)) == ("all", None, (), 6)
    star = blame({("b", "a"): "no", ("c", "a"): "no"})
    assert [(each.kind, each.host) for each in star] == [("in", "a")]


def test_one_edge_is_enough_where_others_reach_the_same_host() -> None:
    star = {("b", "a"): "", ("c", "a"): "no", ("d", "a"): ""}
    (found,) = blame(star)
    assert (found.kind, found.host) == ("out", "c")


def test_suspects_cover_all_failures_with_few() -> None:
    assert suspects(mesh([*into("b"), *out_of("b")])) == ["b"]
    assert suspects(mesh([])) == []
    assert set(suspects(mesh([*into("b"), *into("d")]))) == {"b", "d"}
