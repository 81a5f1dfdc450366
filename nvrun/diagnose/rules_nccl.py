"""What NCCL says when it fails (2.4 to 2.30; message texts as its sources have them), and the net plugins beside it.

Order counts: the first row that matches a line speaks for it.
"""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_ONE_INTERFACE = (
    "Name on each host an interface that reaches the others: NCCL_SOCKET_IFNAME==eth0 (`ip -br addr` lists)"
)
_COMPARE = (
    "Compare torch, NCCL and every NCCL_* variable between the hosts, then the order and sizes of the collectives"
)

NCCL_RULES: tuple[Rule, ...] = (
    # interfaces and plugins
    rule(
        "no-socket-interface",
        Stage.SETUP,
        ("no socket interface found", "no interface found", "No IP interface found", "No interface found in the same"),
        "NCCL found no usable network interface: NCCL_SOCKET_IFNAME names one that this host does not have or that has "
        "no address",
        _ONE_INTERFACE,
        0.95,
    ),
    rule(
        "net-plugin-missing",
        Stage.SETUP,
        ("Error: network ",),
        "NCCL_NET asks for the network {net}, but the plugin that brings it was not loaded",
        "Load the plugin (aws-ofi-nccl, HPC-X ...) and put its libnccl-net*.so on LD_LIBRARY_PATH, or unset NCCL_NET",
        0.95,
        pattern=r"Error: network (?P<net>.+?) not found",
    ),
    rule(
        "net-plugin-missing",
        Stage.SETUP,
        ("Failed to initialize any NET plugin", "NET/OFI Unable to find", "aws-ofi-nccl initialization failed"),
        "No network could be started: NCCL_NET or NCCL_NET_PLUGIN names one that cannot run on this host",
        "Look above for `NET/...` lines of that plugin; check /dev/infiniband and the plugin's libraries (ldd)",
        0.85,
    ),
    rule(
        "net-plugin-missing",
        Stage.SETUP,
        ("eligible providers", "suitable provider", "optimal provider", "provider efa output"),
        "libfabric found no provider that the net plugin can use: the EFA (or Slingshot) driver or library is missing",
        "fi_info -p efa on this host must list devices; pass /dev/infiniband into the container",
        0.8,
        pattern=r"[Nn]o (?:eligible|suitable) provider|not find any optimal provider|provider efa output empty",
    ),
    # who is in the job
    rule(
        "duplicate-gpu",
        Stage.SETUP,
        ("Duplicate GPU detected", "Multiple Ranks are using the same GPU"),
        "Two ranks use the same GPU ({both}): more ranks than GPUs, no torch.cuda.set_device(LOCAL_RANK), or "
        "two hosts with "
        "one NCCL_HOSTID",
        "Let --nproc-per-node be at most the number of visible GPUs and call torch.cuda.set_device(LOCAL_RANK) before "
        "anything of CUDA",
        0.95,
        pattern=r"Multiple Ranks|Duplicate GPU detected(?: : )?(?P<both>rank \d+ and rank \d+ both on \w+ device \w+)?",
    ),
    rule(
        "nccl-version-differs",
        Stage.SETUP,
        "Mismatched NCCL version detected",
        "The ranks loaded different NCCL versions{ranks}",
        "Use one environment everywhere; look for a second libnccl in LD_LIBRARY_PATH, LD_PRELOAD or the system",
        0.97,
        pattern=r"Mismatched NCCL version detected(?P<ranks>.*)",
    ),
    rule(
        "world-size-differs",
        Stage.SETUP,
        ("mismatch in rank count", "mismatch in info from procs"),
        "The ranks do not agree on the world size",
        "Check WORLD_SIZE, --nnodes and --nproc-per-node on every host; a stale job may share the rendezvous id",
        0.9,
    ),
    rule(
        "rank-twice",
        Stage.SETUP,
        "has already checked in",
        "Rank {rank} came twice: two processes think they are the same rank, or an old job still runs",
        "End what is left of earlier jobs; check --node-rank on every host and use a unique --rdzv-id",
        0.9,
        pattern=r"rank (?P<rank>\d+) of \d+ ranks has already checked in",
    ),
    rule(
        "topology-differs",
        Stage.SETUP,
        ("does not contain rank", "does not loop back to start"),
        "The ranks do not agree on the topology: hosts see another number of GPUs or NICs, or NCCL_* variables differ",
        "Compare nvidia-smi, `rdma link` and the NCCL_* variables between the hosts",
        0.65,
    ),
    rule(
        "nccl-value-invalid",
        Stage.SETUP,
        ("Invalid NCCL_", "XML topology file", "XML graph file", "Could not open XML", "Attribute "),
        "NCCL refuses the value of a variable, or the topology file that one names: {text}",
        "Correct or unset it (NCCL_TOPO_FILE, NCCL_GRAPH_FILE; some cloud images set one)",
        0.9,
        pattern=r"(?P<text>Invalid NCCL_.*|[^:]*XML .*|Attribute \w+ of node \w+ not found)",
    ),
    rule(
        "foreign-connection",
        Stage.SETUP,
        ("wrong magic", "magic mismatch", "wrong socket type", "unexpected magic", "received unexpected rank"),
        "Something that is not this job connected to NCCL's port: another job with the same address, or a port scanner",
        "Give each job its own rendezvous id and port range; find the other process with `ss -tnp`",
        0.7,
        pattern=r"NCCL WARN",
    ),
    # variables
    rule(
        "nccl-algo-unusable",
        Stage.SETUP,
        (
            "Unrecognized element token",
            "Unrecognized prefix token",
            "All entries except the first must have a prefix",
            "o algorithm/protocol available for function",
        ),
        "NCCL_ALGO or NCCL_PROTO has a value that NCCL cannot use: {what}",
        "Unset it, or write it as `allreduce:tree,ring` (2.24 and later; every collective needs one that is left)",
        0.95,
        pattern=r"(?P<what>(?:Unrecognized|All entries|[Nn]o algorithm/protocol).*)",
    ),
    rule(
        "nccl-buffer-tiny",
        Stage.SETUP,
        "NCCL_BUFFSIZE set by environment",
        "NCCL_BUFFSIZE was read as {bytes} bytes: NCCL knows no unit suffixes, and the job hangs or crashes with that",
        "Write it in bytes: NCCL_BUFFSIZE=4194304",
        0.9,
        pattern=r"NCCL_BUFFSIZE set by environment to (?P<bytes>\d{1,5})\.?$",
        subject="NCCL_BUFFSIZE",
        at_info=True,
    ),
    # ranks that do not fit together
    rule(
        "ranks-disagree",
        Stage.PROGRAM,
        (
            "essage truncated",
            "incorrect receive info",
            "collective mismatch error",
            "ismatched collective",
            "bytes instead of",
        ),
        "Ranks do not run the same collective with the same size: another call order, other shapes, or another NCCL "
        "version or variable on one of them",
        _COMPARE,
        0.85,
    ),
    rule(
        "nccl-call-wrong",
        Stage.PROGRAM,
        (
            "invalid root",
            "invalid type",
            "invalid reduction",
            "is not a valid pointer",
            "with NCCL device",
            "Invalid rank",
        ),
        "A call to NCCL has a wrong argument: {text}",
        "Check the tensor's device (torch.cuda.set_device(LOCAL_RANK) first), root and rank of that call",
        0.85,
        pattern=r"NCCL WARN (?P<text>.*)",
    ),
    # the wire
    rule(
        "no-libibverbs",
        Stage.NOTE,
        "Failed to open libibverbs.so",
        "libibverbs is not installed here, so NCCL uses sockets",
        "",
        0.9,
    ),
    rule(
        "address-unreachable",
        Stage.SETUP,
        "onnect to ",
        "NCCL tried to reach a peer at {address}, a loopback or link-local address, which other hosts do not have",
        _ONE_INTERFACE + "; no 127.0.1.1 line for the own name in /etc/hosts",
        0.75,
        pattern=r"NCCL WARN.*[Cc]onnect to \[?(?P<address>127\.[\d.]+|fe80:[^<\s]+).*failed",
    ),
    rule(
        "connection-aborted",
        Stage.NETWORK,
        "Software caused connection abort",
        "A connection to a peer was given up: a firewall or a wrong interface lies between, or the peer ended first",
        _ONE_INTERFACE + "; nc -vz ADDRESS PORT in both directions",
        0.6,
    ),
    rule(
        "peer-gone",
        Stage.CONSEQUENCE,
        (
            "Socket recv failed while polling",
            "Accept failed Resource temporarily",
            "Failed to execute operation",
            "Proxy Call to rank",
        ),
        "NCCL's proxy lost its connection because of an earlier failure",
        "",
        0.8,
    ),
    rule(
        "peer-not-listening",
        Stage.NETWORK,
        ("exceeded error retry count", "exceeded retries"),
        "A peer never answered on NCCL's port: its process is gone, a firewall closes the port, or the "
        "interface is wrong",
        "Open the ephemeral ports between the hosts (net.ipv4.ip_local_port_range), and check which address "
        "the line names",
        0.75,
    ),
    rule(
        "peer-not-listening",
        Stage.NETWORK,
        "Connection refused, retrying (",
        "A peer has not been listening for many tries: its process is late or gone, or its port is closed",
        "Look at the log of the host with that address",
        0.5,
        pattern=r"retrying \((?:1\d|2\d|3\d)/",
        at_info=True,
    ),
    rule(
        "peer-gone",
        Stage.CONSEQUENCE,
        ("Connection closed by remote peer", "remote process exited", "ncclRemoteError"),
        "A connection was closed by a process that ended before: look for the earliest failure elsewhere",
        "",
        0.95,
    ),
    rule(
        "too-many-open-files",
        Stage.HOST,
        "Too many open files",
        "The limit of open files is too small for the connections of this job",
        "ulimit -n 65536 (LimitNOFILE= in the service that starts the job)",
        0.95,
    ),
)
"""Rows for what NCCL itself reports, with its cause."""

