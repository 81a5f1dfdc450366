"""What the user asked for, read once: mode, hosts, torchrun's settings, variables; with the few files that it takes."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import get_args

import msgspec

from nvrun import hooks, presets, shipped, xdg
from nvrun.bindfile import Row, read_table
from nvrun.binding import Mode
from nvrun.config import Invocation
from nvrun.endpoint import Endpoint, endpoint
from nvrun.environment import from_user
from nvrun.errors import UsageError
from nvrun.fleet import routes
from nvrun.gather.step import Step, step_of
from nvrun.hosts import choose, detect
from nvrun.mode import Mode as NodeMode
from nvrun.mode import mode, node_arguments
from nvrun.model import EnvVar, Frozen, Host
from nvrun.options import Options, assignment
from nvrun.preset_file import Preset
from nvrun.textfile import read_text
from nvrun.torchrun import TorchrunArgs
from nvrun.travel import stays, travelling
from nvrun.tune.known import TUNED, load_tuned

LOST_AFTER = 300.0
LOST_AFTER_SRUN = 60.0
"""srun's tasks keep their input open when srun and its shepherd are killed: only silence tells them."""


class Doubt(Frozen, frozen=True, kw_only=True):
    """Two hosts that fail together, of which a spare stands in for one: that shows which of them is bad."""

    kept: str
    """The one that stayed."""
    out: Host
    """The other."""
    kind: routes.Kind
    why: str
    settled: bool = False
    """The spare failed as well: the host that stayed was the bad one."""


class Job(Frozen, frozen=True, kw_only=True):
    """One job, before anything was learned from its hosts."""

    mode: NodeMode
    detected: detect.Detected = detect.Detected(kind="none", why=())
    """What started this process."""
    hosts: tuple[Host, ...]
    """In rank order; in node mode this one alone."""
    spares: tuple[Host, ...] = ()
    """Hosts beyond --nodes: one stands in where another fails its checks."""
    spare_kinds: tuple[routes.Kind, ...] = ()
    step: Step | None = None
    """The Slurm step of which this is one node, where nvrun itself makes its nodes a world."""
    hosts_from: str
    not_listed: tuple[str, ...] = ()
    """Names of --exclude that are none of its hosts."""
    kinds: tuple[routes.Kind, ...]
    """How each host is reached."""
    args: TorchrunArgs
    options: Options
    cwd: str
    """On every host."""
    lost_after: float
    attempt: int = 0
    """Counts from 0: where hosts turn out bad the run is begun again on others."""
    restarts: int = 0
    """Earlier attempts whose ranks had begun."""
    doubt: Doubt | None = None
    """The spare that is tried in a pair that failed; once in a run."""
    proven: frozenset[str] = frozenset()
    """Hosts that were well when an earlier attempt's ranks had run on them."""
    env: tuple[EnvVar, ...] = ()
    """Variables the user gave on the command line: they hold whatever a host has."""
    defaults: tuple[EnvVar, ...] = ()
    """Variables of configuration files: they hold where a host has none."""
    forwarded: tuple[EnvVar, ...] = ()
    """What travels to hosts that do not have this environment."""
    notices: tuple[str, ...] = ()
    """What to tell the user of his own environment."""
    presets: tuple[Preset, ...] = ()
    """Those named, in order."""
    auto_presets: tuple[Preset, ...] = ()
    """With `--preset auto`: all there are, of which those that fit the hosts are meant."""
    tuned_presets: tuple[Preset, ...] = ()
    """With `--preset tuned`: all that `nvrun tune` has written, of which the one for the hosts' hardware is meant."""
    table: Mapping[int, Row] | None = None
    """Rows of the binding file that --bind names."""
    hooks: tuple[hooks.Hook, ...] = ()
    """In the order in which they begin."""
    measures: str = ""
    """`bench` or `tune`, where it is a round of these and no program of the user's."""

    @property
    def script(self) -> str | None:
        """The program's file, where it is one: neither a module nor a command to be found on PATH."""
        program = self.args.program
        if program in (None, "-c") or self.args.module or (self.args.no_python and "/" not in program):
            return None
        return program

    @property
    def fleet(self) -> bool:
        return self.mode.kind == "fleet"

    @property
    def endpoint(self) -> Endpoint | None:
        """Where this one node of a job that something else starts meets the others, as far as the user said it; None
        where nvrun itself chooses, or finds the nodes of a Slurm step."""
        if self.fleet or self.step is not None:
            return None
        if self.mode.alone and not self.args.is_set("rdzv_backend", "rdzv_endpoint", "master_addr"):
            return None
        return endpoint(self.args)

    @property
    def least_hosts(self) -> int:
        """With fewer the job does not begin."""
        return self.args.nnodes[0] if self.args.is_set("nnodes") else len(self.hosts)

    @property
    def all_gpus(self) -> bool:
        """A node has a rank for each GPU unless the user said otherwise; torchrun's own default is one."""
        return self.fleet or self.step is not None

    def without(self, bad: Collection[str]) -> Job | None:
        """The job with spares in the place of bad hosts, in the order of the list, or with fewer hosts as far as
        --nnodes MIN:MAX allows it; None where they are too few."""
        good = [pair for pair in zip(self.hosts, self.kinds, strict=True) if pair[0].name not in bad]
        spares = [pair for pair in zip(self.spares, self.spare_kinds, strict=True) if pair[0].name not in bad]
        wanted = len(self.hosts) - len(good)
        if not wanted or len(good) + len(spares[:wanted]) < self.least_hosts:
            return None
        chosen, left = good + spares[:wanted], spares[wanted:]
        return msgspec.structs.replace(
            self,
            hosts=tuple(host for host, _ in chosen),
            kinds=tuple(kind for _, kind in chosen),
            spares=tuple(host for host, _ in left),
            spare_kinds=tuple(kind for _, kind in left),
        )

    def only_without(self, bad: Collection[str]) -> Job | None:
        """The hosts that are left, fewer than were asked for; None where none is, or all are."""
        good = [pair for pair in zip(self.hosts, self.kinds, strict=True) if pair[0].name not in bad]
        if not good or len(good) == len(self.hosts):
            return None
        hosts, kinds = zip(*good, strict=True)
        return msgspec.structs.replace(self, hosts=hosts, kinds=kinds)


