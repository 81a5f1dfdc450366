"""Where ranks are put on machines of all kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.bindfile import read_table
from nvrun.binding import Bound, bind, omp_threads
from nvrun.errors import UsageError
from nvrun.facts import Cpu, Cpus, Gpu, HostFacts, NumaNode, Software
from nvrun.model import Binding, Severity
from nvrun.numactl import Placement, prefix


def machine(
    gpu_nodes: Sequence[int | None] = (),
    *,
    nodes: int = 2,
    cores: int = 8,
    smt: int = 2,
    nodes_per_socket: int = 1,
    allowed: Sequence[int] | None = None,
    allowed_nodes: Sequence[int] = (),
    without_cpus: Sequence[int] = (),
    mig: Mapping[int, tuple[str, ...]] | None = None,
    names: Sequence[str] | None = None,
    numactl: str | None = "/usr/bin/numactl",
    mempolicy: bool | None = True,
) -> HostFacts:
    """A host of `nodes` NUMA nodes with `cores` cores each, numbered as Linux does: SMT siblings last."""
    with_cpus = [node for node in range(nodes) if node not in without_cpus]
    total = len(with_cpus) * cores
    online = tuple(
        Cpu(
            cpu=thread * total + core,
            core=tuple(t * total + core for t in range(smt)),
            node=with_cpus[core // cores],
            package=with_cpus[core // cores] // nodes_per_socket,
        )
        for thread in range(smt)
        for core in range(total)
    )
    numa = tuple(
        NumaNode(
            node=node,
            cpus=tuple(cpu.cpu for cpu in online if cpu.node == node),
            memory_total=1 << 36,
            distances={
                other: 10 if other == node else 12 if other // nodes_per_socket == node // nodes_per_socket else 32
                for other in range(nodes)
            },
        )
        for node in range(nodes)
    )
    gpus = tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{index}aaa",
            name=names[index] if names else "NVIDIA H100",
            pci=f"0000:{index:02x}:00.0",
            numa_node=node,
            mig=(mig or {}).get(index),
        )
        for index, node in enumerate(gpu_nodes)
    )
    return HostFacts(
        host="a",
        gpus=gpus,
        cpus=Cpus(
            online=online,
            allowed=tuple(allowed if allowed is not None else (cpu.cpu for cpu in online)),
            allowed_nodes=tuple(allowed_nodes or range(nodes)),
        ),
        numa=numa,
        software=Software(python="3.11.7", executable="/usr/bin/python3", numactl=numactl, mempolicy_allowed=mempolicy),
        env={},
    )


def cpus_of(bound: Bound) -> list[tuple[int, ...]]:
    return [binding.cpus for binding in bound.bindings]


def codes(bound: Bound) -> list[str]:
    return [finding.code for finding in bound.findings]


def test_ranks_share_out_the_cores_of_their_gpus_node() -> None:
    bound = bind(machine([0, 0, 1, 1]), local_ranks=4)
    assert cpus_of(bound) == [
        (0, 1, 2, 3, 16, 17, 18, 19),
        (4, 5, 6, 7, 20, 21, 22, 23),
        (8, 9, 10, 11, 24, 25, 26, 27),
        (12, 13, 14, 15, 28, 29, 30, 31),
    ]
    assert [binding.memory_node for binding in bound.bindings] == [0, 0, 1, 1]
    assert [binding.gpu for binding in bound.bindings] == ["GPU-0aaa", "GPU-1aaa", "GPU-2aaa", "GPU-3aaa"]
    assert not bound.findings


def test_gpus_in_reverse_numa_order() -> None:
    bound = bind(machine([3, 2, 1, 0], nodes=4, nodes_per_socket=4), local_ranks=4)
    assert [binding.memory_node for binding in bound.bindings] == [3, 2, 1, 0]
    assert cpus_of(bound)[0][:2] == (24, 25)


def test_a_single_rank_gets_the_whole_node() -> None:
    assert cpus_of(bind(machine([0, 0, 1, 1]), local_ranks=1)) == [(*range(8), *range(16, 24))]


def test_only_the_allowed_cpus_count() -> None:
    bound = bind(machine([0, 0, 1, 1], allowed=[0, 1, 2, 3, 8, 9, 10, 11, 12]), local_ranks=4)
    assert cpus_of(bound) == [(0, 1), (2, 3), (8, 9, 10), (11, 12)]


def test_a_node_outside_the_cpuset_falls_back_to_the_nearest_and_says_so() -> None:
    bound = bind(machine([0, 1], allowed=range(8, 16)), local_ranks=2)
    assert cpus_of(bound) == [(8, 9, 10, 11), (12, 13, 14, 15)]
    assert codes(bound) == ["gpu-node-without-cpus"]
    assert "nearest node 1 instead" in bound.bindings[0].why
    assert bound.bindings[0].memory_node == 1


def test_ranks_whose_gpus_are_on_other_nodes_share_all_that_is_allowed() -> None:
    """Slurm packs a job's CPUs on the first nodes: of nodes equally near none is left idle, and none is crowded."""
    facts = machine([3, 3, 1, 1, 7, 7, 5, 5], nodes=8, cores=16, smt=1, nodes_per_socket=4, allowed=range(32))
    assert [len(cpus) for cpus in cpus_of(bind(facts, local_ranks=8))] == [4] * 8
    assert sorted(cpu for cpus in cpus_of(bind(facts, local_ranks=8)) for cpu in cpus) == list(range(32))


