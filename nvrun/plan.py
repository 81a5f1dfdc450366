"""Everything decided before the launch, as one frozen value. Pure: settings, hosts and facts in, `Plan` out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from nvrun.model import Binding, EnvVar, Frozen, Host
from nvrun.torchrun import TorchrunArgs

CONSOLE_ALL_UP_TO = 16
"""Ranks that are all shown on the console; above that only rank 0 and each host's first lines on stderr."""
FIRST_STDERR_LINES = 20
"""Lines of stderr that a host's hidden ranks may show all the same: a traceback's worth."""

# What torchrun's console script does, without `-m`, which would import from the working directory (a `queue.py` there
# kills it). Importing torch makes objects that stay: the collector looks for garbage among them ten times and finds
# none (0.15 of 1.2 s), and taking them apart at the end is time that the job's end would wait for (0.3 s). An exit
# function or a flush that fails after a good end does not make it a failure, nor does it in Python itself.
_TORCHRUN = (
    "import atexit,contextlib,gc,os,sys; sys.path[:1]=[p for p in sys.path[:1] if p]; "
    "gc.disable(); from torch.distributed.run import main; gc.freeze(); gc.enable(); "
    "main(); end=contextlib.ExitStack(); end.callback(os._exit,0); "
    "end.callback(lambda: sys.stderr.flush()); end.callback(lambda: sys.stdout.flush()); "
    "end.callback(atexit._run_exitfuncs); end.close()"
)
_RUN_PATH = "import runpy,sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

# What torchrun starts as a rank: fetches nvrun/agent/rank.py from the supervisor's abstract unix socket and runs it, if
# whoever listens there is of the same user (SO_PEERCRED): an abstract name is anybody's once its owner is gone.
SHIM = (
    "import os,socket,struct;sock=socket.socket(1,1);sock.connect(bytes(1)+b'{socket}');f=sock.makefile('rb');"
    "struct.unpack('3i',sock.getsockopt(1,17,12))[1]==os.getuid() or os._exit(126);"
    "exec(compile(f.read(int(f.read(8),16)),'nvrun-agent/rank.py','exec'))"
)

Rendezvous = Literal["static", "c10d", "user"]
"""`static`: a fixed world that never restarts. `c10d`: restarts or a range of nodes. `user`: as the user said."""


class Site(Frozen, frozen=True, kw_only=True):
    """A host of the job and what was learned from it before torchrun starts."""

    host: Host
    ranks: int
    python: str
    """The job's interpreter there."""
    folder: str
    """Where its logs go, as that host names it."""
    forwarded: tuple[EnvVar, ...] = ()
    """The launcher's variables that travel to it; none where it has them anyway."""
    address: str = "127.0.0.1"
    """Its numeric address in the network of the rendezvous."""


class LastCommand(Frozen, frozen=True, kw_only=True):
    """What a rank's host runs while the rank still lives, before it is told to end."""

    name: str
    """Its output is the file `rank<N>.<name>` among the host's logs."""
    argv: tuple[str, ...]
    """`{pid}` in it stands for the rank's."""
    seconds: float = 10.0
    """What it may take; the grace goes on meanwhile."""


class Echoed(Frozen, frozen=True, kw_only=True):
    """Lines of log files that the console shows too."""

    files: str
    """Pattern of their names among the host's logs, `nccl.*.log`; the last number in a name is a rank's pid."""
    text: str
    """What such a line holds."""


class RankPlan(Frozen, frozen=True, kw_only=True):
    """What one rank gets at the gate."""

    rank: int
    """Counted as if every node before had as many; from the first host on where the node's rank is not known."""
    local_rank: int
    binding: Binding | None = None
    prefix: tuple[str, ...] = ()
    """numactl and its arguments, then what hooks put before the interpreter."""
    cpus: tuple[int, ...] = ()
    """CPUs for sched_setaffinity where numactl cannot do it."""
    env: tuple[EnvVar, ...] = ()
    last: tuple[LastCommand, ...] = ()
    files: int = 0
    """Streams that torchrun's own files get too, as in --redirects and --tee: 1 stdout, 2 stderr."""
    hidden: int = 0
    """Streams that the console does not get: --redirects without --tee."""


