"""Where the nodes of a job meet that something else starts, by torchrun's own flags and variables. Pure."""

from __future__ import annotations

from nvrun.model import Frozen
from nvrun.topology.interface import ip_address
from nvrun.torchrun import TorchrunArgs

_STATIC_PORT, _C10D_PORT = 29500, 29400
"""torchrun's own defaults (torch/distributed/run.py; c10d_rendezvous_backend.py)."""


class Endpoint(Frozen, frozen=True, kw_only=True):
    """As torchrun will be told it."""

    host: str
    port: int
    flag: str
    """Who said so: `--master-addr`, `PET_RDZV_ENDPOINT`, `nvrun` where it was found in the environment; empty for
    torchrun's default, this host itself."""
    nodes: int
    """The most that may meet there."""
    listens: bool
    """This node's torchrun opens the port itself, and ends where it is taken. With c10d a taken port may be the store
    of this very job."""

    @property
    def is_loopback(self) -> bool:
        """Only this host is reached there."""
        return is_loopback(self.host)

    @property
    def is_name(self) -> bool:
        """It has to be looked up."""
        return ip_address(self.host) is None


def is_loopback(host: str) -> bool:
    """A name or an address under which every host finds itself."""
    address = ip_address(host)
    return address.is_loopback if address else host in ("localhost", "localhost.localdomain")


def endpoint(args: TorchrunArgs) -> Endpoint | None:
    """None where the backend or torchrun itself chooses it (--standalone, etcd)."""
    static = args.rdzv_backend == "static"
    if args.standalone or not (static or args.rdzv_backend == "c10d"):
        return None
    if args.rdzv_endpoint:
        flag = args.origin.get("rdzv_endpoint", "")
        host, port = host_and_port(args.rdzv_endpoint, _STATIC_PORT if static else _C10D_PORT)
    elif static:
        flag = args.origin.get("master_addr", "")
        host, port = args.master_addr, args.master_port or _STATIC_PORT
    else:
        return None
    listens = static and args.node_rank == 0 and port > 0
    return Endpoint(host=host, port=port, flag=flag, nodes=args.nnodes[1], listens=listens) if host else None


def host_and_port(text: str, default: int) -> tuple[str, int]:
    """An endpoint as torchrun takes it apart: `a:29400`, `[fd00::1]:29400`, `a`; a port that is none is 0."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, colon, port = text.rpartition(":")
        host, port = (host, port) if colon else (text, "")
    return host, int(port) if port.isdecimal() else (0 if port else default)
