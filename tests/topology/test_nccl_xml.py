"""NCCL's topology file."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.errors import UsageError
from nvrun.topology import from_nccl_xml, from_text


def gpu(bus: str, dev: int, inner: str = "") -> str:
    return f'<pci busid="{bus}" class="0x030200"><gpu dev="{dev}" sm="90" rank="{dev}" gdr="1">{inner}</gpu></pci>'


def nic(bus: str, name: str, *, speed: int = 400000, ports: int = 1) -> str:
    nets = "".join(f'<net name="{name}" dev="0" speed="{speed}" port="{p + 1}" guid="0x1"/>' for p in range(ports))
    return f'<pci busid="{bus}" class="0x020700"><nic>{nets}</nic></pci>'


def switch(bus: str, *inner: str) -> str:
    return f'<pci busid="{bus}" class="0x060400">{"".join(inner)}</pci>'


def cpu(node: int, affinity: str, *inner: str) -> str:
    return f'<cpu numaid="{node}" affinity="{affinity}" arch="x86_64">{"".join(inner)}</cpu>'


SWITCHED = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
HOST = (
    '<?xml version="1.0"?>\n<system version="1">\n'
    + cpu(
        0,
        "00000000,0000ffff",
        switch("0000:16:00.0", gpu("0000:1b:00.0", 0, SWITCHED), nic("0000:18:00.0", "mlx5_0")),
        switch("0000:28:00.0", switch("0000:2a:00.0", gpu("0000:2b:00.0", 1, SWITCHED)), nic("0000:29:00.0", "mlx5_1")),
        '<nic><net name="eth0" dev="2" speed="10000" port="0"/></nic>',
    )
    + cpu(1, "ffff0000", nic("0000:99:00.0", "mlx5_2", speed=100000, ports=2), gpu("0000:9b:00.0", 2, SWITCHED))
    + "</system>\n"
)


def test_a_host() -> None:
    topology = from_text(HOST, "topo.xml")
    assert [(g.name, g.pci, g.numa_node, len(g.cpus)) for g in topology.gpus] == [
        ("GPU0", "0000:1b:00.0", 0, 16),
        ("GPU1", "0000:2b:00.0", 0, 16),
        ("GPU2", "0000:9b:00.0", 1, 16),
    ]
    assert topology.gpus[2].cpus == tuple(range(16, 32))
    assert [(n.name, n.port, n.rate_gbps, n.numa_node) for n in topology.nics] == [
        ("mlx5_0", 1, 400, 0),
        ("mlx5_1", 1, 400, 0),
        ("mlx5_2", 1, 100, 1),
        ("mlx5_2", 2, 100, 1),
    ]
    assert topology.path("GPU0", "mlx5_0") == "PIX"
    assert topology.path("GPU1", "mlx5_1") == "PXB"
    assert topology.path("GPU2", "mlx5_2") == "PHB"
    assert topology.path("GPU0", "mlx5_1") == "PHB"
    assert topology.path("GPU0", "mlx5_2") == "SYS"
    assert topology.path("GPU0", "GPU2") == "NV18"


def test_direct_nvlinks_count_by_target() -> None:
    links = {0: ("0000:02:00.0", 2), 1: ("0000:01:00.0", 2), 2: ("", 0)}
    gpus = [
        gpu(f"0000:0{at + 1}:00.0", at, f'<nvlink target="{bus}" count="{count}" tclass="0x030200"/>' if bus else "")
        for at, (bus, count) in links.items()
    ]
    topology = from_nccl_xml(f'<system version="1">{cpu(0, "ff", *gpus)}</system>')
    assert topology.path("GPU0", "GPU1") == "NV2"
    assert topology.path("GPU0", "GPU2") == "PHB"


def test_a_node_that_nccl_does_not_know() -> None:
    topology = from_nccl_xml(f'<system version="1">{cpu(-1, "ff", gpu("0000:01:00.0", 0))}</system>')
    assert topology.gpus[0].numa_node is None
    assert topology.numa == ()


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<system version="1">&b;</system>'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "x:1: expected no DOCTYPE and no entities"),
        ('<!DOCTYPE s SYSTEM "file:///etc/passwd"><system/>', "x:1: expected no DOCTYPE"),
        ("", "x:1: expected the XML"),
        ("<system>\n<cpu>", "x:2: expected the XML of NCCL_TOPO_DUMP_FILE: "),
        ("<graphs version='1'/>", "x:1: expected a `system` element, not `graphs`"),
        ("<system/>", "x:1: expected at least one `cpu`"),
        ('<system><cpu numaid="0" affinity="ff"/></system>', "x:1: expected at least one `gpu`"),
        (f'<system>\n<cpu affinity="ff">{gpu("1", 0)}</cpu></system>', "x:2: expected `numaid` in `cpu`"),
        (f"<system>{cpu(0, 'xyz', gpu('1', 0))}</system>", "x:1: expected words of up to 8 hex digits"),
        ("<system>" + cpu(0, "ff", '<pci><gpu dev="first"/></pci>') + "</system>", "x:1: expected a number in dev="),
        ("<a>" * 100, "x:1: elements are nested more than 64 deep"),
        ('<?xml version="1.0" encoding="klingon"?><system/>', "x:1: expected the XML"),
    ],
)
def test_bad_xml_names_line_and_expectation(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_nccl_xml(text, "x")


@given(st.data())
def test_no_cut_is_a_traceback(data: st.DataObject) -> None:
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(HOST)), st.integers(0, len(HOST)))))
    noise = data.draw(st.text(max_size=5))
    for text in (HOST[:start] + noise + HOST[end:], HOST[start:end], noise):
        with contextlib.suppress(UsageError):
            from_nccl_xml(text)
