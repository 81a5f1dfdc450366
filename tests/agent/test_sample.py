"""Samples of this very host against psutil, and a monitor that nobody has to wait for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest

from nvrun import monitor
from nvrun.agent import exposition, readings, recorder, sample
from nvrun.agent.loop import Loop
from nvrun.agent.sample import Sampler

REQUEST = {"every": 0.1, "run": "20260101-000000-aaaa", "host": "n01", "textfile": None}
PARENT = """
import os, subprocess, sys, time
if len(sys.argv) > 1:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
held = bytearray(os.urandom(1)) * (64 << 20)
until = time.process_time() + 0.3
while time.process_time() < until: pass
print(flush=True)
time.sleep(60)
"""
CHILD = "import time\nuntil = time.process_time() + 0.2\nwhile time.process_time() < until: pass\ntime.sleep(60)"


@pytest.fixture
def family() -> Iterator[psutil.Process]:
    """A process of 64 MiB and 0.3 s of CPU time, with a child of 0.2 s."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        found = psutil.Process(parent.pid)
        (child,) = found.children()
        deadline = time.monotonic() + 20
        while sum(child.cpu_times()[:2]) < 0.2 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.05)  # both sleep now: nothing changes between two readings
        yield found
        child.kill()
        parent.kill()


def test_rank_is_what_psutil_says_of_it_and_its_children(family: psutil.Process) -> None:
    found = readings.rank(family.pid)
    assert found is not None
    everyone = [family, *family.children(recursive=True)]
    assert found["processes"] == len(everyone) == 2
    assert found["cpu_s"] == pytest.approx(sum(sum(each.cpu_times()) for each in everyone), abs=0.03)
    assert found["cpu_s"] >= 0.5
    # The kernel keeps parts of this count by CPU: two readings differ by some pages.
    assert found["rss"] == pytest.approx(sum(each.memory_info().rss for each in everyone), rel=0.02)
    assert found["rss"] > 64 << 20
    assert found["minor"] > (64 << 20) // 4096 // 2
    assert found["wait_s"] >= 0


def test_host_and_interfaces_are_what_psutil_says() -> None:
    found, times, memory = readings.host(), psutil.cpu_times(), psutil.virtual_memory()
    idle = times.idle + times.iowait
    total = times.user + times.nice + times.system + times.irq + times.softirq + times.steal + idle
    assert found["cpu_total_s"] == pytest.approx(total, abs=1.0)
    assert found["cpu_busy_s"] == pytest.approx(total - idle, abs=1.0)
    assert found["memory_available"] == pytest.approx(memory.available, rel=0.05)
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    interfaces = readings.interfaces()
    assert set(interfaces) == set(counters) - {"lo"}
    for name, read in interfaces.items():
        assert read["errors"] == counters[name].errin + counters[name].errout
        assert read["rx"] == pytest.approx(counters[name].bytes_recv, abs=1 << 20)


def test_rank_that_is_gone_is_absent() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert readings.rank(process.pid) is None, "a zombie has no memory"
    assert readings.rank(process.pid) is None