class HostPlan(Frozen, frozen=True, kw_only=True):
    """What happens on one host."""

    host: Host
    node: int
    """Its place among the hosts of this plan."""
    node_rank: int | None = None
    """Its place among the nodes of the job; None where torchrun's rendezvous decides it, and with it the ranks."""
    cwd: str
    folder: str
    argv: tuple[str, ...]
    """torchrun, from the interpreter on, with the shim and the program."""
    prefix: tuple[str, ...] = ()
    """What hooks put before torchrun."""
    program: tuple[str, ...]
    """What each rank becomes: the end of `argv`."""
    env: tuple[EnvVar, ...] = ()
    """Variables that nvrun sets for torchrun and all ranks, whatever the host has; forwarded ones are among them."""
    defaults: tuple[EnvVar, ...] = ()
    """Variables that hold where the host has none of that name."""
    ranks: tuple[RankPlan, ...] = ()
    echo: tuple[Echoed, ...] = ()


class Plan(Frozen, frozen=True, kw_only=True):
    """What will happen, and on which hosts."""

    run_id: str
    attempt: int = 0
    """Counts those of this run, from 0."""
    world_size: int
    """Of the whole job, as far as the number of its nodes is fixed."""
    nodes: int = 0
    """The most nodes that the job may have, those of other nvruns among them; 0 where only its hosts are known."""
    rendezvous: Rendezvous
    master_addr: str | None
    """None: decided by the user's rendezvous or by torchrun."""
    master_port: int | None
    hosts: tuple[HostPlan, ...]
    min_nodes: int
    """With fewer hosts than this the job is over."""
    restarts: int
    """What torchrun may restart before a rank's failure is the job's."""
    grace: float
    """Seconds from TERM to KILL."""
    lost_after: float
    """Seconds of silence after which a host ends its ranks; inf for never."""
    console: tuple[int, ...] | None = None
    """Ranks shown on the console; None means all."""

    @property
    def id(self) -> str:
        return attempt_id(self.run_id, self.attempt)

    @property
    def whole(self) -> bool:
        """Whether its hosts are all of the job: not where something else starts an nvrun on each node."""
        return self.nodes <= len(self.hosts)


def attempt_id(run_id: str, attempt: int) -> str:
    """Tells the attempts of a run apart: in marks of processes, names of sockets and folders, and at the rendezvous. A
    host that was struck off may still run its part of an earlier one."""
    return f"{run_id}.a{attempt}" if attempt else run_id


def socket_name(attempt: str, node: int) -> str:
    """The supervisor's abstract unix socket, by the attempt's id; the node is part of it, since hosts may share a
    network namespace."""
    return f"nvrun-{attempt}-{node}"


def rendezvous(args: TorchrunArgs, *, fleet: bool, alone: bool = False) -> Rendezvous:
    """Static for a fixed world without restarts. With restarts static hangs over two hosts, and so c10d it is, with
    its host named, numeric addresses and no shared store (measured on torch 2.13). A node that is the whole job
    (`alone`) keeps torchrun's static in any case, and only its port is chosen: two jobs of one machine would both
    take 29500. The user's own flags win; a --master-port alone is no rendezvous of his own, but the one port that is
    tried (prepare)."""
    if not (fleet or alone) or args.is_set("rdzv_backend", "rdzv_endpoint", "master_addr", "standalone"):
        return "user"
    elastic = args.nnodes[0] != args.nnodes[1] and args.is_set("nnodes")
    return "c10d" if fleet and (args.max_restarts or elastic) else "static"


def program_argv(args: TorchrunArgs, python: str) -> list[str]:
    """The program's own command line, as torchrun would start it (torch.distributed.run.config_from_args)."""
    if args.program is None:
        return []
    if args.run_path:
        return [python, "-u", "-c", _RUN_PATH, args.program, *args.arguments]
    if args.no_python:
        return [args.program, *args.arguments]
    return [python, "-u", *(["-m"] if args.module else []), args.program, *args.arguments]


