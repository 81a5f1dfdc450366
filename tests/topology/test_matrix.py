"""The matrix of nvidia-smi topo -m, as versions and terminals leave it."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrun.cli import main
from nvrun.errors import UsageError
from nvrun.topology import Topology, from_matrix
from nvrun.topology.cpus import parse_cpulist
from nvrun.topology.model import nearness

Machine = Any
"""conftest.Machine; test files cannot import one another."""
Machines = Mapping[str, Machine]

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


def check(topology: Topology, machine: Machine) -> None:
    assert [gpu.name for gpu in topology.gpus] == [name for name in machine.names if name.startswith("GPU")]
    assert [nic.name for nic in topology.nics] == list(machine.nics)
    assert [gpu.numa_node for gpu in topology.gpus] == [node for node, _ in machine.gpus]
    for one in machine.names:
        for other in machine.names:
            assert topology.path(one, other) == machine.way(one, other)
    for gpu, (_, cpus) in zip(topology.gpus, machine.gpus, strict=True):
        if cpus.count(",") < 5:  # else cut off, see test_a_cut_cpu_list_is_not_taken_for_whole
            assert gpu.cpus == parse_cpulist(cpus)


def test_as_printed(machine: Machine) -> None:
    topology = from_matrix(machine.text())
    check(topology, machine)
    assert topology.notes == () or "cut" in machine.gpus[0][1] or "six entries" in topology.notes[0]


def rows_as(rows: list[list[str]], layout: random.Random) -> str:
    """One of the many forms in which the matrix reaches us."""
    separator = layout.choice(["\t", "  ", " ", "\t\t", "      "])
    indent = layout.choice(["", "    ", "> ", "\t"])
    lines = [indent + separator.join(word for word in row if word or separator == "\t") for row in rows]
    if layout.random() < 0.5:
        lines[0] = lines[0].lstrip()
    if layout.random() < 0.3:
        lines[0] = f"\x1b[4m{lines[0]}\x1b[0m"
    if layout.random() < 0.3:
        lines[:0] = ["GPU Topology:", "", "$ nvidia-smi topo -m"]
    return layout.choice(["\n", "\r\n", "\n\n"]).join(lines) + "\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**9))
def test_every_form_means_the_same(machines: Machines, seed: int) -> None:
    layout = random.Random(seed)
    machine = layout.choice(list(machines.values()))
    named = layout.random() < 0.5
    text = rows_as(machine.printed(numbered=not named, columns=layout.choice([2, 3])), layout)
    check(from_matrix(text + ("" if named else machine.legend())), machine)


@pytest.mark.parametrize("width", [70, 80, 100, 120])
def test_lines_wrapped_by_a_terminal(machine: Machine, width: int) -> None:
    rows = machine.printed()
    lines = ["".join(word.ljust(8 if len(word) < 8 else len(word) + 4) for word in row).rstrip() for row in rows]
    lines[0] = "        " + lines[0].lstrip()
    wrapped = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    check(from_matrix("\n".join(wrapped) + "\n" + machine.legend()), machine)


def test_rows_missing_at_the_end_are_filled_from_the_others(machines: Machines) -> None:
    machine = machines["h100x8-guest-reversed-nics"]
    topology = from_matrix("\n".join("\t".join(row) for row in machine.printed()[:7]) + "\n")
    assert topology.path("GPU0", "GPU7") == "NV18"
    assert topology.path("GPU6", "GPU7") is None
    assert topology.gpus[7].numa_node is None
    assert topology.notes[0] == "rows missing: GPU6, GPU7, NIC0, NIC1, NIC2, NIC3"
    assert "no NIC legend" in topology.notes[1]


def test_a_row_cut_off_is_said(machines: Machines) -> None:
    rows = machines["l40x4-512-cpus"].printed()
    topology = from_matrix("\n".join("\t".join(row[:5]) for row in [rows[0], *rows[1:]]).replace(
        "\t".join(rows[0][:5]), "\t".join(rows[0])) + "\n")  # fmt: skip
    assert "row GPU0 is cut off after 4 of 6 columns" in topology.notes
    assert topology.path("GPU0", "GPU3") == "SYS"
    assert topology.path("GPU0", "NIC0") == "SYS"  # from the row of NIC0


def test_a_cut_cpu_list_is_not_taken_for_whole(machines: Machines) -> None:
    topology = from_matrix(machines["cpus-by-turns-cut-off"].text())
    assert [gpu.cpus for gpu in topology.gpus] == [()] * 4
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 0, 1, 1]
    assert len([note for note in topology.notes if "six entries" in note]) == 2


def test_the_p2p_matrix_after_it_is_not_mixed_in() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tPHB\t0-7\nGPU1\tPHB\tX\t0-7\n"
    p2p = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"
    for gap in ("", "\n", "\n\n$ nvidia-smi topo -p2p rw\n"):
        assert from_matrix(text + gap + p2p).path("GPU0", "GPU1") == "PHB"


def test_rows_that_disagree_leave_the_way_open() -> None:
    topology = from_matrix("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n")
    assert topology.path("GPU0", "GPU1") is None
    assert topology.notes == ("GPU0 to GPU1 is PIX one way round and SYS the other: left out",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "m: no matrix of `nvidia-smi topo -m` in 0 lines: expected"),
        ("GPU0 GPU1\n\nnothing here\n", "m: no matrix"),
        ("No devices were found\n", "m: no matrix"),
        ("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n", "m:2: row GPU0: expected 2 ways .* not 'OK'"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPXX\n", "m:2: row GPU0: expected 2 ways .* not 'PXX'"),
        ("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tPIX\nGPU1\tX\tPIX\tPIX\n", r"m:3: row GPU1: expected X in column 2"),
        ("\tGPU0\tGPU0\nGPU0\tX\tPIX\n", "m:1: column GPU0 is there twice"),
    ],
)
def test_bad_text_names_line_and_expectation(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_matrix(text, "m")


WORDS = ["GPU0", "GPU1", "GPU", "NIC0", "mlx5_0", "X", "NV18", "PIX", "SYS", "OK", "0-3", "N/A", "CPU Affinity", "NUMA",
         "NIC0: mlx5_0", "Legend:", "\x1b[4m", "\t", "\n", "\n", " ", "é", "\x00", "9" * 30]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=40), st.text(max_size=30))
def test_no_text_is_a_traceback(words: list[str], noise: str) -> None:
    for text in ("".join(words), " ".join(words), noise):
        with contextlib.suppress(UsageError):
            from_matrix(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(data=st.data())
def test_no_cut_in_a_real_matrix_is_a_traceback(machines: Machines, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(list(machines.values()))).text()
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    for piece in (text[:start] + text[end:], text[start:end]):
        with contextlib.suppress(UsageError):
            from_matrix(piece)


# What is known of each machine from its owner's description: GPUs, NUMA nodes of the GPUs, NICs, kinds of way.
KNOWN: dict[str, tuple[int, Sequence[int | None], int, set[str]]] = {
    "a100_8_nic_sys_cpu255_missing": (8, [0] * 4 + [1] * 4, 4, {"NV12"}),
    "a100_8_roce_4x_dualport": (8, [0] * 4 + [1] * 4, 8, {"NV12"}),
    "a100_pcie_4_header_spaces": (4, [0, 0, 1, 1], 1, {"NODE", "SYS"}),
    "aws_2gpu_pix_no_leading_tab": (2, [0, 0], 0, {"PIX"}),
    "aws_g5_a10g_4_sys_indented": (4, [0] * 4, 0, {"SYS"}),
    "dgx_a100_10nic_nps4": (8, [3, 3, 1, 1, 7, 7, 5, 5], 10, {"NV12"}),
    "docker_cpuset_1gpu_no_legend": (1, [0], 0, set()),
    "dual_gpu_nv2_numa_na": (2, [None, None], 0, {"NV2"}),
    "dual_gpu_phb_numa_na": (2, [None, None], 0, {"PHB"}),
    "gb10_dgx_spark_1gpu_4nic": (1, [0], 4, set()),
    "gh200_4nic_gpu_numa_id": (1, [0], 4, set()),
    "gtx1080ti_2_phb": (2, [None, None], 0, {"PHB"}),
    "h100_8_4gpu_nics_pix_alternate": (8, [0] * 4 + [1, 1, None, None], 5, {"NV18"}),
    "h100_8_ht_no_nic": (8, [0] * 4 + [1] * 4, 0, {"NV18"}),
    "h100_8_narrow_columns": (8, [0] * 4 + [1] * 4, 0, {"NV18"}),
    "h200_8_roce_single_numa_node_interleave": (8, [0] * 8, 12, {"NV18"}),
    "hgx_a100x4_2s_one_nic": (4, [0, 0, 1, 1], 1, {"NV4"}),
    "hgx_h100_vm_passthrough_reversed_nics": (8, [0] * 4 + [1] * 4, 4, {"NV18"}),
    "l40_4_512cpu_nic_socket1": (4, [0, 0, 1, 1], 2, {"NODE", "SYS"}),
    "nv4_pairs_odd_even_cpus_truncated": (4, [0, 0, 1, 1], 0, {"NV4", "SYS"}),
    "one_gpu_node_nic_pix_pair": (1, [1], 2, set()),
    "pcie_4gpu_bf3_roce_device_names": (4, [0, 0, 1, 1], 5, {"NODE", "SYS"}),
    "pcie_8_all_on_socket0_nic_other_socket": (8, [0] * 8, 2, {"PIX", "NODE"}),
    "pcie_8_pix_pairs": (8, [0] * 4 + [1] * 4, 0, {"PIX", "NODE", "SYS"}),
    "pcie_8_switch_2x4_nic_one_side": (8, [0] * 4 + [1] * 4, 2, {"PIX", "SYS"}),
    "polaris_a100x4_header_mixed_tabs": (4, [3, 2, 1, 0], 2, {"NV4"}),
    "rtx4090_8_recabled_one_socket_ibp_names": (8, [1] * 8, 2, {"PIX", "NODE"}),
    "rtx5060ti_4_phb_with_p2p_matrix": (4, [0] * 4, 0, {"PHB"}),
    "rtx6000ada_4_epyc_2s_dualport_nic": (4, [0, 0, 1, 1], 4, {"NODE", "SYS"}),
    "rtx_4_nvbridge_pairs_1nic": (4, [0, 0, 1, 1], 1, {"NV4", "SYS"}),
    "rtxpro6000_4_vm_phb": (4, [0] * 4, 0, {"PHB"}),
    "threadripper_2gpu_phb_nic_node": (2, [0, 0], 2, {"PHB"}),
    "topo_and_nvlink": (2, [0, 0], 0, {"NV18"}),
    "two_gpu_visible_nic_remote_socket": (2, [0, 0], 2, {"NODE"}),
    "two_gpu_vm_phb_vllm_env": (2, [0, 0], 0, {"PHB"}),
    "v100_8_2021driver_numa_columns": (8, [0] * 4 + [1] * 4, 0, {"NV1", "NV2", "SYS"}),
}


@pytest.mark.parametrize(
    "path", sorted([*CORPUS.glob("topo/*.txt"), *CORPUS.glob("h200/topo*.txt")]), ids=lambda path: path.stem
)
def test_matrices_beside_the_checkout(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = from_matrix(path.read_text(), path.name)
    gpus, nodes, nics, between = KNOWN[path.stem]
    assert len(topology.gpus) == gpus
    assert [gpu.numa_node for gpu in topology.gpus] == list(nodes)
    assert len(topology.nics) == nics
    names = [gpu.name for gpu in topology.gpus]
    assert {topology.path(a, b) for a in names for b in names if a != b} - {None} == between
    assert main(["plan", "--topo", str(path), "--json", "train.py"], {"HOME": "/nobody"}) == 0
    ranks = json.loads(capsys.readouterr().out)["hosts"][0]["ranks"]
    assert [rank["binding"]["gpu_index"] for rank in ranks] == list(range(gpus))
    for gpu, binding in zip(topology.gpus, (rank["binding"] for rank in ranks), strict=True):
        bound = binding.get("cpus", [])
        assert set(bound) <= set(gpu.cpus)
        assert bool(bound) == bool(gpu.cpus and gpu.numa_node is not None), binding["why"]
        assert binding.get("memory_node") == (gpu.numa_node if bound else None)
        ways = {nic.name: topology.path(gpu.name, nic.name) for nic in topology.nics}
        best = min((nearness(way) for way in ways.values() if way), default=None)
        assert {nearness(ways[nic] or "") for nic in binding.get("nics", [])} <= {best}
    masks = [frozenset(rank["binding"].get("cpus", [])) for rank in ranks]
    assert all(not a & b or a == b for a in masks for b in masks), "ranks share a node's CPUs or have their own"