def test_a_gpu_on_a_node_without_cpus_goes_to_the_nearest_node() -> None:
    bound = bind(machine([2], nodes=4, nodes_per_socket=2, without_cpus=[2]), local_ranks=1)
    assert cpus_of(bound) == [(16, 17, 18, 19, 20, 21, 22, 23, *range(40, 48))]
    assert bound.bindings[0].memory_node == 3


def test_unknown_numa_node_is_not_bound() -> None:
    bound = bind(machine([None, 0]), local_ranks=2)
    assert bound.bindings[0].cpus == ()
    assert bound.bindings[0].memory == ""
    assert "not known" in bound.bindings[0].why
    assert bound.bindings[1].cpus
    assert codes(bound) == ["gpu-node-unknown"]
    assert not bind(machine([None], nodes=1), local_ranks=1).findings


def test_nps4_is_widened_to_the_socket() -> None:
    facts = machine([3, 3, 1, 1, 7, 7, 5, 5], nodes=8, cores=16, nodes_per_socket=4)
    bound = bind(facts, local_ranks=8)
    assert all(len(cpus) == 32 for cpus in cpus_of(bound))
    assert sorted(cpu for cpus in cpus_of(bound) for cpu in cpus) == list(range(256))
    assert all("widened to node" in binding.why for binding in bound.bindings)
    assert bound.bindings[1].why == (
        "GPU 1 is on NUMA node 3; widened to node 2 of the same socket, which has no GPU; "
        "32 cores shared out among 2 ranks"
    )
    own = {cpu for cpu in bound.bindings[0].cpus if 48 <= cpu % 128 < 64}
    assert len(own) == 16  # each rank has its part of the GPU's own node
    assert bound.bindings[0].memory_node == 3


def test_socket_has_all_its_cpus_in_common() -> None:
    bound = bind(machine([0, 1, 2, 3], nodes=4, nodes_per_socket=2), local_ranks=4, mode="socket")
    assert cpus_of(bound)[0] == cpus_of(bound)[1] == (*range(16), *range(32, 48))
    assert cpus_of(bound)[2] == cpus_of(bound)[3]


def test_too_few_cores_are_shared_and_exclusive_refuses() -> None:
    facts = machine([0, 0, 0], nodes=1, cores=2)
    assert cpus_of(bind(facts, local_ranks=3)) == [(0, 1, 2, 3)] * 3
    refused = bind(facts, local_ranks=3, mode="exclusive")
    assert [(f.code, f.severity) for f in refused.findings] == [("too-few-cores", Severity.ERROR)]
    assert cpus_of(bind(machine([0, 0], nodes=1, cores=2), local_ranks=2, mode="exclusive")) == [(0, 2), (1, 3)]


def test_more_ranks_than_gpus_is_an_error() -> None:
    bound = bind(machine([0, 1]), local_ranks=3)
    assert [(f.code, f.severity) for f in bound.findings] == [("more-ranks-than-gpus", Severity.ERROR)]
    assert bound.bindings[2].gpu is None
    assert bound.bindings[2].cpus == ()
    assert not bind(machine([0, 1]), local_ranks=3, env={"CUDA_VISIBLE_DEVICES": ""}).findings


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("1,0", ["GPU-1aaa", "GPU-0aaa"]),
        ("GPU-2,GPU-1aaa", ["GPU-2aaa", "GPU-1aaa"]),
        (" 3 ,2", ["GPU-3aaa", "GPU-2aaa"]),
        ("2,-1,3", ["GPU-2aaa"]),
        ("0,9,1", ["GPU-0aaa"]),
        ("GPU-", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("", []),
    ],
)
def test_visible_devices(value: str, gpus: list[str]) -> None:
    bound = bind(machine([0, 0, 1, 1]), local_ranks=max(len(gpus), 1), env={"CUDA_VISIBLE_DEVICES": value})
    assert [binding.gpu for binding in bound.bindings if binding.gpu] == gpus