def host_argv(args: TorchrunArgs, *, python: str, socket: str, log_dir: str | None) -> tuple[str, ...]:
    """torchrun's command line on one host: always `--no-python --`, the shim, then the program."""
    shim = [python, "-I", "-S", "-c", SHIM.format(socket=socket)]
    # torchrun's tail of a tee'd file would show every line a second time.
    once = {"tee": "0", "redirects": _both(args.redirects, args.tee)} if args.is_set("redirects", "tee") else {}
    inner = args.replacing(
        **once,
        no_python=True,
        module=False,
        run_path=False,
        log_dir=args.log_dir or log_dir,
        program=shim[0],
        arguments=(*shim[1:], *program_argv(args, python)),
    )
    return (python, "-c", _TORCHRUN, *inner.to_argv())


def _streams(text: str, local_rank: int) -> int:
    """What `3` or `0:1,1:2` says of one rank: 1 stdout, 2 stderr, 3 both."""
    if ":" not in text:
        return int(text)
    chosen = dict(part.split(":") for part in text.split(","))
    return int(chosen.get(str(local_rank), "0"))


def _both(redirects: str, tee: str) -> str:
    """One value for what is in either. Where torch's form cannot say it (ranks above 9), all ranks get both."""
    masks = [_streams(redirects, local) | _streams(tee, local) for local in range(10)]
    others = _streams(redirects, 10) | _streams(tee, 10)
    if others:
        return str(others) if set(masks) == {others} else "3"
    return ",".join(f"{local}:{mask}" for local, mask in enumerate(masks) if mask) or "0"


def build(
    *,
    run_id: str,
    attempt: int = 0,
    restarts: int = 0,
    args: TorchrunArgs,
    sites: Sequence[Site],
    cwd: str,
    fleet: bool,
    alone: bool = False,
    master_port: int | None,
    env: Sequence[EnvVar] = (),
    defaults: Sequence[EnvVar] = (),
    grace: float,
    lost_after: float,
    console: Sequence[int] | None = None,
) -> Plan:
    """The plan as far as torchrun's own command lines go; bindings come with the facts. `sites` in rank order; in node
    mode (`fleet` false) there is one, this host, and the user's rendezvous is left as it is, unless this node is the
    whole job (`alone`). `restarts`: how often the job has been started anew on other hosts."""
    how = rendezvous(args, fleet=fleet, alone=alone)
    own_id = attempt_id(run_id, attempt)
    here = sum(site.ranks for site in sites)
    nodes = len(sites) if fleet or alone or args.standalone else max(args.nnodes[1], len(sites))
    node_ranks = _node_ranks(args, how, len(sites), nodes)
    plans: list[HostPlan] = []
    first = (node_ranks[0] or 0) * here if len(sites) == 1 else 0
    for node, site in enumerate(sites):
        node_args = args.replacing(
            nproc_per_node=site.ranks, **_rendezvous_flags(args, how, node, sites, own_id, master_port)
        )
        plans.append(
            HostPlan(
                host=site.host,
                node=node,
                node_rank=node_ranks[node],
                cwd=cwd,
                folder=site.folder,
                argv=host_argv(
                    node_args,
                    python=site.python,
                    socket=socket_name(own_id, node),
                    log_dir=f"{site.folder}/torchrun" if site.folder else None,
                ),
                program=tuple(program_argv(args, site.python)),
                env=(*site.forwarded, *env, *_own_variables(run_id, restarts, sites, node, args, how, grace, fleet)),
                defaults=(*defaults, *_torchruns_default(site.ranks)),
                ranks=tuple(
                    RankPlan(
                        rank=first + local,
                        local_rank=local,
                        files=_streams(args.redirects, local) | _streams(args.tee, local),
                        hidden=_streams(args.redirects, local) & ~_streams(args.tee, local),
                    )
                    for local in range(site.ranks)
                ),
            )
        )
        first += site.ranks
    shown: tuple[int, ...] | None = None
    if console is not None:
        shown = tuple(console)
    elif here > CONSOLE_ALL_UP_TO:
        shown = (0,)
    return Plan(
        run_id=run_id,
        attempt=attempt,
        world_size=here * nodes if len(sites) == 1 and args.nnodes[0] == args.nnodes[1] else here,
        nodes=nodes,
        rendezvous=how,
        master_addr=sites[0].address if how != "user" else None,
        master_port=master_port if how != "user" else None,
        hosts=tuple(plans),
        min_nodes=args.nnodes[0] if args.is_set("nnodes") and fleet else len(sites),
        restarts=args.max_restarts,
        grace=grace,
        lost_after=lost_after,
        console=shown,
    )


