"""The lab itself: hosts that are up, separate, and gone when they should be; a real Slurm; faults that are faults."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import faults, slurm
from tests.lab.lab import LAUNCHER, REPOSITORY, USER, Lab, Running
from tests.lab.processes import child_of, processes

pytestmark = pytest.mark.lab

MakeLab = Callable[..., Lab]
PYTHON = [sys.executable, "-I", "-S", "-c"]

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], sys.argv[2]), timeout=0.7).close()
    print("open")
except OSError as error:
    print(type(error).__name__ if error.errno is None else error.errno)
"""
LISTEN = """
import socket, sys, threading
listener = socket.create_server(("", int(sys.argv[1])))
def count(connection):
    total = 0
    while part := connection.recv(1 << 16):
        total += len(part)
    connection.sendall(b"%d" % total)
    connection.close()
while True:
    threading.Thread(target=count, args=[listener.accept()[0]]).start()
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], sys.argv[2]), timeout=1.5) as connection:
    connection.sendall(bytes(200_000))
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(100).decode())
"""
RECEIVE = """
import socket, sys
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("", int(sys.argv[1])))
print("ready", flush=True)
while True:
    print(len(receiver.recv(9000)), flush=True)
"""
DATAGRAMS = """
import socket, sys
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
sender = socket.socket(type=socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
for size in (1472, 1000):  # 1472 + 8 + 20 fill a frame of 1500
    sender.sendto(bytes(size), (sys.argv[1], int(sys.argv[2])))
"""
PORT = 29500
REFUSED, NO_ROUTE, TIMEOUT = "111", "113", "TimeoutError"


def connect(lab: Lab, source: str, host: str, port: int = PORT) -> str:
    return lab.exec(source, [*PYTHON, CONNECT, host, str(port)], check=True).stdout.strip()


def send(lab: Lab, source: str, host: str) -> str:
    """What arrived of 200 kB, or the error's last line."""
    sent = lab.exec(source, [*PYTHON, SEND, host, str(PORT)])
    return (sent.stdout or sent.stderr).strip().rpartition("\n")[2]


