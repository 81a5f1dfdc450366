"""What the job does not use is not judged, and severity follows from the plan."""

from __future__ import annotations

import pytest

from nvrun.checks import Job
from nvrun.checks.job import complete
from nvrun.facts import GpuProcess, Listener, Process
from nvrun.topology.from_facts import from_facts
from nvrun.topology.interface import Peers, addresses, socket_interface
from nvrun.topology.nics import compute_nics
from tests.checks.cases import names, shm
from tests.checks.cases_hardware import LOSSLESS
from tests.checks.fleets import Change, changed, codes, fleet, gpu, judge, machine, only, port, section, with_

FIRST_TWO = {f"n0{n}": tuple(g.uuid for g in (fleet("h100x8", 3)[f"n0{n}"].gpus or ())[:2]) for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("change", "job"),
    [
        (gpu(5, recovery_action="reboot", remap_failed=True, pcie_width=1, mig=()), Job(gpus=FIRST_TWO)),
        (gpu(5, processes=(GpuProcess(pid=1, memory_bytes=1 << 34, name="python"),)), Job(gpus=FIRST_TWO)),
        (section("limits", memlock_bytes=65536), Job(rdma={})),
        (port("mlx5_2", state="DOWN", uverbs_openable=False), Job()),
        (port("mlx5_4", state="DOWN"), Job(rdma={f"n0{n}": ("mlx5_0:1",) for n in (1, 2, 3)})),
        (section("software", torchrun_flags=()), Job()),
        (gpu(5, recovery_action="reboot"), Job(gpus={"n01": (), "n02": (), "n03": ()}, ranks={"n02": 4})),
        (lambda known: with_(known, listeners=(Listener(port=29501),)), Job(port=29500)),
        (lambda known: with_(known, env={"NCCL_SOCKET_IFNAME": "eth7"}), Job()),
        (
            lambda known: with_(
                known,
                env={"NCCL_CONF_FILE": "/etc/other.conf"},
                conf_files={"/home/ann/.nccl.conf": "NCCL_IB_DISABLE=1\n"},
            ),
            Job(),
        ),
        (lambda known: with_(known, env={"NCCL_DEBUG": "INFO"}), Job(set_everywhere=frozenset({"NCCL_DEBUG"}))),
    ],
)
def test_outside_the_plan_is_not_judged(change: Change, job: Job) -> None:
    assert codes(judge(changed(fleet("h100x8", 3), "n02", change), job)) == set()


@pytest.mark.parametrize(
    ("ranks", "files", "found"),
    [(8, 65536, False), (4096, 65536, False), (4096, 65535, True), (20000, 65536, True), (20000, 240000, False)],
)
def test_what_many_ranks_need_of_files_ends_at_the_fields_own_advice(ranks: int, files: int, found: bool) -> None:
    hosts = changed(fleet("cpu_host", 3), "n01", section("limits", nofile=files, nofile_hard=files))
    job = Job(ranks={"n01": ranks, "n02": 1, "n03": 1})
    assert ("nofile-low" in codes(judge(hosts, job))) is found


def test_roce_is_judged_by_the_class_that_the_ranks_will_have() -> None:
    """By --env, a preset or nccl.conf as well as by the host's own environment."""
    hosts = {name: LOSSLESS(known) for name, known in fleet("a100x8_nps4", 2).items()}
    assert codes(judge(hosts)) == {"roce-class-lossy"}
    assert codes(judge(hosts, Job(env={host: {"NCCL_IB_TC": "106"} for host in hosts}))) == set()
    own = {name: with_(known, env={"NCCL_IB_TC": "106"}) for name, known in hosts.items()}
    verdict = judge(own)
    assert codes(verdict) == set()
    assert {"roce-lossless", "roce-agrees"} <= set(verdict.judged)
    untold = judge(fleet("a100x8_nps4", 2)).skipped
    assert {(item.code, item.host) for item in untold} >= {("roce-lossless", "n01"), ("roce-lossless", "n02")}


def test_single_host_needs_no_name_and_no_network() -> None:
    change = names(resolves_to=("127.0.1.1",))
    assert codes(judge({"n01": change(machine("cpu_host"))})) == set()