def test_carriers_are_those_of_cards(tmp_path: Path) -> None:
    for name in ("eth0", "docker0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "carrier_down_count").write_text("3\n")
    (tmp_path / "eth0/device").mkdir()
    carriers = readings.Carriers(str(tmp_path))
    assert carriers.read() == {"eth0": 3}
    (tmp_path / "eth0/carrier_down_count").unlink()
    assert carriers.read() == {}


def test_rdma_ports_count_bytes_and_errors(tmp_path: Path) -> None:
    counters = tmp_path / "mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    for name, value in {"port_rcv_data": 100, "port_xmit_data": 7, "symbol_error": 3}.items():
        (counters / name).write_text(f"{value}\n")
    ports = readings.RdmaPorts(str(tmp_path))
    assert ports.read() == {"mlx5_0/1": {"rx": 400, "tx": 28, "symbol_error": 3}}
    (counters / "symbol_error").unlink()
    assert ports.read() == {"mlx5_0/1": {"rx": 400, "tx": 28}}


# -- GPUs, by an NVML of our own ---------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


class Nvml:
    """One GPU with two NVLinks, of a driver that knows some of the field values only."""

    NVMLError = NVMLError
    fields: ClassVar = {
        (3, 0): 5,
        (94, 0): 2,
        (91, 0): 2,
        (138, 0xFFFFFFFF): 10,
        (139, 0xFFFFFFFF): 20,
        (162, 0): 1,
        (162, 1): 2,
    }
    asked = 0

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.hangs.set()

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": b"NVIDIA Test",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100, used=40),
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=93, memory=10),
            "nvmlDeviceGetPowerUsage": 512345,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetPcieThroughput": 3,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x44,
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *arguments: answers[name]

    def nvmlDeviceGetFieldValues(self, handle: object, wanted: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        self.hangs.wait(20)
        self.asked = len(wanted)
        return [
            SimpleNamespace(
                nvmlReturn=int(key not in self.fields), value=SimpleNamespace(ullVal=self.fields.get(key, 9))
            )
            for key in wanted
        ]


def test_gpu_counters_are_summed_over_links_and_what_it_lacks_is_absent() -> None:
    nvml = Nvml()
    gpus = readings.Gpus(lambda: nvml)
    (read,), trouble = gpus.read()  # type: ignore[misc]
    assert not trouble
    assert gpus.known == [
        {"index": 0, "uuid": "GPU-1", "name": "NVIDIA Test", "memory_total": 100, "power_limit_w": 700.0}
    ]
    assert read == {
        "util": 93, "memory_used": 40, "power_w": 512.345, "temperature_c": 61, "sm_mhz": 1980, "memory_mhz": 1980,
        "pcie_tx_per_s": 3072, "pcie_rx_per_s": 3072, "reasons": ["power cap", "hardware thermal"], "ecc_corrected": 5,
        "pcie_replays": 2, "nvlink_tx": 10 * 1024, "nvlink_rx": 20 * 1024, "nvlink_recoveries": 3,
    }  # fmt: skip
    assert nvml.asked == 6, "what the GPU has not is not asked for again"
    (light,), _ = gpus.read(links=False)  # type: ignore[misc]
    assert nvml.asked == 4
    assert light == {name: value for name, value in read.items() if name != "nvlink_recoveries"}


def test_driver_that_hangs_costs_the_gpus_only_and_is_heard_when_it_answers() -> None:
    nvml = Nvml()
    gpus = readings.Gpus(lambda: nvml)
    gpus.read()
    nvml.hangs.clear()
    assert gpus.read(patience=0.05) == (None, "the driver did not answer in 0.05 s")
    assert gpus.read(patience=0.05)[0] is None
    nvml.hangs.set()
    assert gpus.read()[0] is not None
    assert gpus.read()[0] is not None


def test_driver_that_fails_is_said_and_asked_again() -> None:
    broken = [True]

    def load() -> Any:
        if broken[0]:
            raise NVMLError("Driver Not Loaded")
        return Nvml()

    gpus = readings.Gpus(load)
    assert gpus.read() == (None, "Driver Not Loaded")
    broken[0] = False
    assert gpus.read()[0]


def test_prometheus_text_escapes_and_groups() -> None:
    known = [{"index": 0, "uuid": 'GPU-"\n'}, {"index": 1, "uuid": "GPU-2"}]
    body = {"at": 12.5, "gpus": [{"util": 50, "nvlink_tx": 7}, {"util": 100}], "ranks": {"3": {"rss": 9, "cpu_s": 1.5}}}
    lines = exposition.text("r", known, body).splitlines()
    assert lines[0] == "# TYPE nvrun_gpu_utilization_ratio gauge"
    assert lines[1] == 'nvrun_gpu_utilization_ratio{run="r",gpu="0",uuid="GPU-\\"\\n"} 0.5'
    assert 'nvrun_rank_cpu_seconds_total{run="r",rank="3"} 1.5' in lines
    heads = [line for line in lines if line.startswith("#")]
    assert len(heads) == len(set(heads)), "each metric is one group"


# -- the file ----------------------------------------------------------------------------------------------------------


def test_file_stays_short_and_spans_the_whole_run(tmp_path: Path) -> None:
    log = recorder.Log(str(tmp_path / sample.FILE), {"every": 1.0}, limit=4000)
    for number in range(2000):
        log.write({"at": float(number), "ranks": {}})
        assert (tmp_path / sample.FILE).stat().st_size <= 4000
    found = monitor.read(tmp_path)
    assert found is not None
    times = [each.at for each in found.samples]
    assert times[0] == 0
    assert times[-1] == 1999
    assert times == sorted(times)
    assert log.thinned >= 3


def test_a_line_cut_short_is_counted_and_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / monitor.samples.FILE).write_bytes(b'{"every":1}\n{"at":1}\n{"at":2,"unknown":[1]}\n{"at":')
    found = monitor.read(tmp_path)
    assert found is not None
    assert [each.at for each in found.samples] == [1, 2]
    assert found.unread == 1


