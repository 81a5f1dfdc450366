"""What a plan gets from the facts: variables that the host had otherwise are told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from nvrun import config
from nvrun.facts import Gid, HostFacts, RdmaPort, Software, from_json
from nvrun.model import EnvVar, Host
from nvrun.placement import Wishes, place
from nvrun.plan import Plan, Site, build

DATA = Path(__file__).parent / "data" / "facts"


def plan(*forwarded: EnvVar) -> Plan:
    args = config.parse(["--nproc-per-node", "1", "train.py"], {}).torchrun
    site = Site(host=Host(name="b"), ranks=1, python="python3", folder="", forwarded=forwarded)
    return build(run_id="r", args=args, sites=[site], cwd="/", fleet=True, master_port=29500, grace=30, lost_after=300)


def test_a_value_that_travels_over_the_hosts_own_is_told() -> None:
    known = HostFacts(host="b", own_env={"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "LD_LIBRARY_PATH": "/opt/lib"})
    travelled = [
        EnvVar(name="NCCL_DEBUG", value="INFO", source="forwarded"),
        EnvVar(name="NCCL_ALGO", value="Ring", source="forwarded"),
        EnvVar(name="LD_LIBRARY_PATH", value="/home/lib", source="forwarded"),
        EnvVar(name="NCCL_PROTO", value="LL", source="forwarded"),
    ]
    args = config.parse(["--nproc-per-node", "1", "train.py"], {}).torchrun
    placed = place(plan(*travelled), {0: known}, Wishes(args=args))
    found = {
        finding.subject: (finding.severity.label, finding.observed, finding.expected)
        for finding in placed.findings
        if finding.code == "env-forwarded-over"
    }
    assert found == {
        "NCCL_DEBUG": ("warning", "WARN", "INFO"),
        "LD_LIBRARY_PATH": ("info", "/opt/lib", "/home/lib"),
    }


@pytest.mark.parametrize(
    ("flags", "env", "hint"),
    [
        ([], {}, True),
        (["--nproc-per-node", "1"], {}, False),
        ([], {"CUDA_VISIBLE_DEVICES": "3"}, False),
    ],
)
def test_one_rank_that_nobody_asked_for_beside_many_gpus_is_told(
    flags: list[str], env: dict[str, str], hint: bool
) -> None:
    (known,) = from_json((DATA / "h100x8.json").read_bytes())
    args = config.parse([*flags, "train.py"], {}).torchrun
    site = Site(host=Host(name="n"), ranks=1, python="python3", folder="")
    made = build(run_id="r", args=args, sites=[site], cwd="/", fleet=False, master_port=None, grace=30, lost_after=300)
    placed = place(made, {0: msgspec.structs.replace(known, env=env)}, Wishes(args=args))
    told = "n: 1 rank, torchrun's default, but 8 GPUs: --nproc-per-node gpu uses all of them"
    assert (told in placed.notices) is hint


def on(machine: str, *flags: str, env: Sequence[EnvVar] = ()) -> Plan:
    """The plan for one recorded machine with all its GPUs."""
    (known,) = from_json((DATA / f"{machine}.json").read_bytes())
    invocation = config.parse(["--nproc-per-node", str(len(known.gpus or ()) or 2), *flags, "train.py"], {})
    site = Site(host=Host(name=known.host), ranks=len(known.gpus or ()) or 2, python="python3", folder="")
    made = build(run_id="r", args=invocation.torchrun, sites=[site], cwd="/", fleet=True, master_port=29500, env=env,
                 grace=30, lost_after=300)  # fmt: skip
    options = invocation.options
    wishes = Wishes(args=invocation.torchrun, memory=options.bind_memory, omp=options.omp, gpu_order=options.gpu_order,
                    env=tuple(env))  # fmt: skip
    return place(made, {0: known}, wishes).plan


def test_omp_auto_gives_a_rank_its_cores_and_the_users_number_holds() -> None:
    ranks = on("h100x8", "--omp", "auto").hosts[0].ranks
    threads = [variable.value for rank in ranks for variable in rank.env if variable.name == "OMP_NUM_THREADS"]
    assert threads == ["14"] * 8  # 56 cores a socket, four ranks on each
    own = [EnvVar(name="OMP_NUM_THREADS", value="3", source="--env")]
    kept = on("h100x8", "--omp", "auto", env=own).hosts[0]
    assert not [variable for rank in kept.ranks for variable in rank.env if variable.name == "OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("memory", "flag"), [("preferred", "--preferred=0"), ("strict", "--membind=0"), ("local", "--localalloc")]
)
def test_bind_memory_is_numactls_policy(memory: str, flag: str) -> None:
    assert on("h100x8", "--bind-memory", memory).hosts[0].ranks[0].prefix[-1] == flag


def test_gpu_order_changes_nothing_where_nvlink_is_all_to_all() -> None:
    assert on("h200x2", "--gpu-order", "nvlink") == on("h200x2")


def test_gpu_order_numbers_a_ring_along_nvlink() -> None:
    (known,) = from_json((DATA / "h200x2.json").read_bytes())
    gpus = known.gpus or ()
    template = gpus[0]
    pairs = {0: (2,), 2: (0,), 1: (3,), 3: (1,)}  # bridges join 0 with 2 and 1 with 3
    four = tuple(
        msgspec.structs.replace(
            template,
            index=index,
            uuid=f"GPU-{index}",
            pci=f"0000:{index + 16:02x}:00.0",
            nvlinks=tuple(
                msgspec.structs.replace(
                    template.nvlinks[0], link=link, remote_type="gpu", remote_pci=f"0000:{peer + 16:02x}:00.0"
                )
                for peer in pairs[index]
                for link in range(4)
            ),
        )
        for index in range(4)
    )
    bridged = msgspec.structs.replace(known, gpus=four)
    args = config.parse(["--nproc-per-node", "4", "train.py"], {}).torchrun
    site = Site(host=Host(name="b"), ranks=4, python="python3", folder="")
    made = build(run_id="r", args=args, sites=[site], cwd="/", fleet=True, master_port=1, grace=30, lost_after=300)
    ranks = place(made, {0: bridged}, Wishes(args=args, gpu_order="nvlink")).plan.hosts[0].ranks
    assert [variable.value for variable in ranks[0].env if variable.name == "CUDA_VISIBLE_DEVICES"] == ["0,2,1,3"]
    assert [rank.binding.gpu for rank in ranks if rank.binding] == ["GPU-0", "GPU-2", "GPU-1", "GPU-3"]


def roce(node: int, index: int, nccl: str) -> HostFacts:
    """A host with two RoCE ports, whose table has the GID of its IPv4 address at `index`."""
    link, mapped = "fe80:0000:0000:0000:0000:0000:0000:0001", "0000:0000:0000:0000:0000:ffff:0a00:000"
    gids = (
        Gid(index=0, gid=link, type="IB/RoCE v1"),
        Gid(index=1, gid=link, type="RoCE v2"),
        Gid(index=index - 1, gid=f"{mapped}{node}", type="IB/RoCE v1"),
        Gid(index=index, gid=f"{mapped}{node}", type="RoCE v2"),
    )
    return HostFacts(
        host=f"n{node}",
        env={},
        software=Software(python="3.11", executable="python3", nccl=nccl),
        rdma=tuple(
            RdmaPort(device=device, port=1, link_layer="Ethernet", state="ACTIVE", gids=gids)
            for device in ("mlx5_0", "mlx5_1")
        ),
    )


def test_the_gid_index_is_each_hosts_own_and_only_for_an_old_nccl() -> None:
    def given(nccl: str, **variables: str) -> list[str | None]:
        args = config.parse(["train.py"], {}).torchrun
        env = tuple(EnvVar(name=name, value=value, source="--env") for name, value in variables.items())
        hosts = [roce(0, 3, nccl), roce(1, 5, nccl)]
        sites = [Site(host=Host(name=each.host), ranks=1, python="python3", folder="", address="a") for each in hosts]
        made = build(
            run_id="r", args=args, sites=sites, cwd="/", fleet=True, master_port=1, env=env, grace=1.0, lost_after=9.0
        )
        placed = place(made, dict(enumerate(hosts)), Wishes(args=args, env=env))
        return [
            {each.variable.name: each.variable.value for each in placed.environments[host.host]}.get(
                "NCCL_IB_GID_INDEX"
            )
            for host in hosts
        ]

    assert given("2.20.5") == ["3", "5"]
    assert given("2.21.5") == [None, None]
    assert given("2.20.5", NCCL_IB_GID_INDEX="1") == ["1", "1"], "the user's holds"