def test_docker_default_of_shared_memory_does_for_a_small_cpu_job() -> None:
    assert codes(judge(changed(fleet("cpu_host", 3), "n02", shm(64 << 20)))) == set()


def test_two_jobs_of_one_user_side_by_side_disturb_nobody() -> None:
    """The other run: its processes, its GPU, its port."""

    def beside(known: object) -> object:
        first = (machine("h100x8").gpus or ())[0]
        busy = GpuProcess(pid=77, memory_bytes=1 << 34, name="python", user="ann")
        known = gpu(7, processes=(busy,), memory_used=first.memory_total)(known)  # type: ignore[arg-type]
        return with_(
            known,
            processes=(Process(pid=77, command="python", run_mark="other.0"),),
            listeners=(Listener(port=29500, pid=78, command="torchrun"),),
        )

    hosts = {host: beside(facts) for host, facts in fleet("h100x8", 2).items()}
    job = Job(gpus=FIRST_TWO, port=29501, run_id="mine")
    assert codes(judge(hosts, job)) == set()  # type: ignore[arg-type]


def test_own_torchrun_on_the_port_is_no_stranger() -> None:
    hosts = {
        host: with_(
            facts,
            listeners=(Listener(port=29500, pid=9, command="torchrun"),),
            processes=(Process(pid=9, command="python", run_mark="mine.0"),),
        )
        for host, facts in fleet("cpu_host", 2).items()
    }
    assert codes(judge(hosts, Job(port=29500, run_id="mine"))) == set()
    assert codes(judge(hosts, Job(port=29500, run_id="yours"))) == {"port-taken"}


def test_alias_of_ssh_is_no_error() -> None:
    hosts = fleet("cpu_host", 3)
    renamed = {f"alias{n}": facts for n, facts in enumerate(hosts.values())}
    unknown = {
        host: names(peers=dict.fromkeys([other for other in renamed if other != host], ()))(facts)
        for host, facts in renamed.items()
    }
    assert codes(judge(unknown)) == set()


def test_a_tie_blames_nobody_and_names_both() -> None:
    hosts = changed(fleet("cpu_host", 2), "n02", section("software", torch="2.1.0"))
    finding = only(judge(hosts), "torch-version-differs")
    assert finding.host is None
    assert "n01" in finding.message
    assert "n02" in finding.message


def test_planned_rdma_ports_are_those_that_the_topology_calls_compute_ports() -> None:
    for kind in ("h100x8", "a100x8_nps4", "gh200"):
        hosts = fleet(kind, 2)
        job = complete(Job(), hosts, [tuple(hosts)])
        chosen = compute_nics(from_facts(hosts["n01"])).chosen
        assert job.rdma is not None
        assert sorted(job.rdma["n01"]) == sorted(f"{nic.name}:{nic.port}" for nic in chosen)


def test_the_planned_interface_is_the_users_else_the_one_that_nvrun_would_choose() -> None:
    hosts = changed(fleet("h100x8", 3), "n02", lambda known: with_(known, env={"GLOO_SOCKET_IFNAME": "ib0,ib1"}))
    peers = Peers({host: addresses(facts) for host, facts in hosts.items()})
    own = {host: socket_interface(facts, peers).name for host, facts in hosts.items()}
    assert complete(Job(), hosts, [tuple(hosts)]).interfaces == {**own, "n02": "ib0"}
    assert complete(Job(interfaces={"n01": "eno9"}), hosts, [tuple(hosts)]).interfaces["n01"] == "eno9"


def test_a_port_that_is_down_everywhere_is_not_planned() -> None:
    hosts = {host: port("mlx5_4", state="DOWN")(facts) for host, facts in fleet("h100x8", 3).items()}
    assert codes(judge(hosts)) == set()


def test_peers_of_a_thousand_hosts_are_looked_at_quickly() -> None:
    import time

    (facts,) = fleet("cpu_host", 1).values()
    assert facts.names
    peers = {f"m{n}": (f"10.9.{n // 250}.{n % 250}",) for n in range(1000)}
    many = {
        name: with_(facts, host=name, names=with_(facts.names, peers=peers), network=None, identity=None)
        for name in peers
    }
    started = time.process_time()
    judge(many)
    assert time.process_time() - started < 4
