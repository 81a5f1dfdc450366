"""NCCL logs of several versions and prefixes, and what they show."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun.facts import Gpu, HostFacts, NvLink, RdmaPort
from nvrun.nccl.log import read_log
from nvrun.nccl.log_findings import log_findings
from nvrun.nccl.log_line import NOBODY, clean, cut_lines, read_lines, read_record
from nvrun.nccl.log_model import NcclLog

CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"

INIT = (
    "ncclCommInitRankConfig comm 0x1f{r} rank {r} nranks {n} cudaDev {r} nvmlDev {r} busId {r}b000 commId 0xabc - Init"
)


def log_of(rank: int, *messages: str, host: str = "gpu01", level: str = "INFO") -> list[str]:
    pid = 900 + rank
    return [f"{host}:{pid}:{pid + 50} [{rank}] NCCL {level} {message}" for message in messages]


def start(rank: int, size: int = 2) -> str:
    return INIT.format(r=rank, n=size) + " START"


def complete(rank: int, size: int = 2) -> str:
    return INIT.format(r=rank, n=size) + " COMPLETE"


def codes(lines: list[str], **given: object) -> list[str]:
    return [finding.code for finding in log_findings(read_log(lines), **given)]  # type: ignore[arg-type]


# --- one line


@pytest.mark.parametrize(
    "before", ["", "0: ", "[rank0]:", "[default3]:", "[1,0]<stderr>:", "gpu09:3 ", "(Worker pid=7) ", "12:30:01.5 "]
)
@pytest.mark.parametrize(
    ("form", "level", "where"),
    [
        ("gpu01:10:11 [2] NCCL INFO text", "INFO", ""),
        ("gpu01:10:11 [2] init.cc:900 NCCL WARN text", "WARN", "init.cc:900"),
        ("[2026-01-02 03:04:05] gpu01:10:11 [2] init.cc:900 NCCL WARN text", "WARN", "init.cc:900"),
        ("[2026-01-02 03:04:05] gpu01:10:11 [2] init.cc:900 (ncclInit) NCCL WARN text", "WARN", "init.cc:900"),
        ("gpu01:10:11 [2] int process(struct cq*):611 NCCL WARN text", "WARN", "int process(struct cq*):611"),
    ],
)
def test_every_form_of_prefix_is_read(before: str, form: str, level: str, where: str) -> None:
    record = read_record(before + form)
    assert record is not None
    assert (record.speaker.host, record.speaker.pid, record.speaker.tid, record.speaker.device) == ("gpu01", 10, 11, 2)
    assert (record.level, record.where, record.message) == (level, where, "text")


def test_lines_without_a_speaker() -> None:
    bare = read_record("NCCL INFO Using network IB")
    assert bare is not None
    assert bare.speaker == NOBODY
    version = read_record("NCCL version 2.27.5+cuda12.9")
    assert version is not None
    assert version.level == "VERSION"
    call = read_record("gpu01:10:11 NCCL CALL ncclGroupStart()")
    assert call is not None
    assert (call.speaker.host, call.speaker.device) == ("gpu01", None)
    assert read_record("step 12 loss 0.5") is None


def test_a_gigantic_line_is_cut_where_it_is_read() -> None:
    class Endless(io.RawIOBase):
        """64 MiB without a line end; remembers the largest piece it was asked for."""

        left = 64 << 20
        largest = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            count = min(len(buffer), self.left)
            self.largest = max(self.largest, count)
            buffer[:count] = b"x" * count
            self.left -= count
            return count

    raw = Endless()
    assert [len(line) for line in read_lines(io.BufferedReader(raw), limit=4096)] == [4096]
    assert raw.left == 0
    assert raw.largest <= 1 << 20
    assert list(read_lines(io.BytesIO(b"a\n" + b"b" * 5000 + b"\nc"), limit=10)) == [b"a\n", b"b" * 10, b"c"]
    assert list(cut_lines(["y" * 9000, b"z\r\n"], limit=100)) == [b"y" * 100, b"z"]


def test_escapes_never_reach_a_terminal() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07end\x1b[2J\x9b\x00") == "red end"


@given(st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=200)), max_size=20))
def test_noise_is_read_without_error(lines: list[bytes | str]) -> None:
    read_log(lines)
    for line in lines:
        if isinstance(line, str):
            assert "\x1b" not in clean(line)


@given(st.sampled_from(["Channel ", "comm 0x1 ", "NET/IB : Using ", "NCCL_X set by ", "Init timings "]), st.text())
def test_broken_lines_are_passed_over(word: str, rest: str) -> None:
    assert read_log([f"h:1:2 [0] NCCL INFO {word}{rest}"]).lines in (0, 1)


# --- whole logs


def test_a_modern_log_over_infiniband() -> None:
    lines = [
        *log_of(
            0,
            "Bootstrap: Using eth0:10.1.0.1<0>",
            "cudaDriverVersion 12080",
            "NCCL version 2.27.5+cuda12.9",
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.1.0.1<0>",
            "Using network IB",
            "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
            "DMA-BUF is available on GPU device 0",
            "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
            "NCCL_IB_TC set by environment to 106.",
            "NCCL_P2P_LEVEL set by environment to PXB",
            start(0),
            "comm 0x1f0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            "Channel 00/02 : 0 1",
            "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
            "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
            complete(0),
            "Init timings - ncclCommInitRankConfig: rank 0 nranks 2 total 1.25 (kernels 0.3, bootstrap 0.88)",
            "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA",
            "Channel 01/0 : 0[0] -> 1[1] [send] via NET/IB/1(1)/GDRDMA/Shared",
            "Connected all rings, use ring PXN 0 GDR 1",
        ),
        *log_of(1, start(1), complete(1), host="gpu02"),
    ]
    log = read_log(lines)
    first = log.processes[0]
    assert (first.host, first.rank, first.cuda_device, first.bus_id) == ("gpu01", 0, 0, "0b000")
    assert (first.network, first.bootstrap, first.version, first.cuda_driver) == (
        "IB",
        "eth0:10.1.0.1",
        "2.27.5+cuda12.9",
        12080,
    )
    assert first.hcas == ("mlx5_0:1/IB", "mlx5_3:1/IB")
    assert (first.relaxed_ordering, first.dma_buf, first.nvls) == (True, True, True)
    assert first.gdr_by_hca == {"mlx5_0": True}
    assert first.variables == {"NCCL_IB_TC": "106", "NCCL_P2P_LEVEL": "PXB"}
    (communicator,) = log.communicators
    assert (communicator.id, communicator.nranks, communicator.nodes) == ("0xabc", 2, 2)
    assert communicator.started == communicator.completed == (0, 1)
    assert communicator.hosts == ("gpu01", "gpu02")
    assert (communicator.rings, communicator.ring_order, communicator.trees) == (2, "0 1", 2)
    assert communicator.channels == {"coll": 2, "collnet": 2, "nvls": 0, "p2p": 2, "p2p per peer": 2}
    assert communicator.init_seconds == {0: 1.25}
    assert communicator.slowest_phase == "bootstrap 0.88"
    assert [(route.via, route.gdr, route.through_peer) for route in communicator.routes] == [
        ("NET/IB", True, False),
        ("NET/IB", True, True),
    ]
    assert log_findings(log) == []


@pytest.mark.parametrize(
    ("via", "transport", "gdr"),
    [
        ("P2P/CUMEM/read", "P2P/CUMEM", None),
        ("P2P/IPC", "P2P/IPC", None),
        ("P2P/direct pointer", "P2P/direct", None),
        ("P2P/MNNVL", "P2P/MNNVL", None),
        ("P2P/indirect/4[4]", "P2P/indirect", None),
        ("SHM/direct/direct", "SHM", None),
        ("direct shared memory", "SHM", None),
        ("NET/Socket/0", "NET/Socket", False),
        ("NET/AWS Libfabric/0/GDRDMA", "NET/AWS Libfabric", True),
        ("NET/IB/3/GDRDMA(PCI)/Shared", "NET/IB", True),
    ],
)
def test_transports(via: str, transport: str, gdr: bool | None) -> None:
    log = read_log(log_of(0, f"Channel 00 : 3[8a000] -> 4[1a000] [send] via {via}"))
    (communicator,) = log.communicators
    (route,) = communicator.routes
    assert (route.source, route.target, route.via, route.gdr) == (3, 4, transport, gdr)


def test_an_old_log_names_its_communicator_late() -> None:
    log = read_log(
        [
            "NCCL version 2.10.3+cuda11.3",
            *log_of(
                0,
                "Channel 00 : 0[1a000] -> 1[1c000] via P2P/IPC",
                "comm 0x14 rank 0 nranks 4 cudaDev 0 busId 1a000 - Init COMPLETE",
            ),
        ]
    )
    (communicator,) = log.communicators
    assert (communicator.id, communicator.completed, communicator.routes[0].via) == ("nranks 4", (0,), "P2P/IPC")
    assert log.versions == ("2.10.3+cuda11.3",)
    assert len(log.processes) == 1


def test_several_communicators_of_one_process_keep_their_routes() -> None:
    second = start(0, 4).replace("0xabc", "0xdef")
    log = read_log(
        log_of(
            0,
            start(0),
            "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
            second,
            "Channel 00/0 : 0[0] -> 3[3] [send] via NET/IB/0/GDRDMA",
        )
    )
    assert {c.id: [r.via for r in c.routes] for c in log.communicators} == {"0xabc": ["P2P/CUMEM"], "0xdef": ["NET/IB"]}
    assert log.processes[0].rank == 0


def test_warnings_are_counted_by_kind() -> None:
    lines = log_of(0, *[f"Call to connect to 10.0.0.{i} failed" for i in range(50)], level="WARN")
    (warning,) = read_log(lines).warnings
    assert (warning.times, warning.message) == (50, "Call to connect to 10.0.0.0 failed")


# --- findings


def facts(host: str = "gpu01", **sections: object) -> dict[str, HostFacts]:
    return {host: HostFacts(host=host, **sections)}  # type: ignore[arg-type]


ACTIVE_PORT = (RdmaPort(device="mlx5_0", port=1, link_layer="InfiniBand", state="ACTIVE"),)
ACROSS = [*log_of(0, "Using network Socket", start(0)), *log_of(1, "Using network Socket", start(1), host="gpu02")]
DONE = [*log_of(0, complete(0)), *log_of(1, complete(1), host="gpu02")]


def test_sockets_count_only_beside_rdma_and_between_hosts() -> None:
    assert codes([*ACROSS, *DONE]) == []
    assert codes([*ACROSS, *DONE], facts=facts(rdma=ACTIVE_PORT)) == ["nccl-sockets-beside-rdma"]
    assert codes([*ACROSS, *DONE], facts=facts(rdma=())) == []
    alone = log_of(0, "Using network Socket", start(0, 1), complete(0, 1))
    assert codes(alone, facts=facts(rdma=ACTIVE_PORT)) == []


def test_different_networks_and_versions() -> None:
    mixed = [
        *log_of(0, "Using network IB", "NCCL version 2.27.5"),
        *log_of(1, "Using network Socket", "NCCL version 2.26.2"),
    ]
    assert codes(mixed) == ["nccl-networks-differ", "nccl-versions-differ"]


def test_gdr_off_tells_why() -> None:
    route = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0"
    (finding,) = log_findings(read_log(log_of(0, route, "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")))
    assert finding.code == "nccl-gdr-off"
    assert "mlx5_0" in finding.message
    (finding,) = log_findings(read_log(log_of(0, route, "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'")))
    assert "too far apart" in finding.message


def test_shared_memory_is_a_finding_only_beside_nvlink() -> None:
    lines = log_of(0, "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")
    linked = Gpu(index=0, uuid="GPU-0", name="H100", pci="0000:1b:00.0", nvlinks=(NvLink(link=0, active=True),))
    assert codes(lines) == []
    assert codes(lines, facts=facts(gpus=(linked,))) == ["nccl-shm-beside-nvlink"]
    assert codes(lines, facts=facts(gpus=(Gpu(index=0, uuid="GPU-0", name="L4", pci="0000:1b:00.0"),))) == []


def test_an_init_that_never_ended_names_who_is_missing() -> None:
    (finding,) = log_findings(read_log([*log_of(0, start(0, 4)), *log_of(2, start(2, 4))]))
    assert finding.code == "nccl-init-incomplete"
    assert finding.subject == "ranks 1, 3"
    (finding,) = log_findings(read_log([*log_of(0, start(0), complete(0)), *log_of(1, start(1))]))
    assert finding.subject == "rank 1"


def test_hosts_with_one_identity() -> None:
    size = "comm 0x1f0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"
    assert codes([*ACROSS, *log_of(0, size), *DONE]) == ["nccl-hosts-taken-for-one"]


def test_bootstrap_over_docker0_between_hosts() -> None:
    assert codes([*ACROSS, *log_of(0, "Bootstrap : Using docker0:172.17.0.1<0>"), *DONE]) == ["nccl-virtual-interface"]


def test_a_slow_init() -> None:
    slow = "Init timings - ncclCommInitRank: rank 0 nranks 1 total 61.00 (kernels 0.30, bootstrap 60.20, rest 0.50)"
    (finding,) = log_findings(read_log(log_of(0, start(0, 1), complete(0, 1), slow)))
    assert finding.code == "nccl-init-slow"
    assert "bootstrap 60.20" in finding.message


def read_recorded(name: str) -> NcclLog:
    with (Path(__file__).parent / "logs" / name).open("rb") as stream:
        return read_log(read_lines(stream))


def test_a_recorded_log_of_two_gpus_over_nvlink() -> None:
    """Two H200 of one machine, torch 2.11, NCCL 2.28.9 (2026-11-29)."""
    log = read_recorded("one_host_nvlink.log")
    assert [(each.rank, each.version, each.bus_id) for each in log.processes] == [
        (0, "2.28.9+cuda13.0", "60"),
        (1, "2.28.9+cuda13.0", "70"),
    ]
    assert all(each.variables["NCCL_NVLS_ENABLE"] == "0" for each in log.processes), "the user's word"
    (communicator,) = log.communicators
    assert (communicator.nranks, communicator.nodes, communicator.rings) == (2, 1, 24)
    assert communicator.channels["coll"] == 24
    assert communicator.channels["nvls"] == 0
    assert {route.via for route in communicator.routes} == {"P2P/CUMEM"}
    assert log_findings(log) == []


def test_a_recorded_log_over_sockets() -> None:
    """The same two as two hosts, the first one's rank: two channels, where 8 with more sockets gave six times as much
    bandwidth."""
    log = read_recorded("two_hosts_sockets.log")
    (process,) = log.processes
    assert (process.host, process.network, process.variables["NCCL_SOCKET_IFNAME"]) == ("one", "Socket", "=in1")
    (communicator,) = log.communicators
    assert (communicator.nodes, communicator.channels["coll"]) == (2, 2)
    assert {(route.via, route.gdr) for route in communicator.routes} == {("NET/Socket", False)}


@pytest.mark.skipif(not CORPUS.exists(), reason="no corpus beside the checkout")
@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("h200/nccl_*.log")) + sorted(CORPUS.glob("nccl/ok_*.txt")), ids=lambda p: p.stem
)
def test_recorded_logs_are_read(path: Path) -> None:
    with path.open("rb") as stream:
        log = read_log(read_lines(stream))
    assert log.lines > 0
    # excerpts may end in the middle of an init, and some of these machines have no GPUDirect RDMA
    assert {finding.code for finding in log_findings(log)} <= {"nccl-gdr-off", "nccl-init-incomplete"}


SPLIT = (
    "ncclCommSplit comm 0x7{r}{c} rank {own} nranks 2 cudaDev {r} nvmlDev {r} busId {r}b000 parent 0x1f{r} {count} {c}"
    " color {color} key {own}"
)


def split(rank: int, own: int, color: int, what: str, *, count: str = "splitCount", number: int = 1) -> str:
    """NCCL prints no blank before `- Init START` of a split, and one before `- Init COMPLETE` (2.23 to 2.30)."""
    text = SPLIT.format(r=rank, own=own, c=number, color=color, count=count)
    return f"{text}- Init START" if what == "START" else f"{text} - Init COMPLETE"


@pytest.mark.parametrize("count", ["splitCount", "childCount"])
def test_groups_split_from_one_communicator_are_told_apart(count: str) -> None:
    """Tensor-parallel groups are of one size: the one that hangs must not hide behind one that is complete."""
    lines = []
    for rank in range(4):
        color, own = divmod(rank, 2)
        lines += log_of(rank, start(rank, 4), complete(rank, 4), split(rank, own, color, "START", count=count))
        if color == 0:
            lines += log_of(rank, split(rank, own, color, "COMPLETE", count=count))
    log = read_log(lines)
    assert [(one.id, one.started, one.completed) for one in log.communicators] == [
        ("0xabc", (0, 1, 2, 3), (0, 1, 2, 3)),
        ("0xabc split 1 color 0", (0, 1), (0, 1)),
        ("0xabc split 1 color 1", (0, 1), ()),
    ]
    assert codes(lines) == ["nccl-init-incomplete"]


def test_an_abort_is_that_of_its_own_communicator() -> None:
    lines = log_of(0, start(0), complete(0), split(0, 0, 7, "START"), split(0, 0, 7, "COMPLETE"))
    lines += log_of(0, "comm 0x1f0 rank 0 nranks 2 cudaDev 0 busId 0b000 - Abort COMPLETE")
    world, group = read_log(lines).communicators
    assert (world.aborted, group.aborted) == ((0,), ())


def test_an_id_behind_the_parents_address_is_read() -> None:
    line = (
        "ncclCommSplit comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x44 color 3 key 0"
        " commId 0x9 - Init START"
    )
    (one,) = read_log(log_of(0, line)).communicators
    assert (one.id, one.started) == ("split color 3", (0,))


def test_versions_are_one_whatever_cuda_they_were_built_with() -> None:
    both = [f"gpu0{n}:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.{n}" for n in (8, 9)]
    assert "nccl-versions-differ" not in codes(both)
    assert "nccl-versions-differ" in codes([*both, "gpu03:1:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.8"])


def test_a_communicator_that_grew_is_complete_where_it_began() -> None:
    """2.29: it begins with an id, and is complete with its parent's address."""
    grow = "ncclCommGrow comm 0x66 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000"
    lines = log_of(0, f"[Rank 0] {grow} commId 0x9 - Init START")
    lines += log_of(0, f"{grow} parent 0x44 childCount 2 color 0 key 0 - Init COMPLETE")
    (one,) = read_log(lines).communicators
    assert (one.id, one.started, one.completed) == ("0x9", (0,), (0,))


