"""What NCCL says it read and chose, against the plan."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nvrun.facts import HostFacts, Identity, RdmaPort, Software
from nvrun.model import EnvVar, Finding, Host, RankEnd, Severity
from nvrun.nccl.heard import Asked, Words, asked, differences, network, paired, process_of
from nvrun.nccl.log import read_log
from nvrun.plan import HostPlan, Plan, RankPlan

PYTHON = Software(python="3.11", executable="/usr/bin/python3")
PORTS = tuple(
    RdmaPort(device=device, port=1, link_layer=layer, state=state)
    for device, layer, state in (
        ("mlx5_0", "InfiniBand", "ACTIVE"),
        ("mlx5_1", "InfiniBand", "DOWN"),
        ("efa0", "Unspecified", "ACTIVE"),
    )
)


def plan(*hosts: str, ranks: int = 2, **given: str) -> Plan:
    """Two ranks a host, all with these variables."""
    env = tuple(EnvVar(name=name, value=value, source="--env") for name, value in given.items())
    return Plan(
        run_id="run", world_size=len(hosts) * ranks, rendezvous="static", master_addr=None, master_port=None,
        min_nodes=len(hosts), restarts=0, grace=30.0, lost_after=60.0,
        hosts=tuple(
            HostPlan(
                host=Host(name=name), node=node, cwd="/", folder="", argv=(), program=(), env=env,
                ranks=tuple(RankPlan(rank=node * ranks + local, local_rank=local) for local in range(ranks)),
            )
            for node, name in enumerate(hosts)
        ),
    )  # fmt: skip


def facts(host: str, **sections: object) -> HostFacts:
    identity = Identity(hostname=f"{host}-0.cluster", boot_id="b", machine_id="m")
    return HostFacts(host=host, software=PYTHON, identity=identity, env={}, conf_files={}, **sections)  # type: ignore[arg-type]


def judged(wanted: Mapping[str, str], *lines: str, whole: bool = True, used: str | None = None) -> list[Finding]:
    """What one rank's lines come to."""
    given = Asked(rank=3, host="a", variables=wanted, whole=whole, network=used)
    return differences([(given, process_of([f"NCCL INFO {line}" for line in lines], given))])


@pytest.mark.parametrize(
    ("wanted", "read", "code"),
    [
        ("4M", "4.", "nccl-value-read-differently"),
        ("010", "8.", "nccl-value-read-differently"),
        ("1e6", "1.", "nccl-value-read-differently"),
        ("true", "0.", "nccl-value-read-differently"),
        ("4194304", "8388608.", "nccl-value-set-in-job"),
        ("4194304", "4194304.", ""),
        (" 0x400000", "4194304.", ""),
        ("true", "1.", ""),
    ],
)
def test_a_number(wanted: str, read: str, code: str) -> None:
    found = judged({"NCCL_BUFFSIZE": wanted}, f"NCCL_BUFFSIZE set by environment to {read}")
    assert [each.code for each in found] == [code] * bool(code)
    for each in found:
        assert (each.subject, each.expected, each.host) == ("NCCL_BUFFSIZE", wanted, "a")
        assert each.message.endswith("(rank 3)")


@pytest.mark.parametrize(
    ("name", "wanted", "read", "same"),
    [
        ("NCCL_NET_GDR_LEVEL", "5", "SYS", True),
        ("NCCL_P2P_LEVEL", "PXB", "PXB", True),
        ("NCCL_P2P_LEVEL", "2", "PHB", False),
        ("NCCL_SOCKET_IFNAME", "=eth0", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", "lo", False),
        ("NCCL_ALGO", "ring", "Ring", True),
    ],
)
def test_a_word(name: str, wanted: str, read: str, same: bool) -> None:
    found = judged({name: wanted}, f"{name} set by environment to {read}")
    assert [each.code for each in found] == ([] if same else ["nccl-value-set-in-job"])


def test_what_nobody_set_is_told_where_that_is_known() -> None:
    line = "NCCL_CUMEM_ENABLE set by environment to 0."
    (finding,) = judged({}, line)
    assert (finding.code, finding.severity) == ("nccl-value-set-in-job", Severity.INFO)
    assert judged({}, line, whole=False) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default 4194304.", "NCCL_BUFFSIZE"),
        ("Invalid NCCL_NTHREADS 100 (must be a multiple of 32)", "NCCL_NTHREADS"),
        ("User asked for a minimum of 64 channels, limiting to 32", "NCCL_MIN_CTAS"),
        ("NCCL_MIN_CTAS 0 is too low, leaving it set at 1", "NCCL_MIN_CTAS"),
    ],
)
def test_a_value_that_nccl_does_not_take(line: str, name: str) -> None:
    (finding,) = judged({}, line, whole=False)
    assert (finding.code, finding.subject, finding.evidence) == ("nccl-value-rejected", name, (line,))