NCCL_LAST_RULES: tuple[Rule, ...] = (
    rule(
        "nccl-error-unexplained",
        Stage.SYMPTOM,
        ("unhandled system error", "ncclSystemError"),
        "NCCL failed in a system call (sockets, shared memory, verbs); a WARN line of the same process says which",
        "Run again with NCCL_DEBUG=INFO if there is no WARN line",
        0.4,
    ),
    rule(
        "nccl-error-unexplained",
        Stage.SYMPTOM,
        ("unhandled cuda error", "ncclUnhandledCudaError"),
        "NCCL failed in a CUDA call; a WARN line of the same process says which",
        "Run again with NCCL_DEBUG=INFO if there is no WARN line",
        0.4,
    ),
    rule(
        "nccl-error-unexplained",
        Stage.SYMPTOM,
        (
            "ncclInternalError",
            "internal error - please report",
            "ncclInvalidUsage",
            "ncclInvalidArgument",
            "NCCL error",
        ),
        "NCCL refused or failed a call; a WARN line of the same process says why",
        "Run again with NCCL_DEBUG=INFO if there is no WARN line",
        0.4,
    ),
    rule(
        "nccl-warning",
        Stage.SYMPTOM,
        "NCCL WARN",
        "NCCL warned: {text}",
        "Run again with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH to see what led to it",
        0.3,
        pattern=r"NCCL WARN (?P<text>\S.*)",
    ),
)
"""NCCL's general errors: tried after every other table, since they do not say why."""