def ssh(lab: Lab, host: str, command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    return lab.run(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1", host, command], user=user)


@pytest.fixture
def listener(lab: Lab) -> Iterator[None]:
    """Somebody listens on PORT of host b."""
    with lab.popen([*PYTHON, LISTEN, str(PORT)], place="b") as running:
        until(lambda: lab.listens("b", PORT))
        yield
        running.kill()


def until(condition: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


# --------------------------------------------------------------------------------------------------- life and death


def test_three_hosts_are_up_in_about_a_second(namespaces: None, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    with Lab() as lab:
        seconds = time.monotonic() - started
        with capsys.disabled():
            print(f" [3 hosts up in {seconds:.2f} s] ", end="")
        assert all(lab.listens(host, 22) for host in lab.hosts)
    assert seconds < 5


def test_nothing_is_left_after_kill_9_of_the_lab(namespaces: None) -> None:
    lab = Lab(["a", "b"])
    lab.start()
    session = lab.popen(["ssh", "b", "setsid sleep 1000 & exec sleep 1001"])
    until(lambda: len(lab.pids("b", "sleep")) == 2)
    nets = {Path(f"/proc/{pid}/ns/net").readlink() for pid in (*lab.pids("b"), session.target)}
    os.kill(lab.tree, signal.SIGKILL)
    until(lambda: not [process for process in processes() if process.net in nets])
    session.communicate(timeout=5)
    lab.close()


def test_nothing_is_left_after_kill_9_of_whoever_started_it(namespaces: None) -> None:
    code = "from tests.lab.lab import Lab; lab = Lab(['a']); lab.start(); print(lab.tree, flush=True); input()"
    starter = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    tree = int(starter.stdout.readline())
    first = child_of(tree)
    nets = {process.net for process in processes() if process.parent == first}
    assert len(nets) == 2  # the launcher and host a
    starter.kill()
    starter.communicate()
    until(lambda: not [process for process in processes() if process.net in nets])


def test_the_machine_sees_nothing_of_it(lab: Lab) -> None:
    assert "/run/lab" not in Path("/proc/self/mountinfo").read_text()
    assert not Path("/run/lab").exists()
    assert "br0" not in os.listdir("/sys/class/net")  # noqa: PTH208 (interfaces, not files)
    assert f"{USER}:" not in Path("/etc/passwd").read_text()


def test_a_lab_that_cannot_be_made_says_why(namespaces: None) -> None:
    with pytest.raises(RuntimeError, match="/nowhere"):
        Lab(["a"], private=["/nowhere"]).start()


# ------------------------------------------------------------------------------------------------------------ hosts


@pytest.mark.parametrize("user", ["root", USER])
def test_ssh_from_the_launcher_and_between_hosts(lab: Lab, user: str) -> None:
    assert ssh(lab, "b", "hostname; id -un; pwd", user).stdout.split() == ["b", user, lab.home(user)]
    assert ssh(lab, "b", "ssh c hostname", user).stdout == "c\n"
    assert ssh(lab, "b", f"{sys.executable} -c 'import yaml; print(yaml.__name__)'", user).stdout == "yaml\n"


def test_each_host_has_its_own_name_interfaces_and_hosts_file(lab: Lab) -> None:
    for host in lab.hosts:
        seen = lab.exec(host, ["sh", "-c", "uname -n; ls /sys/class/net; getent hosts a b c; cat /etc/hosts"]).stdout
        assert seen.startswith(f"{host}\neth0\nlo\n")
        assert all(f"{lab.address(name)}" in seen for name in lab.hosts)


def test_rsh_reaches_a_host_without_its_sshd_and_without_the_environment(lab: Lab) -> None:
    command = lab.rsh.format(host="c").split()
    with faults.no_sshd(lab, "c"):
        seen = lab.run([*command, "sh", "-c", 'uname -n; echo "${MARK:-none}"'], env={"MARK": "here"})
    assert seen.stdout.split() == ["c", "none"]


def test_processes_belong_to_hosts_and_are_found_by_mark(lab: Lab) -> None:
    with lab.popen(["ssh", "b", "MARK=run-17 exec sleep 1000"]) as session:
        until(lambda: [process for process in lab.processes("b", "run-17") if process.argv[0] == "sleep"])
        (process,) = lab.processes("b", "run-17")
        assert process.argv == ("sleep", "1000")
        assert process.environ["MARK"] == "run-17"
        assert "sleep" not in [argument for other in lab.processes("a") for argument in other.argv]
        os.kill(process.pid, signal.SIGKILL)
        session.communicate(timeout=5)
    until(lambda: not lab.pids("b"))


def test_signals_reach_the_command_itself(lab: Lab) -> None:
    with lab.popen(
        ["sh", "-c", 'trap "echo caught; exit 3" USR1; echo ready; while :; do sleep 0.05; done']
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.read() == "caught\n"
    assert running.returncode == 3


def test_a_command_can_be_stopped_and_continued(lab: Lab) -> None:
    with lab.popen(["sh", "-c", "while echo tick; do sleep 0.05; done"]) as running:
        assert read_line(running) == "tick\n"
        running.send_signal(signal.SIGSTOP)
        drain(running)
        assert not says_something(running, 0.3)
        running.send_signal(signal.SIGCONT)
        assert says_something(running, 5)
        running.terminate()
    assert running.returncode == -signal.SIGTERM


def test_a_command_that_takes_too_long_is_killed(lab: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run(["sleep", "1000.5"], timeout=0.3)
    until(lambda: not lab.pids(LAUNCHER, "1000.5"))


def test_split_hosts_share_no_files_and_no_pids(make_lab: MakeLab) -> None:
    lab = make_lab(["a", "b"], split=True, own_pids=True, private=["/mnt"])
    for directory in ("/tmp", "/mnt", "/dev/shm", lab.home(), lab.home(USER)):
        lab.exec("a", ["touch", f"{directory}/only-a"], check=True)
        assert "only-a" not in lab.exec("b", ["ls", directory], check=True).stdout.split()
        assert not lab.path(LAUNCHER, f"{directory}/only-a").exists()
    assert (
        ssh(lab, "b", "cd; touch mine; readlink /proc/1/ns/pid", USER).stdout
        != ssh(lab, "a", "readlink /proc/1/ns/pid").stdout
    )
    # a host's first process reaps what others leave behind
    ssh(lab, "b", "sh -c 'sleep 0.1 &'")
    time.sleep(0.3)
    assert "Z" not in ssh(lab, "b", "ps -eo stat=").stdout


def test_ipv6_only(make_lab: MakeLab) -> None:
    lab = make_lab(["a", "b"], ipv6=True)
    assert ssh(lab, "b", "hostname; ip -4 -br address show eth0", USER).stdout == "b\n"
    assert connect(lab, "a", lab.address("b"), 22) == "open"


def test_a_host_behind_a_bastion(make_lab: MakeLab) -> None:
    lab = make_lab(["a", "b"], behind={"b": "a"})
    assert ssh(lab, "b", "hostname", USER).stdout == "b\n"
    assert connect(lab, LAUNCHER, "b", 22) == TIMEOUT
    assert connect(lab, "a", "b", 22) == "open"


TRAIN = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("sum", total.item())
dist.destroy_process_group()
"""


def test_bare_torchrun_over_two_hosts(lab: Lab) -> None:
    script = lab.path(LAUNCHER, lab.home(USER)) / "train.py"
    script.write_text(TRAIN)
    command = (
        f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --master-addr {lab.address('a')}"
    )
    hosts = [
        lab.popen(["ssh", host, f"{command} --node-rank {rank} {lab.home(USER)}/train.py"], user=USER)
        for rank, host in enumerate(["a", "b"])
    ]
    assert [host.communicate(timeout=60)[0] for host in hosts] == ["sum 3.0\n"] * 2


# ------------------------------------------------------------------------------------------------------------ Slurm


@pytest.mark.parametrize("user", ["root", USER])
def test_srun_over_three_nodes(slurm_lab: Lab, user: str) -> None:
    script = "echo $SLURM_PROCID $(uname -n) $(id -un) $CUDA_VISIBLE_DEVICES"
    ran = slurm_lab.run(["srun", "-N3", "--gpus-per-node=2", "sh", "-c", script], user=user, check=True)
    assert sorted(ran.stdout.splitlines()) == [f"{rank} {host} {user} 0,1" for rank, host in enumerate("abc")]


def test_sbatch_and_scancel(slurm_lab: Lab) -> None:
    slurm_lab.run(["sbatch", "-N2", "--wrap", "srun sleep 1000"], user=USER, check=True)
    until(lambda: slurm_lab.pids("b", "sleep"), 10)
    slurm_lab.run(["scancel", "--user", USER], user=USER, check=True)
    until(lambda: not slurm_lab.pids("a") and not slurm_lab.pids("b"), 10)
    until(lambda: set(slurm.node_states(slurm_lab)) == {"idle"}, 10)


# ----------------------------------------------------------------------------------------------------------- faults


@pytest.mark.usefixtures("listener")
class TestFirewalls:
    def test_a_dropped_port_times_out(self, lab: Lab) -> None:
        assert connect(lab, "a", "b") == "open"
        with faults.drop(lab, "b", str(PORT)):
            assert connect(lab, "a", "b") == TIMEOUT
            assert connect(lab, "a", "b", 22) == "open"
            assert connect(lab, "b", "localhost") == "open"
        assert connect(lab, "a", "b") == "open"

    def test_a_range_for_one_peer_only(self, lab: Lab) -> None:
        with faults.drop(lab, "b", "29000-30000", way="in", peer="a"):
            assert connect(lab, "a", "b") == TIMEOUT
            assert connect(lab, "c", "b") == "open"

    def test_a_rejected_port_refuses(self, lab: Lab) -> None:
        with faults.reject(lab, "b", str(PORT)):
            assert connect(lab, "a", "b") == REFUSED
        with faults.reject(lab, "b", str(PORT), reply="icmpx type admin-prohibited"):
            assert connect(lab, "a", "b") == NO_ROUTE

    def test_a_cut_host_is_silent(self, lab: Lab) -> None:
        with faults.cut(lab, "b"):
            assert connect(lab, "a", "b", 22) == TIMEOUT
            assert connect(lab, "b", "a", 22) == TIMEOUT
            assert connect(lab, "a", "c", 22) == "open"

    def test_a_black_hole_lets_connections_through_and_no_bulk(self, lab: Lab) -> None:
        assert send(lab, "a", "b") == "200000"
        with faults.black_hole(lab, "b", 1400):
            assert connect(lab, "a", "b") == "open"
            assert "timed out" in send(lab, "a", "b")
        assert send(lab, "a", "b") == "200000"

    def test_an_own_small_mtu_loses_large_packets_at_the_door(self, lab: Lab) -> None:
        def send_datagrams(source: str, target: str) -> str:
            return lab.exec(source, [*PYTHON, DATAGRAMS, lab.address(target), str(PORT)]).stderr

        with faults.mtu(lab, "b", 1400), lab.popen([*PYTHON, RECEIVE, str(PORT)], place="b") as receiver:
            assert send(lab, "a", "b") == "200000"  # TCP agrees on the smaller size
            assert read_line(receiver) == "ready\n"
            assert send_datagrams("a", "b") == ""
            assert read_line(receiver) == "1000\n"  # the one of 1472 bytes came first
            assert "Message too long" in send_datagrams("b", "a")
            receiver.kill()


def test_a_silent_cut_takes_open_connections_too(lab: Lab) -> None:
    with lab.popen(["ssh", "b", "while echo tick; do sleep 0.05; done"]) as session:
        assert read_line(session) == "tick\n"
        with faults.drop(lab, "b", "22"):
            drain(session)
            assert not says_something(session, 0.7)
            assert session.poll() is None
        assert says_something(session, 5)  # after the next retransmission
        session.kill()
    until(lambda: not lab.pids("b"))


def test_addresses(lab: Lab) -> None:
    with faults.extra_address(lab, "b", "10.99.0.1/24"):
        assert "10.99.0.1" in lab.exec("b", ["ip", "-br", "address"]).stdout
    with faults.moved(lab, "b", "10.99.0.1/24"):
        assert connect(lab, "a", "b", 22) in (TIMEOUT, NO_ROUTE)
    assert connect(lab, "a", "b", 22) == "open"


def test_names(lab: Lab) -> None:
    with faults.name_to_loopback(lab, "b"):
        assert lab.exec("b", ["getent", "hosts", "b"]).stdout.split() == ["127.0.1.1", "b"]
        assert lab.exec("a", ["getent", "hosts", "b"]).stdout.split() == [lab.address("b"), "b"]
    with faults.name_unknown(lab, "a", "b"):
        assert lab.exec("a", ["getent", "hosts", "b"]).returncode == 2
        assert lab.exec("c", ["getent", "hosts", "b"]).stdout.split() == [lab.address("b"), "b"]
    assert lab.exec("a", ["getent", "hosts", "b"]).stdout.split() == [lab.address("b"), "b"]


def test_sshd_hung_absent_or_another(lab: Lab) -> None:
    with faults.hung_sshd(lab, "b"):
        assert connect(lab, LAUNCHER, "b", 22) == "open"
        assert "timed out" in ssh(lab, "b", "true").stderr
    with faults.no_sshd(lab, "b"):
        assert "Connection refused" in ssh(lab, "b", "true").stderr
    with faults.wrong_host_key(lab, "b"):
        assert "HOST IDENTIFICATION HAS CHANGED" in ssh(lab, "b", "true").stderr
    assert ssh(lab, "b", "hostname").stdout == "b\n"


def test_a_hung_host_runs_nothing(lab: Lab) -> None:
    with lab.popen(["ssh", "b", "while echo tick; do sleep 0.05; done"]) as session:
        assert read_line(session) == "tick\n"
        with faults.hung_host(lab, "b"):
            drain(session)
            assert not says_something(session, 0.5)
        assert says_something(session, 5)
        session.kill()


def test_another_clock_that_can_be_set(lab: Lab) -> None:
    def hours_ahead() -> int:
        return round((int(ssh(lab, "b", "date +%s").stdout) - time.time()) / 3600)

    with faults.clock(lab, "b", "+2h") as set_clock:
        assert hours_ahead() == 2
        set_clock("-5h")
        assert hours_ahead() == -5
    assert hours_ahead() == 0


def test_limits_and_small_places(lab: Lab) -> None:
    with faults.low_limits(lab, "b", nofile=64):
        assert ssh(lab, "b", "ulimit -n", USER).stdout == "64\n"
    with faults.small_shm(lab, "b", "1m"):
        full = lab.exec("b", ["dd", "if=/dev/zero", "of=/dev/shm/file", "bs=1M", "count=2"])
        assert "No space left" in full.stderr
    with faults.full_disk(lab, "b", "/tmp"):
        assert "No space left" in ssh(lab, "b", "echo text > /tmp/file", USER).stderr
    with faults.mounted(lab, "b", "/tmp", "noexec"):
        assert "Permission denied" in ssh(lab, "b", "cp /bin/true /tmp/; /tmp/true").stderr
    with faults.mounted(lab, "b", "/tmp", "ro"):
        assert "Read-only" in ssh(lab, "b", "touch /tmp/file").stderr
    assert not lab.path("b", "/tmp/filler").exists()


@pytest.mark.skipif(bool(faults.why_no_group("memory")), reason=str(faults.why_no_group("memory")))
def test_the_kernel_kills_what_takes_too_much_memory(lab: Lab) -> None:
    greedy = f"{sys.executable} -I -S -c 'print(len(bytearray(200 << 20)))'"
    with faults.small_memory(lab, "b", 100 << 20):
        assert ssh(lab, "b", f"{greedy}; echo $?").stdout == "137\n"
    assert ssh(lab, "b", greedy).stdout == f"{200 << 20}\n"


@pytest.mark.skipif(bool(faults.why_no_group("freezer")), reason=str(faults.why_no_group("freezer")))
def test_a_frozen_process_outlives_sigkill_until_it_thaws(lab: Lab) -> None:
    with lab.popen(["sleep", "1000.25"], place="b") as running:
        with faults.frozen([running.target]):
            running.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(timeout=0.5)
        running.wait(timeout=5)
        assert running.returncode == -signal.SIGKILL


def test_frozen_processes_thaw_by_themselves(lab: Lab) -> None:
    with lab.popen(["sleep", "1000"], place="b") as running, faults.frozen([running.target], at_most=0.4):
        running.kill()
        running.wait(timeout=20)


def read_line(running: Running) -> str:
    assert running.stdout is not None
    return running.stdout.readline()


def says_something(running: Running, seconds: float) -> bool:
    assert running.stdout is not None
    return bool(select.select([running.stdout], [], [], seconds)[0])


def drain(running: Running) -> None:
    """Take what is on its way, until 0.2 s pass without anything."""
    assert running.stdout is not None
    while says_something(running, 0.2):
        os.read(running.stdout.fileno(), 1 << 16)
