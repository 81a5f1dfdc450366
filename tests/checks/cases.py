"""A failing case for each finding code that comes from facts: a healthy fleet with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nvrun.checks import Job
from nvrun.endpoint import Endpoint
from nvrun.facts import SECTIONS, HostFacts, PathFact
from nvrun.model import Severity
from nvrun.torchrun import TorchrunArgs, split
from tests.checks.fleets import Change, changed, fleet, gpu, section, with_

ERROR, FATAL, INFO, WARNING = Severity.ERROR, Severity.FATAL, Severity.INFO, Severity.WARNING


class Case(NamedTuple):
    """One fault: the fleet, what is changed on which host, and the finding it must give."""

    code: str
    severity: Severity
    kind: str
    change: Mapping[str, Change]
    host: str | None = "n02"
    """Whom the finding names."""
    job: Job = Job()
    hosts: int = 3
    words: str = ""
    """Must be in the message."""

    def facts(self) -> dict[str, HostFacts]:
        hosts = fleet(self.kind, self.hosts)
        for host, change in self.change.items():
            hosts = changed(hosts, host, change)
        return hosts


def one(change: Change) -> dict[str, Change]:
    return {"n02": change}


def every(change: Change, hosts: int = 3) -> dict[str, Change]:
    return {f"n{number:02}": change for number in range(1, hosts + 1)}


def paths(**changes: object) -> Change:
    script = PathFact(path="/job/train.py", exists=True, kind="file", size=10, sha256="a" * 64, readable=True)
    cwd = PathFact(path="/job", exists=True, kind="directory", readable=True)
    return lambda known: with_(known, paths=(cwd, with_(script, **changes)))


def cwd(**changes: object) -> Change:
    there = {"exists": True, "kind": "directory", "readable": True}
    script = PathFact(path="/job/train.py", exists=False)
    return lambda known: with_(known, paths=(PathFact(path="/job", **{**there, **changes}), script))  # type: ignore[arg-type]


def shm(free: int, total: int | None = None) -> Change:
    return lambda known: with_(
        known,
        filesystems=tuple(
            with_(place, free_bytes=free, total_bytes=total or free) if place.path == "/dev/shm" else place
            for place in known.filesystems or ()
        ),
    )


def names(**changes: object) -> Change:
    return section("names", **changes)


def peers(**changes: tuple[str, ...]) -> Change:
    return lambda known: with_(known, names=with_(known.names, peers={**known.names.peers, **changes}))  # type: ignore[union-attr]


def meeting(host: str, nodes: int = 2) -> Endpoint:
    return Endpoint(host=host, port=29500, flag="--master-addr", nodes=nodes, listens=False)


FIRST = fleet("cpu_host", 3)["n01"]
ADDRESS = FIRST.names.resolves_to  # type: ignore[union-attr]


def twin(known: HostFacts) -> HostFacts:
    """The first host once more, under another name."""
    there = with_(FIRST.names, peers={"n01": ADDRESS, "n03": FIRST.names.peers["n03"]})  # type: ignore[union-attr]
    found: HostFacts = with_(known, identity=FIRST.identity, network=FIRST.network, names=there)
    return found


def unreadable(reason: str) -> Change:
    return lambda known: HostFacts(host=known.host, missing=dict.fromkeys(SECTIONS, reason))


def both(*changes: Change) -> Change:
    def change(known: HostFacts) -> HostFacts:
        for step in changes:
            known = step(known)
        return known

    return change


def arguments(*words: str) -> TorchrunArgs:
    return TorchrunArgs.read(split([*words, "train.py"], {}), {})


JOB = Job(script="train.py", cwd="/job")
ALL_PATHS = every(paths())
HASH = FIRST.identity.nccl_host_hash  # type: ignore[union-attr]

CASES = [
    # software
    Case("torch-missing", FATAL, "cpu_host", one(section("software", torch=None))),
    Case("python-version-differs", FATAL, "cpu_host", one(section("software", python="3.10.4")), words="3.10"),
    Case("python-path-differs", INFO, "cpu_host", one(section("software", executable="/usr/bin/python3"))),
    Case("torch-version-differs", ERROR, "cpu_host", one(section("software", torch="2.1.0+cpu")), words="2 hosts"),
    Case("torch-version-differs", ERROR, "cpu_host", one(section("software", torch="2.1.0")), host=None, hosts=2),
    Case("cuda-build-differs", ERROR, "h100x8", one(section("software", cuda="11.8"))),
    Case("nccl-version-differs", FATAL, "h100x8", one(section("software", nccl="2.21.5", nccl_from="LD_LIBRARY_PATH")),
         words="LD_LIBRARY_PATH"),
    Case("nccl-version-differs", INFO, "cpu_host", {"n01": section("software", nccl="2.21.5"),
         "n02": section("software", nccl="2.26.2"), "n03": section("software", nccl="2.21.5")}),
    Case("driver-version-differs", WARNING, "h100x8",
         one(section("software", driver="535.104.05", kernel_module="535.104.05"))),
    Case("driver-mismatch", FATAL, "h100x8", one(section("software", kernel_module="550.54.15"))),
    Case("driver-too-old", FATAL, "h100x8", one(section("software", cuda_driver="11.4"))),
    Case("cuda-too-old-for-gpu", FATAL, "h100x8", every(section("software", cuda="11.7")), host="n01"),
    Case("nccl-too-old-for-gpu", ERROR, "h100x8", every(section("software", nccl="2.14.3")), host="n01"),
    Case("torchrun-flag-unknown", FATAL, "cpu_host", one(section("software", torchrun_flags=("--nnodes",))),
         job=Job(torchrun=arguments("--max-restarts=1")), words="--max-restarts"),
    Case("system-differs", INFO, "cpu_host", one(section("software", kernel="4.18.0")), host=None),
    # paths
    Case("path-missing", FATAL, "cpu_host", {**ALL_PATHS, **one(paths(exists=False, error="No such file"))}, job=JOB),
    Case("path-missing", WARNING, "cpu_host", {**ALL_PATHS, **one(paths(exists=False, error="No such file"))},
         job=Job(textfile="/job/train.py"), words="the folder of --monitor-textfile"),
    Case("path-missing", FATAL, "cpu_host", {**ALL_PATHS, **one(cwd(exists=False, kind=""))}, job=JOB, words="/job is"),
    Case("path-unreadable", FATAL, "cpu_host", {**ALL_PATHS, **one(paths(readable=False))}, job=JOB),
    Case("path-wrong-kind", FATAL, "cpu_host", {**ALL_PATHS, **one(cwd(kind="file"))}, job=JOB),
    Case("path-hung", ERROR, "cpu_host", {**ALL_PATHS, **one(paths(exists=False, error="no answer in 2 s"))}, job=JOB),
    Case("path-differs", ERROR, "cpu_host", {**ALL_PATHS, **one(paths(sha256="b" * 64))}, job=JOB),
    Case("path-differs", ERROR, "cpu_host", {**ALL_PATHS, **one(paths(size=11, sha256=None))}, job=JOB),
    # limits
    Case("memlock-low", FATAL, "h100x8", one(section("limits", memlock_bytes=65536)), words="64 KiB"),
    Case("nofile-low", ERROR, "cpu_host", one(section("limits", nofile=64, nofile_hard=64))),
    Case("nofile-low", ERROR, "cpu_host", {"n01": section("limits", nofile=1024, nofile_hard=4096)}, host="n01",
         job=Job(ranks={"n01": 16, "n02": 16, "n03": 16})),
    Case("shm-small", ERROR, "cpu_host", one(shm(1 << 20))),
    Case("shm-small", ERROR, "h100x8", one(shm(64 << 20))),
    Case("shm-small", WARNING, "h100x8", one(shm(4 << 30))),
    Case("cpus-outside-cpuset", FATAL, "cpu_host", {}, job=Job(cpus={"n02": (0, 4000)})),
    Case("cpus-few", WARNING, "h100x8", one(section("cpus", allowed=(0,)))),
    Case("numactl-missing", INFO, "cpu_host", one(section("software", numactl=None))),
    Case("numactl-missing", WARNING, "h100x8", one(section("software", numactl=None)), job=Job(binds_memory=True)),
    Case("py-spy-missing", WARNING, "cpu_host", one(section("software", py_spy="")), job=Job(ends_hangs=True)),
    Case("mempolicy-forbidden", WARNING, "h100x8", one(section("software", mempolicy_allowed=False)),
         job=Job(binds_memory=True)),
    # reading
    Case("facts-unread", ERROR, "cpu_host", one(unreadable("OSError: [Errno 24] Too many open files")), words="files"),
    # identity
    Case("host-twice", FATAL, "cpu_host",
         {"n01": peers(n02=ADDRESS), "n02": twin, "n03": peers(n02=ADDRESS)}, host=None, words="n[01-02]"),
    Case("hosts-taken-for-one", FATAL, "cpu_host", one(section("identity", nccl_host_hash=HASH)), host=None),
    Case("gpu-listed-twice", FATAL, "h200x2",
         one(gpu(0, uuid=fleet("h200x2", 1)["n01"].gpus[1].uuid)), host=None),  # type: ignore[index]
    Case("clock-off", ERROR, "cpu_host", one(lambda known: with_(known, clock_offset_s=-3.0)), words="behind"),
    Case("clock-off", WARNING, "cpu_host", one(lambda known: with_(known, clock_offset_s=0.4))),
    Case("clock-off", ERROR, "cpu_host", one(lambda known: with_(known, clock_offset_s=3.0)), host=None, hosts=2),
    # names
    Case("own-name-loopback", ERROR, "cpu_host", one(names(resolves_to=("127.0.1.1",)))),
    Case("own-name-malformed", ERROR, "cpu_host", one(names(hostname="n" * 64)), words="n" * 64),
    Case("own-name-unknown", ERROR, "cpu_host", one(names(resolves_to=(), resolve_error="Name not known"))),
    Case("own-name-foreign", ERROR, "cpu_host", one(names(resolves_to=("10.99.99.99",)))),
    Case("localhost-broken", ERROR, "cpu_host", one(names(localhost_ok=False))),
    Case("peer-name-unknown", ERROR, "cpu_host", one(peers(n03=())), words="n03"),
    Case("peer-name-loopback", ERROR, "cpu_host", one(peers(n03=("127.0.1.1",)))),
    Case("peer-name-wrong", ERROR, "cpu_host", one(peers(n03=("10.99.99.99",))), words="10.99.99.99"),
    Case("endpoint-unknown", WARNING, "cpu_host", one(names(peer_errors={"login1": "Name or service not known"})),
         hosts=1, host="n01", job=Job(endpoint=meeting("login1")), words="--master-addr login1 has no address"),
    Case("endpoint-loopback", WARNING, "cpu_host", {}, hosts=1, host="n01", job=Job(endpoint=meeting("localhost")),
         words="2 nodes are to meet at localhost"),
    # gpu
    Case("gpu-driver-fails", FATAL, "h100x8",
         one(lambda known: with_(known, gpus=None, missing={"gpus": "NVML: Driver/library version mismatch"})),
         words="mismatch"),
    Case("gpu-off-bus", ERROR, "h100x8", one(lambda known: with_(known, gpus=(known.gpus or ())[:-1])),
         words="missing 0000:df:00.0"),
    Case("gpu-count-differs", ERROR, "h100x8",
         one(lambda known: section("software", device_nodes={f"/dev/nvidia{n}": "ok" for n in range(4)})(
             with_(known, gpus=(known.gpus or ())[:4])))),
    Case("gpu-model-differs", WARNING, "h200x2", one(gpu(1, name="NVIDIA H100 80GB HBM3"))),
    Case("gpu-vbios-differs", WARNING, "h200x2", {host: both(gpu(0, vbios="1"), gpu(1, vbios=vbios))
         for host, vbios in (("n01", "1"), ("n02", "2"), ("n03", "1"))}),
    Case("gpu-driver-fails", ERROR, "h100x8",
         one(lambda known: with_(known, gpus=None, missing={"gpus": "NVML: GPU is lost"})),
         job=Job(gpus={"n01": (), "n02": (), "n03": ()})),
    Case("gpu-count-differs", INFO, "h100x8",
         one(lambda known: section("software", device_nodes={f"/dev/nvidia{n}": "ok" for n in range(4)})(
             with_(known, gpus=(known.gpus or ())[:4]))),
         job=Job(gpus={host: tuple(g.uuid for g in (known.gpus or ())[:2])
                       for host, known in fleet("h100x8", 3).items()})),
    Case("gpu-mig", FATAL, "h100x8", one(gpu(3, mig=())), words="GPU 3"),
    Case("gpu-compute-mode", FATAL, "h100x8", one(gpu(3, compute_mode="prohibited"))),
    Case("gpu-busy", ERROR, "h100x8", one(gpu(3, memory_used=40 << 30)), words="not visible"),
    Case("gpu-device-closed", FATAL, "h100x8",
         one(section("software", device_nodes={"/dev/nvidia3": "Operation not permitted"}))),
]  # fmt: skip
