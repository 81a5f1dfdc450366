"""Everything decided before the launch, as one frozen value. Pure: options, hosts and facts in, `Plan` out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nvrun.model import Binding, EnvVar, Frozen, Host
from nvrun.torchrun import TorchrunArgs

CONSOLE_ALL_UP_TO = 16
"""Ranks that are all shown on the console; above that only rank 0 and each host's first lines on stderr."""
FIRST_STDERR_LINES = 20

# What torchrun's console script does, without `-m`, which would import from the working directory (a `queue.py` there
# kills it).
_TORCHRUN = "import sys; sys.path[:1]=[p for p in sys.path[:1] if p]; from torch.distributed.run import main; main()"
_RUN_PATH = "import runpy,sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

# What torchrun starts as a rank: fetches nvrun/agent/rank.py from the supervisor's abstract unix socket and runs it.
_SHIM = (
    "import socket;sock=socket.socket(1,1);sock.connect(bytes(1)+b'{socket}');f=sock.makefile('rb');"
    "exec(compile(f.read(int(f.read(8),16)),'nvrun-agent/rank.py','exec'))"
)


class RankPlan(Frozen, frozen=True, kw_only=True):
    """What one rank gets at the gate."""

    rank: int
    local_rank: int
    binding: Binding | None = None
    prefix: tuple[str, ...] = ()
    """numactl and its arguments, before the interpreter."""
    cpus: tuple[int, ...] = ()
    """CPUs for sched_setaffinity where numactl cannot do it."""
    env: tuple[EnvVar, ...] = ()


class HostPlan(Frozen, frozen=True, kw_only=True):
    """What happens on one host."""

    host: Host
    node: int
    cwd: str
    folder: str
    """Where its logs go, as that host names it."""
    argv: tuple[str, ...]
    """torchrun, from numactl or the interpreter on."""
    env: tuple[EnvVar, ...] = ()
    """Variables that nvrun sets or changes for torchrun and all ranks; forwarded ones are among them."""
    unset: tuple[str, ...] = ()
    ranks: tuple[RankPlan, ...] = ()


class Plan(Frozen, frozen=True, kw_only=True):
    """What will happen, and on which hosts."""

    run_id: str
    world_size: int
    master_addr: str
    master_port: int
    hosts: tuple[HostPlan, ...]
    grace: float
    """Seconds from TERM to KILL."""
    lost_after: float
    """Seconds of silence after which a host ends its ranks; inf for never."""
    console: tuple[int, ...] | None = None
    """Ranks shown on the console; None means all."""


def socket_name(run_id: str, node: int) -> str:
    """The supervisor's abstract unix socket; the node is part of it, since hosts may share a network namespace."""
    return f"nvrun-{run_id}-{node}"


def program_argv(args: TorchrunArgs, python: str) -> list[str]:
    """The program's own command line, as torchrun would start it (torch.distributed.run.config_from_args)."""
    if args.program is None:
        return []
    if args.run_path:
        return [python, "-u", "-c", _RUN_PATH, args.program, *args.arguments]
    if args.no_python:
        return [args.program, *args.arguments]
    return [python, "-u", *(["-m"] if args.module else []), args.program, *args.arguments]


def host_argv(
    args: TorchrunArgs, *, python: str, socket: str, log_dir: str, prefix: Sequence[str] = ()
) -> tuple[str, ...]:
    """torchrun's command line on one host: always `--no-python --`, the shim, then the program."""
    shim = [python, "-I", "-S", "-c", _SHIM.format(socket=socket)]
    inner = args.replacing(
        no_python=True,
        module=False,
        run_path=False,
        log_dir=args.log_dir or log_dir,
        program=shim[0],
        arguments=(*shim[1:], *program_argv(args, python)),
    )
    return (*prefix, python, "-c", _TORCHRUN, *inner.to_argv())


def build(
    *,
    run_id: str,
    args: TorchrunArgs,
    hosts: Sequence[Host],
    ranks_per_host: Sequence[int],
    pythons: Sequence[str],
    folders: Sequence[str],
    cwd: str,
    master_addr: str,
    master_port: int,
    forwarded: Sequence[EnvVar] = (),
    unset: Sequence[str] = (),
    grace: float,
    lost_after: float,
    console: Sequence[int] | None = None,
) -> Plan:
    """A fixed world with static rendezvous: numeric address, node ranks in host order, an id that no other job has."""
    world = sum(ranks_per_host)
    layout = ",".join(str(ranks) for ranks in ranks_per_host)
    plans: list[HostPlan] = []
    first = 0
    for node, (host, ranks) in enumerate(zip(hosts, ranks_per_host, strict=True)):
        node_args = args.replacing(
            nnodes=(len(hosts), len(hosts)),
            nproc_per_node=ranks,
            rdzv_id=run_id,
            node_rank=node,
            master_addr=master_addr,
            master_port=master_port,
        )
        env = [
            *forwarded,
            EnvVar(name="NVRUN_RUN_ID", value=run_id, source="nvrun"),
            EnvVar(name="NVRUN_NODE_RANK", value=str(node), source="nvrun"),
            EnvVar(name="NVRUN_NODES", value=str(len(hosts)), source="nvrun"),
            EnvVar(name="NVRUN_LOCAL_WORLD_SIZES", value=layout, source="nvrun", why="ranks of each node, in order"),
            EnvVar(
                name="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                value=str(math.ceil(grace) + 1),
                source="nvrun: --grace",
                why="torchrun must not KILL before the grace has passed; a flag would need torch 2.13",
            ),
        ]
        plans.append(
            HostPlan(
                host=host,
                node=node,
                cwd=cwd,
                folder=folders[node],
                argv=host_argv(
                    node_args,
                    python=pythons[node],
                    socket=socket_name(run_id, node),
                    log_dir=f"{folders[node]}/torchrun",
                ),
                env=tuple(env),
                unset=tuple(unset),
                ranks=tuple(RankPlan(rank=first + local, local_rank=local) for local in range(ranks)),
            )
        )
        first += ranks
    shown: tuple[int, ...] | None = None
    if console is not None:
        shown = tuple(console)
    elif world > CONSOLE_ALL_UP_TO:
        shown = (0,)
    return Plan(
        run_id=run_id,
        world_size=world,
        master_addr=master_addr,
        master_port=master_port,
        hosts=tuple(plans),
        grace=grace,
        lost_after=lost_after,
        console=shown,
    )


def as_mapping(variables: Sequence[EnvVar]) -> Mapping[str, str]:
    """Later wins."""
    return {variable.name: variable.value for variable in variables}
