"""What torch.distributed, gloo and the data loader say once the ranks run.

Rank numbers: `[rank16]:` at the start of a line is the global rank, `[Rank 0]` later in it the rank within the process
group, so only the first is taken as a rank.
"""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_FIND_MISSING = (
    "Find the rank that did not come: one that failed before (its own log), or one on another path (checkpoint, "
    "evaluation, uneven batches); the flight recorder's dumps name it"
)

TORCH_RULES: tuple[Rule, ...] = (
    # collectives
    rule(
        "ranks-disagree",
        Stage.PROGRAM,
        (
            "Detected mismatch between collectives",
            "op.preamble.length <= op.nbytes",
            "Received data size doesn't match",
            "ollectives differ",
        ),
        "Ranks called different collectives, or with different shapes: {text}",
        "Compare what the ranks do from there on: branches that depend on the rank, uneven data, layers skipped",
        0.9,
        pattern=r"(?P<text>(?:Detected mismatch|[Ee]nforce fail|Received data|op\.preamble|[Cc]ollectives).*)",
    ),
    rule(
        "ddp-unused-parameters",
        Stage.PROGRAM,
        ("Expected to have finished reduction in the prior iteration", "Expected to mark a variable ready only once"),
        "DDP's parameters were not used once each in an iteration",
        "find_unused_parameters=True, or static_graph=True with activation checkpointing",
        0.95,
    ),
    rule(
        "ddp-model-differs",
        Stage.PROGRAM,
        ("appears not to match", "DDP expects same model across all ranks"),
        "The model is not the same on all ranks",
        "Build the model from the same configuration and seed on every rank; compare code versions between hosts",
        0.95,
    ),
    rule(
        "ranks-missing",
        Stage.TIMEOUT,
        ("failed to pass monitoredBarrier", "has not joined"),
        "Ranks did not reach a barrier: {text}",
        _FIND_MISSING,
        0.85,
        pattern=r"(?P<text>Ranks? [\d, ]+ failed to pass.*|.*has not joined.*)",
    ),
    rule(
        "first-collective-timeout",
        Stage.TIMEOUT,
        ("collective operation timeout", "Watchdog caught"),
        "The very first collective ({op}) never ended: the ranks never talked to each other. GPU peer access "
        "(ACS, IOMMU), "
        "the network between the hosts, or a rank that never came",
        "Try NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1: what helps tells the layer; NCCL_DEBUG=INFO shows "
        "the transports",
        0.6,
        pattern=r"SeqNum=1, OpType=(?P<op>\w+)",
    ),
    rule(
        "collective-timeout",
        Stage.TIMEOUT,
        ("collective operation timeout", "Collective operation timeout"),
        "A collective ({op}, number {seq}) did not end in time: some rank never joined it, because it failed first, or "
        "because the program took another path there. Those that report it are the ones that waited",
        _FIND_MISSING,
        0.6,
        pattern=r"timeout(?:.*?SeqNum=(?P<seq>\d+))?(?:.*?OpType=(?P<op>\w+))?",
    ),
    rule(
        "watchdog-stuck",
        Stage.TIMEOUT,
        (
            "Heartbeat monitor timed out",
            "watchdog got stuck",
            "ProcessGroupNCCL watchdog hang",
            "watchdog thread got stuck",
        ),
        "NCCL's watchdog thread itself was stuck: a CUDA call or the GIL is blocked (often a GPU that hangs, "
        "or a deadlock)",
        "py-spy dump of the process; dmesg for an Xid; a longer TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC if a load "
        "takes that long",
        0.6,
    ),
    rule(
        "gloo-timeout",
        Stage.TIMEOUT,
        ("Timed out waiting",),
        "A gloo collective waited for a rank that did not come, or whose packets do not arrive",
        _FIND_MISSING,
        0.6,
        pattern=r"Timed out waiting \d+ms for (?:recv|send)",
    ),
    rule(
        "store-timeout",
        Stage.TIMEOUT,
        ("wait timeout after", "Socket Timeout", "socket timeout", "Timed out initializing process group"),
        "A rank waited in vain for the others at the store: one did not start, failed first, or cannot reach it",
        _FIND_MISSING,
        0.6,
    ),
    rule(
        "gloo-connect",
        Stage.NETWORK,
        ("connectFullMesh failed",),
        "Gloo could not connect the ranks: a host's own name resolves to loopback, GLOO_SOCKET_IFNAME is wrong, or a "
        "firewall lies between",
        "GLOO_SOCKET_IFNAME=<interface all hosts share>; remove the 127.0.1.1 line of the own name from /etc/hosts",
        0.75,
    ),
    rule(
        "no-socket-interface",
        Stage.SETUP,
        ("Unable to find address for", "Unable to find interface"),
        "Gloo found no usable interface: GLOO_SOCKET_IFNAME names one that this host does not have",
        "Name an interface of this host exactly (`ip -br addr`), or unset it",
        0.9,
    ),
    # data loader
    rule(
        "shm-full",
        Stage.HOST,
        ("out of shared memory", "insufficient shared memory"),
        "/dev/shm is full: the data loader's workers put batches there",
        "Start the container with --shm-size=8g or --ipc=host, or use fewer workers",
        0.95,
    ),
    rule(
        "data-worker-died",
        Stage.SYMPTOM,
        ("DataLoader worker",),
        "A data loader worker {how}; killed means the host's memory ran out",
        "Look for an out-of-memory kill in dmesg; fewer workers or less prefetch",
        0.6,
        pattern=r"DataLoader worker \(pid(?:\(s\))? [^)]*\) (?P<how>is killed by signal: \w+|exited unexpectedly)",
    ),
    # what follows from another end
    rule(
        "store-gone",
        Stage.CONSEQUENCE,
        (
            "failed to recv, got 0 bytes",
            "Did the remote server shutdown or crash",
            "server has shut down too early",
            "sendBytes failed",
            "recvValue failed",
            "recvVector failed",
            'check the "should dump" flag',
            "TCPStore is available",
            "Stop_waiting response is expected",
        ),
        "The store of rank 0 was gone: its process had ended before",
        "",
        0.9,
    ),
    rule(
        "peer-gone",
        Stage.CONSEQUENCE,
        (
            "Connection closed by peer",
            "onnection reset by peer",
            "Broken pipe",
            "Socket closed",
            "Application timeout caused pair closure",
        ),
        "A connection was closed by a process that ended before: look for the earliest failure elsewhere",
        "",
        0.9,
    ),
    rule(
        "taken-down",
        Stage.CONSEQUENCE,
        (
            "taking the entire process down",
            "Error waiting on exit barrier",
            "Some NCCL operations have failed",
            "NCCL communicator was aborted",
            "eceived a dump signal",
            "corrupted/incomplete data",
            "closing signal SIGTERM",
            "death signal, shutting down",
            "Fatal Python error: Aborted",
            "Exiting because the job was aborted",
            "Received abort signal",
            "terminate called after throwing",
            "Job step aborted",
            "Process group watchdog thread terminated with exception",
        ),
        "A process was ended because of an earlier failure",
        "",
        0.9,
    ),
    rule(
        "ended-from-outside",
        Stage.SYMPTOM,
        ("SignalException", "got signal:"),
        "torchrun was told to end by signal {signal}: scancel, a time limit, a closed terminal (1), or Ctrl-C (2)",
        "Look who sent it: the scheduler's log, or `last` for a closed session",
        0.6,
        pattern=r"got signal: (?P<signal>\d+)",
    ),
    rule(
        "segfault",
        Stage.PROGRAM,
        ("Segmentation fault", "SIGSEGV", "segfault at"),
        "A process crashed in native code (segmentation fault)",
        "The stack above (PYTHONFAULTHANDLER=1 prints it) names the module; look for mixed library versions",
        0.8,
        pattern=r"Segmentation fault|segfault at|(?:[Ss]ignal|got) .*SIGSEGV|Signals\.SIGSEGV|SIGSEGV\) received",
    ),
)