def read(invocation: Invocation, environ: Mapping[str, str]) -> Job:
    """The job. Raises UsageError for contradictions, bad lists and files that cannot be read."""
    options, args = invocation.options, invocation.torchrun
    step: Step | None = None
    spares: tuple[Host, ...] = ()
    spare_kinds: tuple[routes.Kind, ...] = ()
    not_listed: tuple[str, ...] = ()
    seen = detected(environ)
    found = mode(invocation, seen)
    if found.kind == "node":
        args = node_arguments(args, seen, options.port_range)
        step = step_of(seen) if args is not invocation.torchrun else None
        hosts: tuple[Host, ...] = (Host(name=step.names[step.node] if step else socket.gethostname()),)
        source = "this machine"
        kinds: tuple[routes.Kind, ...] = ("local",)
        if options.rsh or options.fleet in ("ssh", "srun"):
            raise UsageError("--rsh and --fleet need hosts", hint="--hosts, --hostfile, or an allocation")
    else:
        text = None
        if options.hostfile is not None and choose.reads_hostfile(invocation):
            text = read_text(options.hostfile, invocation.source("hostfile"))
        chosen = choose.choose(invocation, seen, text)
        hosts, source, not_listed = chosen.hosts[: options.nodes], chosen.source, chosen.not_listed
        spares = chosen.hosts[len(hosts) :]
        in_slurm = seen.kind == "slurm allocation"
        kinds = routes.choose(hosts, options.fleet, options.rsh, in_slurm=in_slurm)
        spare_kinds = routes.choose(spares, options.fleet, options.rsh, in_slurm=in_slurm)
        if args.is_set("nnodes") and not args.nnodes[0] <= len(hosts) <= args.nnodes[1]:
            least, most = args.nnodes
            raise UsageError(
                f"{args.origin['nnodes']}: {least}:{most} nodes, but {source} has {len(hosts)} hosts",
                hint=f"--nodes {most} uses {most} of them, the rest are spares" if len(hosts) > most else "",
            )
    variables = list(_variables(invocation, environ))
    folders = preset_folders(environ, options.preset_path)
    others = {"ssh", "rsh"} & {*kinds, *spare_kinds}
    unsent = stays(environ, [variable.name for variable, _ in variables]) if others else None
    return Job(
        mode=found,
        detected=seen,
        hosts=hosts,
        spares=spares,
        spare_kinds=spare_kinds,
        step=step,
        hosts_from=source,
        not_listed=not_listed,
        kinds=kinds,
        args=args,
        options=options,
        cwd=options.chdir or _here(environ),
        lost_after=options.lost_after or (LOST_AFTER_SRUN if "srun" in kinds else LOST_AFTER),
        env=tuple(variable for variable, default in variables if not default),
        defaults=tuple(variable for variable, default in variables if default),
        forwarded=travelling(environ),
        notices=(unsent,) if unsent else (),
        presets=tuple(presets.load(name, folders) for name in _presets(options)),
        auto_presets=presets.load_all(folders) if "auto" in options.preset else (),
        tuned_presets=load_tuned(folders) if TUNED in options.preset else (),
        table=_table(options.bind),
        hooks=hooks.load(options.hook, environ),
    )


