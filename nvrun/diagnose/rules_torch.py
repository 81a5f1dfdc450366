"""What torch.distributed, torchrun, gloo and the data loader say.

Rank numbers: `[rank16]:` at the start of a line is the global rank, `[Rank 0]` later in it the rank within the process
group, so only the first is taken as a rank.
"""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_FIND_MISSING = (
    "Find the rank that did not come: one that failed before (its own log), or one on another path (checkpoint, "
    "evaluation, uneven batches); the flight recorder's dumps name it"
)
_RESOLVE = "Use a numeric address for the endpoint, or add the name to /etc/hosts of every host (`getent hosts NAME`)"

TORCH_RULES: tuple[Rule, ...] = (
    # rendezvous and ports
    rule(
        "address-in-use",
        Stage.SETUP,
        ("Address already in use", "EADDRINUSE", "address already in use"),
        "The port is taken ({port}): by another job or by one that was never ended, or torchrun and the script "
        "both listen on it",
        "ss -ltnp 'sport = :29500' shows who has it; end it, or give --rdzv-endpoint / --master-port another port",
        0.95,
        pattern=r"(?:bind to (?:\[?[^\s\]]*\]?:)(?P<port>\d+)\b|ddress already in use|EADDRINUSE)",
    ),
    rule(
        "address-in-use",
        Stage.SETUP,
        "has failed to listen on any local network address",
        "The rendezvous port cannot be opened on this host: it is taken, or the address is not this host's",
        "ss -ltnp shows who has it; end it, or give --rdzv-endpoint / --master-port another port",
        0.8,
    ),
    rule(
        "reverse-lookup-failed",
        Stage.NOTE,
        ("The hostname of the client socket cannot be retrieved",),
        "A peer's address has no name in DNS; harmless, the connection goes on",
        "",
        0.95,
    ),
    rule(
        "no-ipv6",
        Stage.NOTE,
        ("gai error: -5", "gai error: -9", "Address family not supported by protocol"),
        "A name has no IPv6 address, or this host has no IPv6; harmless, IPv4 is used",
        "",
        0.8,
    ),
    rule(
        "name-unresolvable",
        Stage.SETUP,
        ("Name or service not known", "name resolution", "gai error", "getaddrinfo", "nodename nor servname", "esolve"),
        "A host name cannot be resolved here",
        _RESOLVE,
        0.9,
        pattern=r"Name or service not known|failure in name resolution|gai error: -[23]\b|nodename nor servname"
        r"|getaddrinfo.*fail|(?:annot|ould not|ailed to) resolve (?:host|address|MASTER_ADDR|\S+:\d)",
    ),
    rule(
        "no-route",
        Stage.NETWORK,
        "client socket has failed to connect",
        "The rendezvous store on {peer} cannot be reached (no route): wrong interface or name, or a firewall "
        "that rejects",
        "Use the numeric address of a network all hosts share as endpoint; check /etc/hosts and `ip route get ADDRESS`",
        0.8,
        pattern=r"connect to (?P<peer>\S+).*errno: (?:113|101)\b",
    ),
    rule(
        "store-unreachable",
        Stage.NETWORK,
        ("client socket has timed out", "client socket timed out", "client socket has failed to connect"),
        "The rendezvous store was not reached: nobody listens at the endpoint (rank 0's host not started, or "
        "not recognised as "
        "the endpoint's host), or a firewall or a wrong name lies between",
        "Start the endpoint's host first and give its numeric address; from another host: nc -vz ADDRESS PORT",
        0.8,
        # a refusal is only a warning ([W) as long as it is tried again
        pattern=r"timed out|^(?!.*\[W).*errno: (?:110|111)\b",
    ),
    rule(
        "ranks-missing-at-start",
        Stage.NETWORK,
        ("clients joined", "waiting for clients"),
        "Not all hosts joined in time ({joined}): one was not started, cannot reach the endpoint, or got "
        "another --nnodes",
        "Look at the log of the hosts that are missing; --nnodes, --rdzv-id and the endpoint must be equal everywhere",
        0.8,
        pattern=r"(?P<joined>\d+/\d+) clients joined|waiting for clients",
    ),
    rule(
        "rendezvous-closed",
        Stage.SYMPTOM,
        ("RendezvousClosedError", "rendezvous is closed", "RendezvousGracefulExitError"),
        "The rendezvous is already closed: an earlier attempt failed for good, and late hosts cannot join it any more",
        "Start all hosts again with a new --rdzv-id",
        0.7,
    ),
    rule(
        "rendezvous-lost",
        Stage.NETWORK,
        ("RendezvousConnectionError", "RendezvousTimeoutError", "The connection to the C10d store has failed"),
        "The rendezvous could not be reached or was lost: nobody hosts it, its host ended, or a firewall lies between",
        "Check that one host is the endpoint (numeric address, is_host) and still runs; then test its port "
        "from the others",
        0.7,
    ),
    rule(
        "torchrun-arguments",
        Stage.SETUP,
        ("error: unrecognized arguments", "error: the following arguments are required", "error: argument -"),
        "A command line was not understood: {text}",
        "Check spelling and missing blanks between flags",
        0.95,
        pattern=r"(?P<text>error: (?:unrecognized|the following|argument).*)",
    ),
    rule(
        "script-missing",
        Stage.SETUP,
        ("can't open file", "No such file or directory: '"),
        "A file is not on this host: {file}",
        "Check the working directory and that the file lies on a path all hosts share",
        0.85,
        pattern=r"(?:can't open file|No such file or directory:) (?P<file>'[^']*')",
    ),
    rule(
        "module-missing",
        Stage.SETUP,
        ("No module named", "ModuleNotFoundError"),
        "Python does not find the module {module}: another environment than the one you meant is active on this host",
        "Compare `which python` and the environment between the hosts; --setup or --python choose it",
        0.9,
        pattern=r"No module named (?P<module>'?[\w.]+'?)",
    ),
    rule(
        "library-missing",
        Stage.SETUP,
        ("cannot open shared object file", "undefined symbol", "GLIBC", "version `"),
        "A shared library is missing or of another version: {text}",
        "ldd on the library named; look for a second CUDA, NCCL or libstdc++ in LD_LIBRARY_PATH",
        0.9,
        pattern=r"(?P<text>\S+: (?:cannot open shared object|undefined symbol).*|\S*: version `[^']+' not found.*)",
    ),
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
        pattern=r"Segmentation fault|segfault at|(?:signal|Signal|got) .*SIGSEGV|SIGSEGV\) (?:received|was)",
    ),
)
