"""Which value each variable gets on a host, who set it, and what it overrode. Pure.

Later wins: automatic < presets < conf files < nvrun.yaml < the host's own < forwarded < --env. What the user set
anywhere is never overridden by a preset or by nvrun itself, nor under another name of the same setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nvrun.errors import UsageError
from nvrun.mask import masked
from nvrun.model import EnvVar, Frozen
from nvrun.nccl import catalogue, parse
from nvrun.nccl.setting import Setting

SYSTEM_CONF = "/etc/nccl.conf"

GIVES_WAY = {
    "NCCL_NET": ("NCCL_IB_DISABLE", "NCCL_NET_PLUGIN"),
    "NCCL_DEBUG_FILE": ("NCCL_DEBUG",),
}
"""What nvrun or a preset sets only where the user has set none of these: beside them it would make NCCL fail, or take
the user's messages from where he expects them."""

EXCLUDES = {"NCCL_NET": "NCCL_IB_DISABLE"}
"""What falls away beside another variable of nvrun or a preset: `--preset auto --preset ab-no-ib` must start."""


class Resolved(Frozen, frozen=True, kw_only=True):
    """One variable's final value on one host."""

    variable: EnvVar
    overrode: tuple[EnvVar, ...] = ()
    """Other values that were offered, the strongest last; equal values are not listed."""
    set_by_nvrun: bool = True
    """False where the host or its nccl.conf has the value already, and nvrun only shows it."""


class Chosen(Frozen, frozen=True, kw_only=True):
    """A value found for one host, and why."""

    value: str
    why: str


def resolve(
    *,
    automatic: Sequence[EnvVar] = (),
    presets: Sequence[EnvVar] = (),
    conf_files: Mapping[str, str] | None = None,
    config: Sequence[EnvVar] = (),
    host: Mapping[str, str] | None = None,
    forwarded: Sequence[EnvVar] = (),
    flags: Sequence[EnvVar] = (),
) -> tuple[Resolved, ...]:
    """The variables of one host by name. In each layer, too, the later of two wins.

    `conf_files` are path -> text as the host has them, `host` its own environment.
    """
    own = host or {}
    above = {**own, **{each.name: each.value for each in (*forwarded, *flags)}}
    there = [EnvVar(name=name, value=value, source="host", why="set on the host") for name, value in own.items()]
    user: dict[str, Resolved] = {}
    for layer, sets in (
        (conf_variables(conf_files or {}, above), False),
        (config, True),
        (there, False),
        (forwarded, True),
        (flags, True),
    ):
        for variable in layer:
            user[variable.name] = _over(user.get(variable.name), variable, sets)
    offered: dict[str, Resolved] = {}
    for variable in (*automatic, *presets):
        key = setting_of(variable.name)
        offered[key] = _over(offered.get(key), variable, True)
    found = dict(user)
    taken = {setting_of(name): name for name in user}
    for key, offer in sorted(offered.items(), key=lambda item: item[1].variable.name in EXCLUDES):
        name = offer.variable.name
        rivals = [taken.get(key), *(other for other in GIVES_WAY.get(name, ()) if other in user), EXCLUDES.get(name)]
        holder = next((rival for rival in rivals if rival in found), None)
        if holder is None:
            found[name] = offer
        else:
            found[holder] = _kept(found[holder], offer)
    return tuple(found[name] for name in sorted(found))


def _over(below: Resolved | None, variable: EnvVar, sets: bool) -> Resolved:
    offers = (*below.overrode, below.variable) if below else ()
    return Resolved(variable=variable, overrode=_others(offers, variable), set_by_nvrun=sets)


def _kept(holder: Resolved, offer: Resolved) -> Resolved:
    """The value that holds, with what nvrun or a preset would have set."""
    offers = (*offer.overrode, offer.variable, *holder.overrode)
    return msgspec.structs.replace(holder, overrode=_others(offers, holder.variable))


def _others(offers: Iterable[EnvVar], winner: EnvVar) -> tuple[EnvVar, ...]:
    return tuple(each for each in offers if (each.name, each.value) != (winner.name, winner.value))


def setting_of(name: str) -> str:
    """One name for all names of one setting: NCCL_MIN_NCHANNELS -> NCCL_MIN_CTAS, PyTorch's old ones -> the new."""
    row = catalogue.variables().get(name)
    while row and row.replacement and row.owner in ("nccl", "torch") and not row.until:
        name = row.replacement
        row = catalogue.variables().get(name)
    return name