@pytest.mark.parametrize(
    ("devices", "hcas"),
    [
        ("[0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eno1:10.0.0.2<0>", ("mlx5_0:1/IB", "mlx5_3:1/IB")),
        ("[0]mlx5_0:1/RoCE [1]mlx5_bond_0:1/RoCE [RO]; OOB bond0:10.0.0.2<0>", ("mlx5_0:1/RoCE", "mlx5_bond_0:1/RoCE")),
        ("[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [2]rocep9s0:2/RoCE [RO]; OOB eth0:10.0.0.2<0>",
         ("mlx5_0:1/RoCE", "mlx5_1:1/RoCE", "rocep9s0:2/RoCE")),
        ("[0]mlx5_0:1/IB/SHARP [1]mlx5_3:1/IB/SHARP ; OOB ib0:10.0.0.2<0>", ("mlx5_0:1/IB", "mlx5_3:1/IB")),
        ("[0]bnxt_re0:1/RoCE [RO]; OOB eth0:fe80::1%eth0<0>", ("bnxt_re0:1/RoCE",)),
    ],
)  # fmt: skip
def test_the_devices_that_nccl_uses(devices: str, hcas: tuple[str, ...]) -> None:
    (process,) = read_log(log_of(0, f"NET/IB : Using {devices}")).processes
    assert process.hcas == hcas
    assert process.relaxed_ordering == ("[RO]" in devices)