def _presets(options: Options) -> list[str]:
    """Names, in the order in which they are laid over each other: the model's first."""
    sized = [presets.for_model_size(options.model_size)] if options.model_size else []
    return [*sized, *(name for name in options.preset if name not in ("auto", TUNED))]


def preset_folders(environ: Mapping[str, str], paths: Collection[str] = ()) -> list[Path]:
    """Where presets are looked for: in `paths` (--preset-path), the user's own, then those that come with nvrun.
    UsageError for a path that is no folder."""
    for path in paths:
        if not Path(path).is_dir():
            raise UsageError(f"{path}: no such folder of presets (--preset-path)")
    return [*map(Path, paths), xdg.config(environ) / "presets", shipped.folder("presets")]


def _table(bind: str | None) -> Mapping[int, Row] | None:
    if bind is None or bind in get_args(Mode):
        return None
    if "/" not in bind and not Path(bind).exists():
        raise UsageError(f"--bind: expected one of {', '.join(get_args(Mode))}, or a file, got {bind!r}")
    return read_table(read_text(bind, "--bind"), bind)


def detected(environ: Mapping[str, str]) -> detect.Detected:
    """What started this process."""
    files = {path: read_text(path, "named by the environment") for path in detect.files_named(environ)}
    return detect.detect(environ, files)


def _variables(invocation: Invocation, environ: Mapping[str, str]) -> Iterator[tuple[EnvVar, bool]]:
    """`--env-file`, then `env` of every layer, later ones win; and whether it is a default: configuration files give
    those, the command line, NVRUN_ENV and --env-file give orders."""
    for path in invocation.options.env_file:
        for number, line in enumerate(read_text(path, invocation.source("env_file")).splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                name, value = assignment(line.strip().removeprefix("export "))
            except ValueError as error:
                raise UsageError(f"{path}:{number}: expected {error}, got {line.strip()!r}") from None
            yield from_user(name, _copied(name, environ) if value is None else value, f"{path}:{number}"), False
    for setting in invocation.options.env:
        value = _copied(setting.name, environ) if setting.value is None else setting.value
        yield from_user(setting.name, value, setting.source), setting.from_file


def _copied(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise UsageError(f"--env {name}: there is no such variable here to copy", hint=f"--env {name}=VALUE gives one")
    return environ[name]


def _here(environ: Mapping[str, str]) -> str:
    """The working directory, by the name the user knows it."""
    try:
        here = Path.cwd()
    except OSError as error:  # it was removed, or is closed to this user
        raise UsageError(f"the working directory: {error.strerror}", hint="cd to one that is there") from None
    logical = Path(environ.get("PWD", ""))
    try:
        known_by_it = logical.is_absolute() and logical.samefile(here)
    except OSError:
        known_by_it = False
    return str(logical if known_by_it else here)