def test_an_invalid_entry_is_said() -> None:
    bound = bind(machine([0, 1]), local_ranks=1, env={"CUDA_VISIBLE_DEVICES": "0,9"})
    assert bound.findings[0].message == (
        "CUDA_VISIBLE_DEVICES=0,9: index 9 is beyond the 2 GPUs of this host; CUDA stops there and sees 1 device"
    )


def test_fastest_first_with_unlike_gpus_is_unknown() -> None:
    env = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    mixed = machine([0, 1], names=["NVIDIA T4", "NVIDIA A100"])
    assert bind(mixed, local_ranks=1, env=env).bindings[0].gpu is None
    assert "FASTEST_FIRST" in bind(mixed, local_ranks=1, env=env).bindings[0].why
    by_uuid = bind(mixed, local_ranks=1, env=env | {"CUDA_VISIBLE_DEVICES": "GPU-1aaa"})
    assert by_uuid.bindings[0].gpu == "GPU-1aaa"
    assert bind(machine([0, 1]), local_ranks=1, env=env).bindings[0].gpu == "GPU-0aaa"


def test_mig() -> None:
    facts = machine([0, 1], mig={1: ("MIG-x1", "MIG-x2")})
    alone = bind(facts, local_ranks=1)
    assert (alone.bindings[0].gpu, alone.bindings[0].gpu_index, alone.bindings[0].memory_node) == ("MIG-x1", 1, 1)
    env = {"CUDA_VISIBLE_DEVICES": "MIG-x2,MIG-x1"}
    both = bind(facts, local_ranks=2, env=env)
    assert codes(both) == ["mig-one-instance", "more-ranks-than-gpus"]
    apart = bind(facts, local_ranks=2, env=env, virtual_local_rank=True)
    assert [binding.gpu for binding in apart.bindings] == ["MIG-x2", "MIG-x1"]
    assert not apart.findings
    assert bind(machine([0], mig={0: ()}), local_ranks=1).bindings[0].gpu is None


def test_ranks_without_gpus() -> None:
    spread = bind(machine([]), local_ranks=4)
    assert [binding.memory_node for binding in spread.bindings] == [0, 0, 1, 1]
    assert len({cpu for cpus in cpus_of(spread) for cpu in cpus}) == 32
    straddling = bind(machine([]), local_ranks=3)
    assert [binding.memory_node for binding in straddling.bindings] == [0, None, 1]
    assert straddling.bindings[1].memory == ""
    for facts, ranks in ((machine([], nodes=1), 2), (machine([]), 1)):
        assert set(cpus_of(bind(facts, local_ranks=ranks))) == {()}


def test_no_ranks() -> None:
    assert bind(machine([]), local_ranks=0).bindings == ()
    assert bind(machine([0]), local_ranks=0).bindings == ()


def test_gpus_that_could_not_be_read_are_not_taken_for_none() -> None:
    facts = HostFacts(
        host="a", gpus=None, gpus_on_pci=("0000:01:00.0",), cpus=machine().cpus, numa=machine().numa,
        missing={"gpus": "NVML: driver not loaded"},
    )  # fmt: skip
    assert bind(facts, local_ranks=2).bindings[0].why == "not bound: NVML: driver not loaded"


def test_unread_cpus_bind_nothing() -> None:
    facts = HostFacts(host="a", gpus=machine([0]).gpus, missing={"cpus": "/proc is not mounted"})
    binding = bind(facts, local_ranks=1).bindings[0]
    assert binding.cpus == ()
    assert binding.gpu == "GPU-0aaa"
    assert "/proc is not mounted" in binding.why


def test_memory() -> None:
    facts = machine([0, 1], allowed_nodes=[0])
    preferred = bind(facts, local_ranks=2)
    assert [(b.memory_node, b.memory) for b in preferred.bindings] == [(0, "preferred"), (None, "")]
    assert not preferred.findings
    strict = bind(facts, local_ranks=2, memory="strict")
    assert [(f.code, f.severity, f.subject) for f in strict.findings] == [
        ("memory-node-refused", Severity.ERROR, "NUMA node 1")
    ]
    local = bind(facts, local_ranks=2, memory="local")
    assert [(b.memory_node, b.memory) for b in local.bindings] == [(None, "local"), (None, "local")]


def test_mode_none_still_names_the_gpu() -> None:
    binding = bind(machine([0]), local_ranks=1, mode="none").bindings[0]
    assert (binding.gpu, binding.cpus, binding.memory, binding.why) == ("GPU-0aaa", (), "", "--bind none")


