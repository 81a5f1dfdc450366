"""What torchrun, the rendezvous and Python say when a job does not get going: ports, names, files, modules."""

from __future__ import annotations

from nvrun.diagnose.rule import Rule, Stage, rule

_RESOLVE = "Use a numeric address for the endpoint, or add the name to /etc/hosts of every host (`getent hosts NAME`)"

_TAKEN = ("Address already in use", "EADDRINUSE", "address already in use")

START_RULES: tuple[Rule, ...] = (
    rule(
        "address-in-use",
        Stage.SETUP,
        _TAKEN,
        "Port {port} is taken: by another job or by one that was never ended, or torchrun and the script both "
        "listen on it",
        "ss -ltnp 'sport = :{port}' on that host shows who has it; end it, or give --rdzv-endpoint / --master-port "
        "another port",
        0.95,
        pattern=r"(?:bind to \[?[^\s\]]*\]?:|port: )(?P<port>\d+)\b",
    ),
    rule(
        "address-in-use",
        Stage.SETUP,
        _TAKEN,
        "A port is taken: by another job or by one that was never ended, or torchrun and the script both listen on it",
        "ss -ltnp on that host shows who has which; end it, or give --rdzv-endpoint / --master-port another port",
        0.95,
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
        (
            "client socket has timed out",
            "client socket timed out",
            "client socket has failed to connect",
            "connect() timed out",
        ),
        "The rendezvous store was not reached: nobody listens at the endpoint (rank 0's host not started, or "
        "not recognised as "
        "the endpoint's host), or a firewall or a wrong name lies between",
        "Start the endpoint's host first and give its numeric address; from another host: nc -vz ADDRESS PORT",
        0.8,
        # a refusal is only a warning ([W) as long as it is tried again
        pattern=r"timed out|any network address|^(?!.*\[W).*errno: (?:110|111)\b",
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
        "launcher-variables-missing",
        Stage.SETUP,
        "env:// rendezvous: environment variable",
        "The script was not started by a launcher: {name} is not set",
        "Start it with nvrun or torchrun",
        0.95,
        pattern=r"environment variable (?P<name>\w+) expected, but not set",
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
        "The module {module} is not installed for the Python that ran",
        "Install it for that Python (`PYTHON -m pip install NAME`), or let --python or --setup choose the environment "
        "that has it; for a module of your own, its folder belongs in PYTHONPATH",
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
)