@pytest.mark.parametrize(
    ("given", "ports", "plugins", "expected"),
    [
        ({}, PORTS, (), "IB"),
        ({}, PORTS[1:], (), "Socket"),
        ({}, (), (), "Socket"),
        ({}, None, (), None),
        ({"NCCL_IB_DISABLE": "1"}, PORTS, (), "Socket"),
        ({"NCCL_IB_HCA": "=mlx5_1"}, PORTS, (), "Socket"),
        ({"NCCL_IB_HCA": "^mlx5_1"}, PORTS, (), "IB"),
        ({"NCCL_NET": "socket"}, PORTS, (), "Socket"),
        ({"NCCL_NET": "AWS Libfabric"}, PORTS, (), "AWS Libfabric"),
        ({}, PORTS, ("/opt/amazon/lib/libnccl-net-ofi.so",), "AWS Libfabric"),
        ({}, PORTS, ("/opt/hpcx/lib/libnccl-net.so",), None),
        ({"NCCL_NET_PLUGIN": "none"}, PORTS, ("/opt/hpcx/lib/libnccl-net.so",), "IB"),
    ],
)
def test_the_network_to_be_expected(
    given: Mapping[str, str], ports: tuple[RdmaPort, ...] | None, plugins: tuple[str, ...], expected: str | None
) -> None:
    software = Software(python="3.11", executable="python3", nccl_net_plugins=plugins)
    assert network(given, HostFacts(host="a", software=software, rdma=ports)) == expected


@pytest.mark.parametrize(
    ("expected", "used", "same"),
    [
        ("IB", "Socket", False),
        ("IB", "IBext_v8", True),
        ("AWS Libfabric", "Libfabric", True),
        ("AWS Libfabric", "Socket", False),
        ("Socket", "IB", False),
        (None, "Socket", True),
    ],
)
def test_the_network_that_is_used(expected: str | None, used: str, same: bool) -> None:
    found = judged({}, f"Using network {used}", used=expected)
    assert [each.code for each in found] == ([] if same else ["nccl-network-unexpected"])


def test_a_job_is_listened_to() -> None:
    made = plan("a", "b", NCCL_BUFFSIZE="4M", NCCL_IB_TIMEOUT="22")
    words = Words(asked(made, {0: facts("a", rdma=PORTS), 1: facts("b", rdma=PORTS)}, several=True))
    buffer = "NCCL INFO NCCL_BUFFSIZE set by environment to 4."
    assert words.hear(0, {"NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.": [0, 1]}) == []
    (finding,) = words.hear(0, {buffer: [0, 1], "NCCL INFO Using network IB": [0, 1]})
    assert finding.message == "NCCL_BUFFSIZE was set to '4M', but NCCL read '4' (ranks 0-1)"
    assert words.hear(0, {buffer: [0]}) == [], "said once"
    (finding,) = words.hear(1, {buffer: [1], "NCCL INFO Using network Socket": [1, 7]})
    assert (finding.code, finding.host) == ("nccl-network-unexpected", "b")
    values, used = words.findings()
    assert (values.host, values.message.rpartition(" (")[2]) == (None, "ranks 0-1,3)")
    assert (used.host, used.message.rpartition(" (")[2]) == ("b", "rank 3)")


def test_a_job_of_one_host_needs_no_network() -> None:
    words = Words(asked(plan("a"), {0: facts("a", rdma=PORTS)}, several=False))
    assert words.hear(0, {"NCCL INFO Using network Socket": [0, 1]}) == []


def test_the_hosts_own_variables_count() -> None:
    known = HostFacts(
        host="a", env={"NCCL_DEBUG": "WARN", "HOME": "/"}, conf_files={"/etc/nccl.conf": "NCCL_IB_SL=3\n"}
    )
    given = asked(plan("a", NCCL_IB_TC="106"), {0: known}, several=False)
    assert given[0, 1].variables == {"NCCL_DEBUG": "WARN", "NCCL_IB_SL": "3", "NCCL_IB_TC": "106"}


def test_processes_of_a_log_find_their_ranks() -> None:
    def init(rank: int, nranks: int) -> str:
        return f"comm 0x1 rank {rank} nranks {nranks} cudaDev 0 nvmlDev 0 busId 1b000 commId 0x2 - Init COMPLETE"

    made = plan("a", "b", NCCL_IB_TC="106")
    log = read_log(
        [
            "a-0:11:11 [0] NCCL INFO NCCL_IB_TC set by environment to 0.",
            f"b-0:22:22 [0] NCCL INFO {init(2, 4)}",
            f"b-0:23:23 [0] NCCL INFO {init(1, 2)}",
        ]
    )
    end = RankEnd(rank=1, host="a", local_rank=1, pid=11)
    pairs = list(paired(log, made, {host: facts(host) for host in ("a", "b")}, [end]))
    assert [(given.rank, given.host, bool(given.variables)) for given, _ in pairs] == [
        (1, "a", True),  # by its process id
        (2, "b", True),  # by its place among all ranks
        (1, "b", False),  # a place in a part of them tells nothing
    ]
    (finding,) = differences(pairs)
    assert (finding.code, finding.host) == ("nccl-value-set-in-job", "a")
    assert list(differences(paired(log, None, {}, []))) == []
