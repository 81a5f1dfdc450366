"""RDMA facts that are not there, or spelled otherwise: no alarm, no crash, and never silently healthy."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from nvrun import facts
from nvrun.checks import Job, run
from nvrun.facts import Gid, HostFacts
from nvrun.model import Finding, Severity
from tests.checks.fleets import fleet, with_

ADDRESS = Gid(index=3, gid="::ffff:10.0.0.1", type="RoCE v2")
ROCE: dict[str, Any] = {"link_layer": "Ethernet", "gids": (ADDRESS,), "traffic_class": 106}
FLOW = {"pfc_priorities": (3,), "dscp_priorities": {26: 3}, "ecn_priorities": (3,), "global_pause": False}


def hosts(kind: str = "h100x8", **base: Any) -> dict[str, HostFacts]:
    return {name: ports(one, **base) for name, one in fleet(kind, 3).items()}


def ports(one: HostFacts, **changes: Any) -> HostFacts:
    changed: HostFacts = with_(one, rdma=tuple(with_(port, **changes) for port in one.rdma or ()))
    return changed


def interfaces(one: HostFacts, **changes: Any) -> HostFacts:
    assert one.network
    every = tuple(with_(each, **changes) if each.name.startswith("ens") else each for each in one.network.interfaces)
    changed: HostFacts = with_(one, network=with_(one.network, interfaces=every))
    return changed


def judged(known: dict[str, HostFacts], **n02: HostFacts) -> tuple[list[Finding], dict[str, str]]:
    """What would refuse a launch, and what was skipped on n02 (check -> reason)."""
    verdict = run({**known, **n02}, Job())
    worse = [each for each in verdict.findings if each.severity > Severity.INFO]
    return worse, {each.code: each.reason for each in verdict.skipped if each.host == "n02"}


@pytest.mark.parametrize(
    ("base", "change", "check", "words"),
    [
        ({}, {"state": ""}, "rdma-ports-up", "the state of mlx5_0:1, mlx5_3:1"),
        ({}, {"uverbs": None, "uverbs_openable": None}, "rdma-ports-up", "is ib_uverbs loaded?"),
        ({}, {"rate_gbps": None}, "rdma-ports-agree", "the rate of mlx5_0:1"),
        ({}, {"rate_gbps": 0.0}, "rdma-ports-agree", "the rate of mlx5_0:1"),
        ({}, {"active_mtu": None}, "rdma-ports-agree", "the active MTU (from libibverbs) of mlx5_0:1"),
        ({}, {"pkeys": ()}, "rdma-fabric-shared", "any P_Key of mlx5_0:1"),
        ({}, {"pkeys": ("none", "0x", "")}, "rdma-fabric-shared", "any P_Key of mlx5_0:1"),
        ({}, {"pci": None}, "rdma-ports-fit", "the PCIe link of mlx5_0:1"),
        (ROCE, {"gids": (with_(ADDRESS, type=""),)}, "rdma-ports-fit", "the RoCE version of the GIDs of mlx5_0:1"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_is_not_known_of_ports_is_skipped_in_words(base: Any, change: Any, check: str, words: str) -> None:
    known = hosts(**base)
    assert not judged(known)[0]
    assert check not in judged(known)[1]
    found, skipped = judged(known, n02=ports(known["n02"], **change))
    assert not found
    assert words in skipped[check]


def test_a_host_whose_pci_was_not_read_has_no_other_number_of_ports() -> None:
    known = hosts()
    found, skipped = judged(known, n02=with_(known["n02"], pci=None, missing={"pci": "no answer in 5 s"}))
    assert [each.code for each in found] == []
    assert skipped["rdma-ports-agree"] == "which RDMA ports are near a GPU is not known"


@pytest.mark.parametrize("spelled", ["RoCE V2", "RoCEv2", "ROCE v2"])
def test_other_spellings_of_a_gids_type(spelled: str) -> None:
    known = hosts(**ROCE)
    assert judged(known, n02=ports(known["n02"], gids=(with_(ADDRESS, type=spelled),)))[0] == []


@pytest.mark.parametrize("told", ["pfc_priorities", "ecn_priorities"])
def test_flow_control_is_compared_as_far_as_both_drivers_tell(told: str) -> None:
    known = {name: interfaces(one, **FLOW) for name, one in hosts("a100x8_nps4", traffic_class=106).items()}
    assert judged(known)[0] == []
    untold = {"ecn_priorities": None} if told[0] == "p" else {"pfc_priorities": None, "dscp_priorities": None}
    assert judged(known, n02=interfaces(known["n02"], **untold))[0] == []
    differing = judged(known, n02=interfaces(known["n02"], **untold, **{told: (4,)}))[0]
    assert ("roce-flow-control-differs", "n02") in {(each.code, each.host) for each in differing}


def test_one_traffic_class_from_two_sources_is_one() -> None:
    known = {name: interfaces(one, **FLOW) for name, one in hosts("a100x8_nps4", traffic_class=106).items()}
    asked = with_(ports(known["n02"], traffic_class=None), env={**(known["n02"].env or {}), "NCCL_IB_TC": "106"})
    assert "roce-class-differs" not in {each.code for each in judged(known, n02=asked)[0]}
    other = with_(asked, env={"NCCL_IB_TC": "98"})
    assert "roce-class-differs" in {each.code for each in judged(known, n02=other)[0]}


def test_no_check_fails_on_facts_that_make_no_sense() -> None:
    chance = random.Random(7)
    odd = {str: ("", "?", "N/A", "0x", "ROCE v2", "-1"), int: (-1, 0, 2**40), float: (-1.0, 0.0, 1e12)}
    for number in range(150):
        known = msgspec.json.decode(msgspec.json.encode(hosts(chance.choice(("h100x8", "a100x8_nps4", "efa_h100x8")))))
        for _ in range(4):
            holder: Any = known["n02"][chance.choice(("rdma", "network", "pci", "gpus"))]
            while True:
                key = (
                    chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder))) if holder else None
                )
                if key is None or not isinstance(holder[key], dict | list) or chance.random() < 0.1:
                    break
                holder = holder[key]
            if key is None:
                continue
            value = holder[key]
            holder[key] = (
                type(value)() if isinstance(value, dict | list) else chance.choice(odd.get(type(value), (None,)))
            )
        try:
            n02 = facts.decode(known["n02"])
        except msgspec.ValidationError:
            continue
        fleets = {name: facts.decode(one) for name, one in known.items() if name != "n02"} | {"n02": n02}
        crashed = [each for each in run(fleets, Job()).findings if each.code == "check-crashed"]
        assert not crashed, (number, crashed)


def test_networks_are_not_compared_where_rdma_was_not_read() -> None:
    known = fleet("h100x8", 2)
    known["n02"] = with_(known["n02"], rdma=None, missing={"rdma": "no answer"})
    skipped = run(known, Job(rdma={})).skipped
    assert [each.reason for each in skipped if each.code == "fabric-best"] == ["RDMA ports of n02: not read"]
