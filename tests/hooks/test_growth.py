"""What changed between two readings of a host, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvrun import facts
from nvrun.checks.grown import growth
from nvrun.facts import HostFacts, Xid
from nvrun.model import Severity

DATA = Path(__file__).parents[1] / "data" / "facts"


def changed(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


@pytest.fixture
def host() -> HostFacts:
    (found,) = facts.from_json((DATA / "h100x8.json").read_bytes())
    gpu = changed(
        found.gpus[0] if found.gpus else None,
        ecc_uncorrected_volatile=0,
        nvlinks=(facts.NvLink(link=3, active=True, crc_errors=0, replay_errors=5),),
    )
    assert found.gpus
    assert found.rdma
    port = changed(found.rdma[0], counters={"symbol_error": 2, "port_xmit_wait": 7}, state="ACTIVE")
    return changed(found, gpus=(gpu, *found.gpus[1:]), rdma=(port, *found.rdma[1:]), xids=())  # type: ignore[no-any-return]


def codes(before: HostFacts, after: HostFacts) -> list[tuple[str, str, str]]:
    return [(each.code, each.subject, each.observed) for each in growth(before, after)]


def test_nothing_grew(host: HostFacts) -> None:
    assert codes(host, host) == []


def first_gpu(host: HostFacts, **changes: Any) -> HostFacts:
    assert host.gpus
    return changed(host, gpus=(changed(host.gpus[0], **changes), *host.gpus[1:]))  # type: ignore[no-any-return]


def link(**changes: Any) -> tuple[facts.NvLink, ...]:
    return (facts.NvLink(**{"link": 3, "active": True, "crc_errors": 0, "replay_errors": 5, **changes}),)


def test_gpu_counters(host: HostFacts) -> None:
    assert codes(host, first_gpu(host, ecc_uncorrected_volatile=1)) == [
        ("ecc-uncorrected-grew", "GPU 0 uncorrected ECC errors", "1")
    ]
    assert codes(host, first_gpu(host, nvlinks=link(replay_errors=9))) == [
        ("nvlink-errors-grew", "GPU 0 NVLink 3 replay errors", "9")
    ]
    assert codes(host, first_gpu(host, nvlinks=link(active=False))) == [("nvlink-down", "GPU 0 NVLink 3", "down")]


def test_unknown_and_reset_counters_are_not_judged(host: HostFacts) -> None:
    assert codes(host, first_gpu(host, ecc_uncorrected_volatile=None)) == []
    assert codes(first_gpu(host, ecc_uncorrected_volatile=None), first_gpu(host, ecc_uncorrected_volatile=4)) == []
    assert codes(host, first_gpu(host, nvlinks=link(replay_errors=0))) == []
    assert codes(host, changed(host, gpus=None, rdma=None, network=None, xids=None)) == []


def test_a_gpu_that_went_away(host: HostFacts) -> None:
    assert host.gpus
    (finding,) = growth(host, changed(host, gpus=host.gpus[1:]))
    assert (finding.code, finding.severity, finding.subject) == ("gpu-lost", Severity.ERROR, "GPU 0")


def test_xids_are_those_of_this_job(host: HostFacts) -> None:
    old, new = Xid(code=13, pci="0000:1b:00.0", at=1.0), Xid(code=74, pci="0000:1b:00.0", at=2.0, text="NVLink: fatal")
    before = changed(host, xids=(old,))
    assert host.gpus
    with_card = changed(before, gpus=(changed(host.gpus[0], pci=new.pci), *host.gpus[1:]))
    assert codes(with_card, changed(with_card, xids=(old, new))) == [("xid-74", "GPU 0 at 0000:1b:00.0", "Xid 74")]
    (found,) = growth(with_card, changed(with_card, xids=(old, new)))
    assert found.message.endswith("GPU 0 at 0000:1b:00.0: Xid 74 at 00:00:02 UTC, while the job ran")
    assert codes(changed(host, xids=None), changed(host, xids=(old, new))) == []
    slewed = changed(host, xids=(changed(old, at=2.0),))
    assert codes(before, slewed) == [], "the host's clock was set meanwhile"


def test_ports_and_interfaces(host: HostFacts) -> None:
    assert host.rdma
    port = host.rdma[0]

    def with_port(**changes: Any) -> HostFacts:
        assert host.rdma
        return changed(host, rdma=(changed(port, **changes), *host.rdma[1:]))  # type: ignore[no-any-return]

    assert codes(host, with_port(counters={"symbol_error": 3, "port_xmit_wait": 900})) == [
        ("port-errors-grew", f"{port.device} port {port.port} symbol_error", "3")
    ]
    assert codes(host, with_port(state="DOWN")) == [("port-down", f"{port.device} port {port.port}", "DOWN")]
    assert host.network
    interface = next(each for each in host.network.interfaces if each.kind != "loopback")

    def with_changes(count: int) -> HostFacts:
        assert host.network
        others = [each for each in host.network.interfaces if each.name != interface.name]
        network = changed(host.network, interfaces=(changed(interface, carrier_changes=count), *others))
        return changed(host, network=network)  # type: ignore[no-any-return]

    assert codes(with_changes(1), with_changes(3)) == [("interface-flapped", f"{interface.name} carrier changes", "3")]

    def with_bridge(up: bool, master: str | None) -> HostFacts:
        network = changed(host.network, interfaces=(
            facts.Interface(name="docker0", up=up, kind="bridge"),
            facts.Interface(name="ens1", up=True, pci="0000:01:00.0", master=master),
        ))  # fmt: skip
        return changed(host, network=network)  # type: ignore[no-any-return]

    assert codes(with_bridge(True, None), with_bridge(False, None)) == [], "its last container has ended"
    assert codes(with_bridge(True, "docker0"), with_bridge(False, "docker0")) == [("interface-down", "docker0", "down")]


def test_what_is_gone_or_full(host: HostFacts) -> None:
    assert host.network
    first = next(each for each in host.network.interfaces if each.addresses and each.kind != "loopback")

    def interface(**changes: Any) -> HostFacts:
        others = [each for each in host.network.interfaces if each is not first]  # type: ignore[union-attr]
        network = changed(host.network, interfaces=(changed(first, **changes), *others))
        return changed(host, network=network)  # type: ignore[no-any-return]

    up = interface(up=True)
    assert codes(up, interface(up=False)) == [("interface-down", first.name, "down")]
    gone = codes(up, interface(up=True, addresses=()))
    assert {code for code, _, _ in gone} == {"address-gone"}
    assert len(gone) == len(first.addresses)
    before = changed(host, filesystems=(facts.Filesystem(path="/tmp", free_bytes=1 << 30),))
    full = changed(host, filesystems=(facts.Filesystem(path="/tmp", free_bytes=4096),))
    assert codes(before, full) == [("disk-filled", "/tmp", "0 MiB free")]
    silent = changed(host, filesystems=(facts.Filesystem(path="/tmp", error="no answer in 2 s"),))
    assert codes(before, silent) == [("filesystem-lost", "/tmp", "no answer in 2 s")]


def test_a_driver_that_answers_no_more_is_told_from_a_host_that_does_not(host: HostFacts) -> None:
    wedged = changed(host, gpus=None, missing={"gpus": "no answer in 18 s"})
    assert codes(host, wedged) == [("gpus-unreadable", "GPUs", "no answer in 18 s")]
    assert codes(host, HostFacts(host=host.host, missing=dict.fromkeys(facts.SECTIONS, "nothing is heard"))) == []