def _node_ranks(args: TorchrunArgs, how: Rendezvous, hosts: int, nodes: int) -> list[int | None]:
    """The node ranks of so many hosts, as far as they are known before torchrun has met: c10d and plug-ins number the
    nodes themselves, whatever --node-rank says."""
    if nodes == 1:
        return [0]
    if how == "c10d" or args.rdzv_backend != "static":
        return [None] * hosts
    return [args.node_rank] if hosts == 1 else list(range(hosts))


def _rendezvous_flags(
    args: TorchrunArgs, how: Rendezvous, node: int, sites: Sequence[Site], own_id: str, port: int | None
) -> dict[str, object]:
    nodes = (args.nnodes[0] if args.is_set("nnodes") else len(sites), len(sites))
    # An id that no other job has: with torchrun's default another job's node joined and "trained".
    unique = {} if args.is_set("rdzv_id") else {"rdzv_id": own_id}
    if how == "static":
        return {
            "nnodes": nodes,
            "node_rank": node,
            "master_addr": sites[0].address,
            "master_port": port,
            **unique,
        }
    if how == "c10d":
        return {
            "nnodes": nodes,
            "rdzv_backend": "c10d",
            "rdzv_endpoint": f"{_bracketed(sites[0].address)}:{port}",
            "rdzv_conf": ",".join(filter(None, [f"is_host={int(node == 0)}", args.rdzv_conf])),
            "local_addr": sites[node].address,
            **unique,
        }
    if len(sites) == 1:
        return {}
    flags: dict[str, object] = {"nnodes": nodes, **unique}
    if not args.is_set("rdzv_backend") or args.rdzv_backend == "static":
        flags["node_rank"] = node
        if not args.is_set("rdzv_endpoint", "master_addr"):
            flags["master_addr"] = sites[0].address
    return flags


def _own_variables(
    run_id: str,
    restarts: int,
    sites: Sequence[Site],
    node: int,
    args: TorchrunArgs,
    how: Rendezvous,
    grace: float,
    fleet: bool,
) -> list[EnvVar]:
    """What nvrun itself tells torchrun and the ranks."""
    values = [EnvVar(name="NVRUN_RUN_ID", value=run_id, source="nvrun", why="names this run")]
    if fleet:
        layout = ",".join(str(site.ranks) for site in sites)
        values += [
            EnvVar(name="NVRUN_NODE_RANK", value=str(node), source="nvrun", why="this node in host order"),
            EnvVar(name="NVRUN_NODE_COUNT", value=str(len(sites)), source="nvrun", why="nodes of the run"),
            EnvVar(name="NVRUN_LOCAL_WORLD_SIZES", value=layout, source="nvrun", why="ranks of each node, in order"),
            EnvVar(name="NVRUN_RESTART_COUNT", value=str(restarts), source="nvrun", why="starts anew on other hosts"),
        ]
    if args.shutdown_timeout is None:
        values.append(
            EnvVar(
                name="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                value=str(math.ceil(grace) + 1),
                source="nvrun: --grace",
                why="torchrun must not KILL before the grace has passed; its flag needs torch 2.13",
            )
        )
    if how == "c10d":
        values.append(
            EnvVar(
                name="TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
                value="1",
                source="nvrun: restarts",
                why="the shared store hands out stale addresses after a restart over several hosts",
            )
        )
    return values


def _torchruns_default(ranks: int) -> list[EnvVar]:
    """What torchrun would set with a warning of four lines on every host."""
    if ranks < 2:
        return []
    why = "torchrun's own default for several ranks on a host"
    return [EnvVar(name="OMP_NUM_THREADS", value="1", source="torchrun", why=why)]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def as_mapping(variables: Sequence[EnvVar]) -> Mapping[str, str]:
    """Later wins."""
    return {variable.name: variable.value for variable in variables}