def test_binding_file() -> None:
    table = read_table("# rank cpus node\n0 0-3,16-19 0\n\n1 8-11  # the other socket\n", "bind.txt")
    bound = bind(machine([0, 1]), local_ranks=2, table=table)
    assert cpus_of(bound) == [(0, 1, 2, 3, 16, 17, 18, 19), (8, 9, 10, 11)]
    assert [binding.memory_node for binding in bound.bindings] == [0, None]
    wrong = bind(machine([0, 1], allowed=[0, 1, 2]), local_ranks=3, table=table)
    assert [f.severity for f in wrong.findings if f.code == "bind-file-wrong"] == [Severity.ERROR] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0-3\n0 4-7", "f:2: local rank 0 is already given in line 1"),
        ("zero 0-3", "f:1: expected LOCAL_RANK"),
        ("0", "f:1: expected LOCAL_RANK"),
        ("0 3-0", "'3-0' is not a CPU number or a range"),
        ("0 0-3 0 0", "f:1: expected LOCAL_RANK"),
        ("", "f: no line gives a local rank"),
    ],
)
def test_binding_file_errors_name_the_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_table(text, "f")


@given(st.text(alphabet="0123456789-, #\nax", max_size=60))
def test_no_binding_file_is_a_traceback(text: str) -> None:
    try:
        rows = read_table(text, "f")
    except UsageError:
        return
    assert all(row.cpus for row in rows.values())


@given(
    gpu_nodes=st.lists(st.integers(0, 3) | st.none(), max_size=9),
    cores=st.integers(1, 9),
    smt=st.integers(1, 2),
    nodes_per_socket=st.sampled_from([1, 2, 4]),
    ranks=st.integers(1, 9),
    mode=st.sampled_from(["node", "socket", "exclusive"]),
    data=st.data(),
)
def test_bindings_hold_together(
    gpu_nodes: list[int | None],
    cores: int,
    smt: int,
    nodes_per_socket: int,
    ranks: int,
    mode: Literal["node", "socket", "exclusive"],
    data: st.DataObject,
) -> None:
    every = range(4 * cores * smt)
    allowed = data.draw(st.sets(st.sampled_from(every), min_size=1))
    facts = machine(
        gpu_nodes, nodes=4, cores=cores, smt=smt, nodes_per_socket=nodes_per_socket, allowed=sorted(allowed)
    )
    bound = bind(facts, local_ranks=ranks, mode=mode)
    masks = [set(binding.cpus) for binding in bound.bindings]
    assert all(mask <= allowed for mask in masks)
    assert all(binding.why for binding in bound.bindings)
    siblings = {cpu.cpu: allowed & set(cpu.core) for cpu in facts.cpus.online} if facts.cpus else {}
    assert all(siblings[cpu] <= mask for mask in masks for cpu in mask)
    for one in masks:
        for other in masks:  # the same CPUs, or none in common
            assert one == other or not one & other
    for binding in bound.bindings:
        gpu = next((gpu for gpu in facts.gpus or () if gpu.uuid == binding.gpu), None)
        if gpu is not None and gpu.numa_node is not None:
            assert binding.cpus, "a known node always gives CPUs"


def rank_of(cpus: Sequence[int], node: int | None, memory: Literal["", "preferred", "strict", "local"]) -> Binding:
    return Binding(local_rank=0, cpus=tuple(cpus), memory_node=node, memory=memory)


@pytest.mark.parametrize(
    ("binding", "argv"),
    [
        (rank_of([0, 1, 2, 16, 17, 18], 0, "preferred"), ("--physcpubind=0-2,16-18", "--preferred=0")),
        (rank_of([0], 1, "strict"), ("--physcpubind=0", "--membind=1")),
        (rank_of([0, 2], None, "local"), ("--physcpubind=0,2", "--localalloc")),
        (rank_of([5], None, ""), ("--physcpubind=5",)),
    ],
)
def test_prefix(binding: Binding, argv: tuple[str, ...]) -> None:
    assert prefix(binding, machine()) == Placement(argv=("/usr/bin/numactl", "--all", *argv))


def test_prefix_falls_back_to_affinity_and_says_what_is_missing() -> None:
    bound = rank_of([0, 1], 0, "preferred")
    absent = prefix(bound, machine(numactl=None))
    assert absent == Placement(affinity=(0, 1), missing="no memory policy is set: numactl is not installed there")
    assert "forbidden" in prefix(bound, machine(mempolicy=False)).missing
    assert "could not be read" in prefix(bound, machine(mempolicy=None)).missing
    assert "could not be read" in prefix(bound, HostFacts(host="a")).missing
    assert prefix(rank_of([0], None, ""), machine(numactl=None)) == Placement(affinity=(0,))
    assert prefix(rank_of([], None, ""), machine()) == Placement()


def test_omp_threads_are_the_cores_of_the_rank() -> None:
    facts = machine([0, 0, None])
    assert [omp_threads(binding, facts) for binding in bind(facts, local_ranks=3).bindings] == [4, 4, None]
