"""What a search may set on these hosts: dimensions and their options. Pure.

NVLink multicast (NVLS) is NCCL's own choice and no dimension: nothing here names it, on or off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from math import prod

from nvrun.environment import setting_of
from nvrun.facts import HostFacts
from nvrun.model import Frozen
from nvrun.nccl import catalogue
from nvrun.nccl.parse import Version, version
from nvrun.preset_fit import network

OLDEST: Version = (2, 19)
"""NCCL of torch 2.2: where the version is not known, what this one reads may be set."""
BY_FUNCTION: Version = (2, 24)
"""From here NCCL_ALGO takes `allreduce:tree`; a bare `Tree` would leave broadcast without an algorithm (tuning.cc)."""


class Option(Frozen, frozen=True, kw_only=True):
    """One value of a dimension: the variables that give it."""

    env: Mapping[str, str]
    takes_compute: bool = False
    """It gives NCCL more multiprocessors or CPU threads, which a training step has to do without."""


class Dimension(Frozen, frozen=True, kw_only=True):
    """One thing that may be set, in one way at a time; unset is always possible and not listed."""

    name: str
    options: tuple[Option, ...]


Config = tuple[int, ...]
"""For each dimension 0 for unset, n for its n-th option."""


class Space(Frozen, frozen=True, kw_only=True):
    """What may be searched, and what not and why."""

    dimensions: tuple[Dimension, ...]
    pinned: Mapping[str, str] = {}
    """Dimension -> the user's variable that settles it."""
    together: tuple[Config, ...] = ()
    """Settings of several dimensions that are tried as early as single ones: what is known to help only together."""

    @property
    def grid(self) -> int:
        """Settings of an exhaustive search, the default among them."""
        return prod(len(dimension.options) + 1 for dimension in self.dimensions)


def default(space: Space) -> Config:
    return (0,) * len(space.dimensions)


def chosen(space: Space, config: Config) -> Iterator[Option]:
    for dimension, option in zip(space.dimensions, config, strict=True):
        if option:
            yield dimension.options[option - 1]


def env_of(space: Space, config: Config) -> dict[str, str]:
    """The variables of a setting."""
    return {name: value for option in chosen(space, config) for name, value in option.env.items()}


def takes_compute(space: Space, config: Config) -> bool:
    return any(option.takes_compute for option in chosen(space, config))


def space_for(facts: Sequence[HostFacts], *, user: Collection[str] = ()) -> Space:
    """The space for these hosts. A variable in `user` (names that the user set anywhere) is never swept, nor another
    that means the same setting; its whole dimension is left out."""
    versions = [version(each.software.nccl or "") for each in facts if each.software]
    loaded = min([known for known in versions if known], default=OLDEST)
    kinds = {network(each) for each in facts} if len(facts) > 1 else set()
    theirs = {setting_of(name): name for name in user}
    dimensions: list[Dimension] = []
    pinned: dict[str, str] = {}
    for dimension in _dimensions(loaded, kinds):
        names = {name for option in dimension.options for name in option.env}
        settled = next((theirs[setting_of(name)] for name in sorted(names) if setting_of(name) in theirs), None)
        if settled is not None:
            pinned[dimension.name] = settled
        elif all((row := catalogue.find(name)) and catalogue.reads_at(row, loaded) for name in names):
            dimensions.append(dimension)
    return Space(dimensions=tuple(dimensions), pinned=pinned, together=tuple(_together(dimensions)))


def _together(dimensions: Sequence[Dimension]) -> Iterator[Config]:
    """NCCL has its sockets per channel, and few channels over a network by itself: 2 threads with 2 sockets each and 8
    channels gave six times the default between two hosts over veth (2x H200, 2026-11-29)."""
    names = [dimension.name for dimension in dimensions]
    if "sockets" in names and "CTAs" in names:
        sockets, ctas = names.index("sockets"), names.index("CTAs")
        for option in range(1, len(dimensions[sockets].options) + 1):
            yield tuple(option if at == sockets else int(at == ctas) for at in range(len(dimensions)))


def _dimensions(loaded: Version, kinds: Set[str | None]) -> Iterator[Dimension]:
    algorithms = ("allreduce:ring", "allreduce:tree") if loaded >= BY_FUNCTION else ("Ring", "Tree")
    yield _simple("algorithm", "NCCL_ALGO", algorithms)
    yield _simple("protocol", "NCCL_PROTO", ("^LL128", "Simple"))
    yield Dimension(
        name="CTAs",
        options=tuple(
            Option(env={"NCCL_MIN_CTAS": str(count), "NCCL_MAX_CTAS": str(count)}, takes_compute=count > 8)
            for count in (8, 16, 32)
        ),
    )
    yield _simple("buffer", "NCCL_BUFFSIZE", (str(1 << 20), str(8 << 20), str(16 << 20)))
    yield Dimension(
        name="threads",
        options=tuple(Option(env={"NCCL_NTHREADS": n}, takes_compute=n == "512") for n in ("256", "512")),
    )
    if kinds & {"ethernet", "ethernet on Amazon's NIC", "gcp", "mixed", None}:
        yield Dimension(
            name="sockets",
            options=tuple(
                Option(
                    env={"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(sockets)},
                    takes_compute=True,
                )
                for threads, sockets in ((1, 4), (2, 1), (2, 4), (4, 2), (4, 4))
            ),
        )
    if kinds & {"infiniband", "roce", "mixed", None}:
        yield _simple("QPs", "NCCL_IB_QPS_PER_CONNECTION", ("2", "4"))
    if kinds - {"ethernet"}:  # one NIC a host has no other to cross to
        yield _simple("cross-NIC", "NCCL_CROSS_NIC", ("0", "1"))


def _simple(name: str, variable: str, values: Sequence[str]) -> Dimension:
    return Dimension(name=name, options=tuple(Option(env={variable: value}) for value in values))
