"""What the kernel, the scheduler, the shell and the C library say. The last table but NCCL's general errors."""

from __future__ import annotations

from nvrun.diagnose.ends import MEMORY
from nvrun.diagnose.rule import Rule, Stage, rule

HOST_RULES: tuple[Rule, ...] = (
    # memory
    rule(
        "oom-killed",
        Stage.HOST,
        ("ut of memory: Kill", "oom-kill", "oom_kill", "OOM Killed", "oom_reaper", "OOMKilled", "OUT_OFMEMORY"),
        "The kernel killed a process ({process}) because the host or its cgroup ran out of memory",
        MEMORY,
        0.95,
        pattern=r"Kill(?:ed)? process (?P<process>\d+ \([^)]*\))|oom.?kill|OOM.?Killed|oom_reaper: reaped"
        r"|OUT_OFMEMORY",
    ),
    rule(
        "host-out-of-memory",
        Stage.HOST,
        ("Cannot allocate memory", "std::bad_alloc", "MemoryError", "DefaultCPUAllocator", "not enough memory"),
        "The host's memory (or the limit of the job) is used up",
        MEMORY,
        0.85,
        pattern=r"Cannot allocate memory|bad_alloc|MemoryError|DefaultCPUAllocator: |not enough memory",
    ),
    rule(
        "slurm-memory-limit",
        Stage.HOST,
        ("xceeded job memory limit", "exceeded memory limit"),
        "Slurm ended the job because it used more memory than it asked for",
        MEMORY,
        0.95,
    ),
    # scheduler
    rule(
        "time-limit",
        Stage.SETUP,
        ("DUE TO TIME LIMIT", "DUE to time limit"),
        "The job reached its time limit",
        "Ask for more (--time), or checkpoint before it ends (#SBATCH --signal=B:USR1@120)",
        0.97,
    ),
    rule(
        "node-failed",
        Stage.HARDWARE,
        ("DUE TO NODE FAILURE", "NODE_FAIL", "Node failure on", "DUE TO NODE"),
        "A host of the job failed, says the scheduler",
        "Exclude it (--exclude) and have it looked at",
        0.95,
    ),
    rule(
        "preempted",
        Stage.SETUP,
        ("DUE TO PREEMPTION", "PREEMPTED", "preempted"),
        "The job was preempted by one of higher priority",
        "Checkpoint often and let it be requeued (--requeue)",
        0.95,
        pattern=r"PREEMPT|JOB \d+ .*preempted",
    ),
    rule(
        "cancelled",
        Stage.SETUP,
        "CANCELLED AT",
        "The job was cancelled by someone (scancel)",
        "",
        0.9,
    ),
    # disks
    rule(
        "disk-full",
        Stage.HOST,
        ("No space left on device", "Errno 28", "errno 28"),
        "A disk is full",
        "df -h and df -i on that host; move caches, logs or checkpoints",
        0.95,
    ),
    rule(
        "disk-full",
        Stage.HOST,
        "Disk quota exceeded",
        "The disk quota is used up",
        "quota -s; move caches, logs or checkpoints",
        0.95,
    ),
    rule(
        "filesystem-broken",
        Stage.HOST,
        ("Stale file handle", "Read-only file system", "Input/output error", "Transport endpoint is not connected"),
        "A file system does not work: {what}",
        "mount and dmesg on that host; remount it or have the host looked at",
        0.85,
        pattern=r"(?P<what>Stale file handle|Read-only file system|Input/output error|Transport endpoint is not)",
    ),
    rule(
        "filesystem-broken",
        Stage.HOST,
        ("not responding", "EXT4-fs error", "XFS ("),
        "A file system or its server does not answer",
        "mount and dmesg on that host",
        0.7,
        pattern=r"nfs: server \S+ not responding|EXT4-fs error|XFS \(\S+\): (?:metadata I/O error|Corruption)",
    ),
    rule(
        "hung-task",
        Stage.HOST,
        "blocked for more than",
        "A process hangs in the kernel: a disk, a network file system or a driver does not answer",
        "dmesg shows its stack; such a process may need a reboot",
        0.7,
        pattern=r"task \S+ blocked for more than \d+ seconds",
    ),
    # limits
    rule(
        "process-limit",
        Stage.HOST,
        ("can't start new thread", "pthread_create failed", "Resource temporarily unavailable", "fork: retry"),
        "No further process or thread could be started: the limit of processes (ulimit -u, the cgroup's "
        "pids.max) is used up",
        "ulimit -u; systemd TasksMax=; docker --pids-limit; fewer data loader workers or OMP threads",
        0.85,
    ),
    # hardware as the kernel sees it
    rule(
        "gpu-lost",
        Stage.HARDWARE,
        ("RmInitAdapter failed", "has fallen off the bus", "GPU does not exist"),
        "The driver cannot start or reach a GPU",
        "Power-cycle the host; if it comes back, the GPU or its slot must be serviced",
        0.9,
        pattern=r"NVRM",
    ),
    rule(
        "pcie-error",
        Stage.HARDWARE,
        ("PCIe Bus Error", "AER: Uncorrected", "Uncorrectable (Fatal)"),
        "The PCIe bus reported an uncorrectable error",
        "lspci -vvv on the device; reseat the card or riser; have the host serviced",
        0.85,
        pattern=r"[Uu]ncorrect",
    ),
    rule(
        "machine-check",
        Stage.HARDWARE,
        ("Machine check", "[Hardware Error]"),
        "The CPU or memory reported a hardware error",
        "rasdaemon or the BMC's log names the DIMM or CPU",
        0.8,
        pattern=r"Machine [Cc]heck: |Uncorrected|[Ff]atal",
    ),
    rule(
        "nic-failing",
        Stage.HARDWARE,
        (
            "NETDEV WATCHDOG",
            "health compromised",
            "High Temperature",
            "insufficient power",
            "poll_health",
            "Port module event[error]",
        ),
        "A network card is failing: {what}",
        "Check the card's firmware, cooling and slot (dmesg on that host)",
        0.85,
        pattern=r"(?P<what>NETDEV WATCHDOG"
        r"|(?i:mlx5|pcie slot).*(?:compromised|Temperature|power|Fatal error|\[error\]).*)",
    ),
    rule(
        "link-down",
        Stage.NETWORK,
        ("Link is Down", "Link down"),
        "A network port lost its link (also seen of unused ports at boot: compare the time)",
        "Check cable, transceiver and switch port",
        0.4,
        pattern=r"(?P<port>[\w.-]*)(?:: )?(?:NIC )?Link (?:is )?[Dd]own",
        subject="{port}",
    ),
    # the network, whoever prints it
    rule(
        "no-route",
        Stage.NETWORK,
        ("No route to host", "Network is unreachable", "Host is unreachable", "errno: 113", "errno 113", "errno: 101"),
        "No route to a peer: the interface or subnet that was chosen does not reach it (they differ between "
        "hosts, or a "
        "management interface was taken), or a firewall rejects",
        "NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME) = an interface all hosts share; `ip route get ADDRESS` on both sides",
        0.8,
    ),
    rule(
        "address-unusable",
        Stage.NETWORK,
        ("Cannot assign requested address", "errno: 99"),
        "A connection got no local address: ephemeral ports are used up, or the address is not on this host",
        "ss -s; net.ipv4.ip_local_port_range; compare the address in the line with `ip -br addr`",
        0.6,
    ),
    rule(
        "connect-timeout",
        Stage.NETWORK,
        ("Connection timed out", "ETIMEDOUT", "errno: 110"),
        "A peer does not answer: a firewall drops the packets, the interface is wrong (veth, docker0), or "
        "the host is down",
        "nc -vz ADDRESS PORT from this host; NCCL_SOCKET_IFNAME = an interface all hosts share; open the "
        "ephemeral ports",
        0.7,
    ),
    rule(
        "peer-not-listening",
        Stage.NETWORK,
        ("Connection refused", "ECONNREFUSED"),
        "Nobody listens at an address: that process has not started, or has ended",
        "Look at the log of the host with that address",
        0.5,
        pattern=r"^(?!.*(?:retrying|\[W)).*(?:refused|REFUSED)",
    ),
    # processes that ended
    rule(
        "command-missing",
        Stage.SETUP,
        ("command not found", "execve()", "No such file or directory"),
        "A program is not on this host: {what}",
        "Check PATH, the modules loaded and the environment that the job gets on that host",
        0.85,
        pattern=r"(?P<what>[\w./-]+(?=: command not found)|(?<=execve\(\): )[^:]+(?=: No such file))",
    ),
    rule(
        "rank-killed",
        Stage.SYMPTOM,
        ("exitcode: -9", "exitcode  : -9", "exitcode -9", "Signal 9", "SIGKILL", "Killed", "exit code 137", "signal 9"),
        "A process was killed (signal 9): by the kernel because memory ran out, or by someone; the log alone "
        "cannot tell",
        "dmesg -T | grep -i 'killed process' on that host; watch its memory; " + MEMORY,
        0.6,
        pattern=r"exitcode ? ?:? -9\b|[Ss]ignal 9\b|SIGKILL|(?:^|[:\d\])>] *)Killed(?:  |$)|exit code 137",
    ),
    rule(
        "script-failed",
        Stage.SYMPTOM,
        ("returned non-zero exit status", "terminated with exit code"),
        "A process ended with an exit code, which does not say why",
        "Its own stderr has the traceback",
        0.4,
    ),
    rule(
        "bus-error",
        Stage.SYMPTOM,
        ("Bus error", "SIGBUS"),
        "A process got a bus error: /dev/shm or a mapped file ran out of space",
        "df -h /dev/shm; --shm-size=8g or --ipc=host for a container",
        0.7,
    ),
    rule(
        "task-exited",
        Stage.SYMPTOM,
        ("srun: error:", "prterun", "mpirun noticed", "Primary job  terminated"),
        "A task ended with an error: {text}",
        "Look at that task's own output",
        0.4,
        pattern=r"srun: error: (?P<text>\S+: tasks? [\d,-]+: .*)|noticed that process rank|non-zero",
    ),
)