def conf_variables(files: Mapping[str, str], environ: Mapping[str, str]) -> tuple[EnvVar, ...]:
    """What NCCL takes from its conf files: of two lines of one name the first, and none that the environment has.

    NCCL_CONF_FILE, where it is set, is read instead of ~/.nccl.conf; /etc/nccl.conf always, and last
    (src/misc/param.cc).
    """
    named = environ.get("NCCL_CONF_FILE")
    if named is None:
        first = [path for path in files if path != SYSTEM_CONF and path.endswith("/.nccl.conf")]
    else:
        first = [path for path in files if path == named]
    found: dict[str, EnvVar] = {}
    for path in (*first, SYSTEM_CONF):
        for line, name, value in parse.conf_lines(files.get(path, "")):
            found.setdefault(name, EnvVar(name=name, value=value, source=f"{path}:{line}", why="NCCL reads it there"))
    return tuple(found.values())


def from_user(name: str, value: str, source: str) -> EnvVar:
    """A variable from `--env` or nvrun.yaml, sizes converted to the variable's own units (`4MiB`, `4M`).

    Raises UsageError where a size is none.
    """
    try:
        native = catalogue.native(name, value)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    return EnvVar(
        name=name, value=native, source=source, why="set by the user" if native == value else f"written as {value}"
    )


def automatic(
    *,
    interface: Chosen | None = None,
    hcas: Chosen | None = None,
    gid_index: Chosen | None = None,
) -> tuple[EnvVar, ...]:
    """What nvrun sets unasked on one host: what NCCL needs there to work right, and Python's own crash report. What
    else records is contributed by the hooks nccl-debug and flight-recorder.

    `interface` is one network interface; `hcas` a comma list of RDMA devices with or without `:port`, given only where
    NCCL's own choice would take a wrong port or hosts differ; `gid_index` one of this host's, before NCCL 2.21.
    """
    found: list[EnvVar] = []

    def add(name: str, value: str, why: str) -> None:
        found.append(EnvVar(name=name, value=value, source="nvrun", why=why))

    if interface:
        add("NCCL_SOCKET_IFNAME", f"={interface.value}", interface.why)
        add("GLOO_SOCKET_IFNAME", interface.value, interface.why)
    if hcas:
        add("NCCL_IB_HCA", f"={hcas.value}", hcas.why)
    if gid_index:
        add("NCCL_IB_GID_INDEX", gid_index.value, gid_index.why)
    add("PYTHONFAULTHANDLER", "1", "a crash leaves Python's stack")
    return tuple(found)


def notices(resolved: Iterable[Resolved]) -> tuple[str, ...]:
    """One line for each variable of the user that a preset or nvrun would have set otherwise. A hook gives way without
    a word: `nvrun env` shows it."""
    return tuple(
        f"{each.variable.name} stays {each.variable.value or 'empty'} ({each.variable.source}); "
        f"{offer.source} would set {offer.name}={offer.value}"
        for each in resolved
        for offer in each.overrode
        if is_nvruns(offer) and not offer.source.startswith("hook ") and not is_nvruns(each.variable)
    )


def is_nvruns(variable: EnvVar) -> bool:
    """True where nvrun, a preset or a hook set it, and not the user."""
    return variable.source == "nvrun" or variable.source.startswith(("preset ", "hook "))


def settings(resolved: Iterable[Resolved]) -> tuple[Setting, ...]:
    """The final values as lint takes them, so that its findings say who set them."""
    return tuple(
        Setting(
            name=each.variable.name,
            value=each.variable.value,
            where=each.variable.source,
            syntax="conf" if each.variable.source.startswith("/") else "shell",
        )
        for each in resolved
    )


class EnvRow(Frozen, frozen=True, kw_only=True):
    """One line of `nvrun env`."""

    name: str
    value: str
    hosts: tuple[str, ...]
    """Empty where all hosts have this value."""
    source: str
    why: str
    overrode: tuple[str, ...] = ()
    """`4194304 (preset model-large)`, the strongest last."""


def rows(hosts: Mapping[str, Sequence[Resolved]]) -> tuple[EnvRow, ...]:
    """The table of `nvrun env`: a variable stands once, or once for each value where hosts differ; what looks like a
    secret is masked, also in what was overridden.

    A host's own variables only where the catalogue knows them: its whole environment may hold secrets.
    """
    merged: dict[tuple[str, str, str], tuple[Resolved, list[str]]] = {}
    for host, variables in hosts.items():
        for each in variables:
            variable = each.variable
            if variable.source != "host" or catalogue.find(variable.name):
                key = (variable.name, variable.value, variable.source)
                merged.setdefault(key, (each, []))[1].append(host)
    return tuple(
        EnvRow(
            name=name,
            value=masked(name, value),
            hosts=() if len(holders) == len(hosts) else tuple(holders),
            source=source,
            why=each.variable.why,
            overrode=tuple(
                f"{'' if offer.name == name else offer.name + '='}{masked(offer.name, offer.value)} ({offer.source})"
                for offer in each.overrode
            ),
        )
        for (name, value, source), (each, holders) in sorted(merged.items(), key=lambda item: item[0][0])
    )
