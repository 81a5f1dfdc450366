"""What an NCCL log says, as values. `log.read_log` makes them, `log_findings` judges them."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.model import Frozen


class Route(Frozen, frozen=True, kw_only=True):
    """How data goes from one rank to another within one communicator."""

    source: int
    target: int
    """Ranks within the communicator."""
    via: str
    """`P2P/CUMEM`, `P2P/IPC`, `P2P/direct`, `P2P/MNNVL`, `P2P/indirect`, `SHM`, `NET/IB`, `NET/Socket`,
    `NET/AWS Libfabric` ..."""
    channels: int
    """Lines of this kind, that is channels and directions together."""
    gdr: bool | None = None
    """The NIC reads or writes GPU memory itself; None where no NIC is used."""
    through_peer: bool = False
    """PXN: the NIC of another GPU of the host is used."""
    line: str = ""
    """The first such line, as written."""


class Communicator(Frozen, frozen=True, kw_only=True):
    """One communicator, put together from the lines of all its ranks."""

    id: str
    """NCCL's commId; `nranks N` where the version writes none (before 2.18); `0xabc split 1 color 5` of one split from
    0xabc."""
    nranks: int
    hosts: tuple[str, ...] = ()
    started: tuple[int, ...] = ()
    """Ranks with `Init START` (2.18.3 and later)."""
    completed: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()
    nodes: int | None = None
    """Hosts as NCCL counts them (2.20 and later)."""
    init_seconds: Mapping[int, float] = {}
    """Rank -> total time of the init (2.22 and later)."""
    slowest_phase: str = ""
    """Of the slowest rank: `bootstrap 0.88`."""
    rings: int | None = None
    ring_order: str = ""
    """Of the first channel, as written."""
    trees: int | None = None
    channels: Mapping[str, int] = {}
    """`coll`, `collnet`, `nvls`, `p2p`, `p2p per peer`."""
    ring_gdr: bool | None = None
    """`Connected all rings, ... GDR n` (2.24 and later)."""
    routes: tuple[Route, ...] = ()


class NcclProcess(Frozen, frozen=True, kw_only=True):
    """One process, as its lines show it. None and empty = its lines do not say."""

    host: str
    pid: int
    rank: int | None = None
    """In its largest communicator, the first of these."""
    nranks: int | None = None
    """Size of that communicator."""
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None
    version: str | None = None
    """`2.28.9+cuda13.0`."""
    cuda_driver: int | None = None
    """`13000` for 13.0."""
    network: str | None = None
    """`Socket`, `IB`, `AWS Libfabric`, `IBext_v8` ..."""
    network_line: str = ""
    bootstrap: str | None = None
    """Interface and address: `eth0:10.0.0.2`."""
    sockets: tuple[str, ...] = ()
    """Devices of the socket network, `eth0:10.0.0.2`."""
    hcas: tuple[str, ...] = ()
    """`mlx5_0:1/IB`, in NCCL's order."""
    relaxed_ordering: bool | None = None
    no_ib_device: bool = False
    gdr_by_hca: Mapping[str, bool] = {}
    """HCA -> the driver allows GPUDirect RDMA on it."""
    dma_buf: bool | None = None
    nvls: bool | None = None
    p2p_refused: tuple[str, ...] = ()
    """`Could not enable P2P` lines."""
    variables: Mapping[str, str] = {}
    """Variable -> the value NCCL says it read."""
    rejected: Mapping[str, str] = {}
    """Variable -> NCCL's line about a value that it did not take, or not as it is."""
    affinity: str | None = None


class NcclWarning(Frozen, frozen=True, kw_only=True):
    """One WARN, however often a process wrote it with other numbers."""

    host: str
    pid: int
    where: str
    message: str
    times: int


class NcclLog(Frozen, frozen=True, kw_only=True):
    """Everything read from one or more NCCL logs."""

    lines: int = 0
    """NCCL's own lines among those read."""
    versions: tuple[str, ...] = ()
    processes: tuple[NcclProcess, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    warnings: tuple[NcclWarning, ...] = ()
    ras: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({process.host for process in self.processes if process.host}))