# -- the child ---------------------------------------------------------------------------------------------------------


def watch(folder: Path, seconds: float, rank: int | None = None, **request: Any) -> tuple[Sampler, float]:
    """A monitor that runs for some seconds; and how long its end took."""
    loop, ended = Loop(), [0.0]
    sampler = Sampler(loop, str(folder), {**REQUEST, **request})
    sampler.begin(3, rank or os.getpid())

    def finish() -> None:
        begun = time.monotonic()

        def then() -> None:
            ended[0] = time.monotonic() - begun
            loop.stop()

        sampler.finish(then)

    loop.later(seconds, finish)
    loop.run()
    signal.set_wakeup_fd(-1)
    return sampler, ended[0]


def test_monitor_samples_until_the_end_and_leaves_nothing(tmp_path: Path) -> None:
    sampler, _ = watch(tmp_path, 1.0)
    found = monitor.read(tmp_path)
    assert found is not None
    assert found.header.run == REQUEST["run"]
    assert len(found.samples) >= 3
    assert {rank for each in found.samples for rank in each.ranks} == {3}
    assert found.samples[0].ranks[3].pid == os.getpid()
    assert found.samples[0].gpus is not None or found.samples[0].gpus_unread
    assert not psutil.pid_exists(sampler.pid)


def test_monitor_costs_less_than_a_hundredth_of_a_core(tmp_path: Path, family: psutil.Process) -> None:
    watch(tmp_path, 0.8, rank=family.pid)
    found = monitor.read(tmp_path)
    assert found is not None
    spent = [later.spent_s - earlier.spent_s for earlier, later in zip(found.samples, found.samples[1:], strict=False)]
    assert sorted(spent)[len(spent) // 2] < 0.01 * 10.0, "seconds of CPU a sample, of which there is one in ten"


def test_monitor_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    loop = Loop()
    sampler = Sampler(loop, str(tmp_path), REQUEST)
    os.kill(sampler.pid, signal.SIGSTOP)
    begun = time.monotonic()
    for rank in range(20000):  # more than its pipe holds
        sampler.begin(rank, 1)
    assert time.monotonic() - begun < 5
    begun = time.monotonic()
    sampler.finish(loop.stop)
    loop.run()
    signal.set_wakeup_fd(-1)
    assert time.monotonic() - begun < sample.LAST_SECONDS + 2.0
    os.waitpid(sampler.pid, 0)


def test_monitor_dies_with_its_supervisor_and_holds_no_descriptor(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom nvrun.agent.loop import Loop\nfrom nvrun.agent.sample import Sampler\n"
        f"read_end, write_end = os.pipe()\nmonitor = Sampler(Loop(), {str(tmp_path)!r}, {REQUEST!r})\n"
        "monitor.begin(0, os.getpid())\ntime.sleep(1)\n"
        "links = [os.readlink(f'/proc/{monitor.pid}/fd/{fd}') for fd in os.listdir(f'/proc/{monitor.pid}/fd')]\n"
        "print(monitor.pid, sum(link == os.readlink(f'/proc/self/fd/{read_end}') for link in links), flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        pid, held = map(int, supervisor.stdout.readline().split())
        assert held == 0
        assert psutil.pid_exists(pid)
        supervisor.kill()
        supervisor.wait()
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_textfile_is_there_while_the_job_runs_and_gone_after(tmp_path: Path) -> None:
    loop = Loop()
    seen: list[str] = []
    sampler = Sampler(loop, str(tmp_path), {**REQUEST, "textfile": str(tmp_path)})
    sampler.begin(0, os.getpid())
    loop.later(1.0, lambda: seen.extend(path.read_text() for path in tmp_path.glob("*.prom")))
    loop.later(1.1, lambda: sampler.finish(loop.stop))
    loop.run()
    signal.set_wakeup_fd(-1)
    assert len(seen) == 1
    assert 'nvrun_rank_resident_bytes{run="20260101-000000-aaaa",rank="0"}' in seen[0]
    assert [path.name for path in tmp_path.iterdir()] == [sample.FILE]


def test_newest_samples_of_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"nvrun-{os.getuid()}" / "run.0"
    folder.mkdir(parents=True)
    lines = [json.dumps({"every": 1}), *(json.dumps({"at": number}) for number in range(5))]
    (folder / sample.FILE).write_text("\n".join(lines) + '\n{"at": 6')
    assert sample.last("run.0") == [lines[0], *lines[-2:]]
