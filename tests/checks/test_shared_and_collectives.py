"""Folders that are to be shared, ssh between hosts, and the collective test, judged."""

from __future__ import annotations

from collections.abc import Sequence

from nvrun.checks import collectives, shared
from nvrun.checks.collectives import Smoke
from nvrun.checks.shared import Token
from nvrun.facts import Gpu, NvLink
from nvrun.model import Finding


def folders(*tokens: Token) -> list[tuple[str, str | None]]:
    return [(found.code, found.host) for found in shared.folders({"/data": tokens})]


def token(writer: str, **seen: bool) -> Token:
    return Token(path="/data", writer=writer, seen=seen)


def test_one_folder_on_all_hosts_is_well() -> None:
    assert folders(token("a", b=True, c=True)) == []


def test_the_host_that_stands_alone_is_named_whoever_wrote_first() -> None:
    assert folders(token("a", b=True, c=False)) == [("path-not-shared", "c")]
    assert folders(token("a", b=False, c=False), token("b", a=False, c=True)) == [("path-not-shared", "a")]


def test_a_folder_that_nobody_shares_names_nobody() -> None:
    assert folders(token("a", b=False, c=False), token("b", a=False, c=False)) == [("path-not-shared", None)]


def test_what_cannot_be_written_or_read_is_told() -> None:
    assert folders(Token(path="/data", writer="a", trouble="No space left on device")) == [("path-not-writable", "a")]
    blind = Token(path="/data", writer="a", seen={"b": True}, troubles={"c": "Permission denied"})
    assert folders(blind) == [("path-not-shared", "c")]


def test_a_folder_that_is_not_there_is_told_once() -> None:
    absent = "No such file or directory"  # `paths_there` finds path-missing
    assert folders(Token(path="/data", writer="a", trouble=absent)) == []
    assert folders(Token(path="/data", writer="a", troubles={"b": absent}, seen={"c": True})) == []


def test_ssh_names_the_host_that_lets_nobody_in() -> None:
    hosts = "abc"
    refused = {(a, b): "Permission denied (publickey)." if b == "c" else "" for a in hosts for b in hosts if a != b}
    (found,) = shared.ssh_mesh(refused)
    assert (found.code, found.host) == ("ssh-between-hosts", "c")
    assert "Permission denied" in found.message


LINKS = tuple(NvLink(link=number, active=True, speed_mb_s=26562, remote_type="switch") for number in range(18))


def gpus(count: int = 2, links: Sequence[NvLink] = LINKS) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=at, uuid=f"GPU-{at}", name="H200", pci=f"0000:0{at}:00.0", nvlinks=tuple(links))
        for at in range(count)
    )


def node(own: float = 294.0, copy: float = 394.0, gemm: tuple[float, ...] = (700.0, 700.0)) -> Smoke:
    rates = {"0-1": copy, "1-0": copy}
    return Smoke(hosts=("a",), gemm={"a": gemm}, copies={"a": rates}, own={"a": own}, backend="nccl")


def judged(*first: Smoke, second: Sequence[Smoke] = (), of: tuple[Gpu, ...] | None = None) -> list[Finding]:
    there = gpus() if of is None else of
    return list(collectives.judge(first, second, {"a": there, "b": there, "c": there}))


def test_two_gpus_over_nvlink_as_measured_are_well() -> None:
    assert judged(node()) == []


def test_an_all_reduce_without_p2p_is_caught_where_copies_are_fast() -> None:
    (found,) = judged(node(own=27.0))
    assert (found.code, found.host) == ("collective-slow", "a")
    assert "NCCL does not use P2P" in found.message


def test_copies_without_p2p_are_caught_by_the_rate_of_the_links() -> None:
    codes = {found.code for found in judged(node(own=27.0, copy=30.0))}
    assert codes == {"gpu-copy-slow", "collective-slow"}


def test_gpus_on_pcie_are_held_against_themselves_only() -> None:
    assert judged(node(own=14.0, copy=22.0), of=gpus(links=())) == []


def test_a_slow_gpu_is_told_apart_from_slow_communication() -> None:
    (found,) = judged(node(gemm=(700.0, 710.0, 400.0)))
    assert (found.code, found.subject) == ("gemm-slow", "local rank 2")


def pair(a: str, b: str, trouble: str = "", together: float | None = 40.0, at_fault: str = "") -> Smoke:
    rate = None if trouble else together
    return Smoke(hosts=(a, b), together=rate, backend="nccl", trouble=trouble, at_fault=at_fault)


def test_a_host_that_fails_with_two_partners_is_named() -> None:
    first, second = [pair("a", "b", "timed out"), pair("c", "d")], [pair("b", "c", "timed out"), pair("a", "d")]
    (found,) = judged(*first, second=second)
    assert (found.code, found.host) == ("collective-fails", "b")


def test_two_hosts_alone_are_told_by_whose_rank_died() -> None:
    (unknown,) = judged(pair("a", "b", "timed out"))
    assert unknown.host is None
    (known,) = judged(pair("a", "b", "ModuleNotFoundError", at_fault="b"))
    assert known.host == "b"


def test_a_slow_host_is_slow_with_every_partner() -> None:
    first = [pair("a", "b", together=4.0), pair("c", "d")]
    second = [pair("b", "c", together=4.0), pair("a", "d")]
    (found,) = judged(*first, second=second)
    assert (found.code, found.host) == ("collective-slow", "b")


def test_a_wrong_sum_is_never_quiet() -> None:
    wrong = Smoke(hosts=("a",), backend="nccl", wrong=("a",))
    assert [(found.code, found.host) for found in judged(wrong)] == [("collective-wrong", "a")]
