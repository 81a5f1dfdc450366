"""A real Slurm over the hosts of a lab: slurmctld on the launcher, a slurmd on every host, munge with its own key.

`start(lab)`, then `srun`, `sbatch` and `scancel` work on the launcher, as root and as the ordinary user. GPUs are
stand-ins (device nodes that nobody opens), enough for Slurm to hand out CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import shutil
import time

from .lab import LAUNCHER, PATH, Lab

STATE = "/run/lab/slurm"
GPUS = 4
"""Stand-ins on each host."""
CPUS = 8
"""What Slurm believes each host has; more than the machine may have, since the hosts are its fiction anyway."""
TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")

CONFIG = f"""\
ClusterName=lab
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
GresTypes=gpu
ReturnToService=2
StateSaveLocation={STATE}/state
SlurmdSpoolDir={STATE}/spool.%n
SlurmctldPidFile={STATE}/slurmctld.pid
SlurmdPidFile={STATE}/slurmd.%n.pid
SlurmctldLogFile={STATE}/slurmctld.log
SlurmdLogFile={STATE}/slurmd.%n.log
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why Slurm cannot be started here (a lab being possible), or None."""
    absent = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    return f"Slurm needs {', '.join(absent)} (Debian: slurm-wlm munge)" if absent else None


def start(lab: Lab, timeout: float = 20) -> None:
    """Every node is idle afterwards. TimeoutError with what the daemons logged when that takes longer (seconds)."""
    write_configuration(lab)
    start_munge(lab)
    lab.run(["slurmctld"], check=True)
    for host in lab.hosts:
        lab.exec(host, ["slurmd", "-N", host], check=True)
    deadline = time.monotonic() + timeout
    while set(node_states(lab)) != {"idle"}:
        if time.monotonic() > deadline:
            logs = lab.run(["sh", "-c", f"tail -n 5 {STATE}/*.log"]).stdout
            raise TimeoutError(f"nodes are {node_states(lab)} after {timeout} s\n{logs}")
        time.sleep(0.05)


def node_states(lab: Lab) -> list[str]:
    """The state of each node as sinfo words it; empty while slurmctld does not answer."""
    return lab.run(["sinfo", "--noheader", "--Node", "--format=%T"], timeout=10).stdout.split()


def write_configuration(lab: Lab) -> None:
    """STATE lies over /etc/slurm on every host, so that the tools need no option."""
    nodes = "".join(
        f"NodeName={host} NodeAddr={lab.address(host)} CPUs={CPUS} RealMemory=4000 Gres=gpu:{GPUS}\n"
        for host in lab.hosts
    )
    controller = f"SlurmctldHost={LAUNCHER}({lab.address(LAUNCHER)})\n"
    family = "CommunicationParameters=EnableIPv6\n" if lab.ipv6 else ""
    state = lab.path(LAUNCHER, STATE)
    (state / "slurm.conf").write_text(controller + family + nodes + CONFIG)
    (state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
    (state / "gres.conf").write_text(f"Name=gpu File={STATE}/gpu[0-{GPUS - 1}]\n")
    lab.run(["sh", "-ec", f"mkdir {STATE}/state; for i in $(seq 0 {GPUS - 1}); do mknod {STATE}/gpu$i c 1 3; done"])


def start_munge(lab: Lab) -> None:
    """One munged for all: its socket is a file, which every host sees."""
    script = f"""
        mkdir -m 755 /run/munge
        mkdir -m 700 {STATE}/munge
        head -c 128 /dev/urandom > {STATE}/munge/key
        chmod 400 {STATE}/munge/key
        munged --key-file={STATE}/munge/key --log-file={STATE}/munge/log \\
            --seed-file={STATE}/munge/seed --pid-file={STATE}/munge/pid"""
    lab.run(["sh", "-euc", script], check=True)
