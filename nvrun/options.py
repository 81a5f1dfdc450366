"""nvrun's own settings: one declaration each, from which flags, nvrun.yaml keys, NVRUN_* and the help are made.

A field `connect_timeout` of `Options` is the flag `--connect-timeout`, the key `connect-timeout` and the variable
`NVRUN_CONNECT_TIMEOUT`. Its `Setting` says how its text is read. Pure; imports only what `nvrun --help` needs.
"""

import keyword
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_type_hints

LEAST_SAMPLE_SECONDS = 0.1
"""A GPU's own figures are renewed about ten times a second (nvmlDeviceGetUtilizationRates: 1/6 s to 1 s)."""
LEAST_HANG_SECONDS = 1.0
"""py-spy samples for whole seconds."""
LEAST_LOST_SECONDS = 3.0
"""A heartbeat comes every 2 s."""
LEAST_TIMEOUT_SECONDS = 0.1
"""Below it nothing that is asked over a network could answer."""

Read = Callable[[str], object]
"""Text -> value; ValueError saying what was expected."""


class Setting(NamedTuple):
    """How one setting is read and shown."""

    group: str
    read: Read
    metavar: str
    """What stands for the value in the help; empty for a switch."""
    help: str
    brief: bool = False
    """On the first screen of the help."""
    many: bool = False
    """May be given several times; a later layer replaces all of an earlier one."""
    file: bool = False
    """A file on the launcher: `~/` is the home folder, and in a file a relative path starts at that file's folder."""
    name: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name

    @property
    def variable(self) -> str:
        return "NVRUN_" + self.name.replace("-", "_").upper()

    @property
    def field(self) -> str:
        return field_of(self.name)


def field_of(name: str) -> str:
    """`connect-timeout` -> `connect_timeout`; Python's own words get a line behind: `in` -> `in_`."""
    return name + "_" if keyword.iskeyword(name) else name.replace("-", "_")


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("a value")
    return value


def words(value: str) -> str:
    """A command line in shell words, kept as text."""
    try:
        parts = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"shell words ({str(error).lower()})") from None
    if not parts:
        raise ValueError("a command")
    return value


def switch(value: str) -> bool:
    try:
        return {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }[value.lower()]
    except KeyError:
        raise ValueError("true or false") from None


def whole(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise ValueError("a whole number from 1")
    return int(value)


def seconds(value: str) -> float:
    """`90`, `90s`, `1.5m`, `2h` -> seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", value.strip())
    if not found:
        raise ValueError("seconds, as 30, 90s, 5m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def seconds_or_off(value: str) -> float | Literal["off"]:
    if value == "off":
        return "off"
    try:
        wanted = seconds(value)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None
    if wanted < LEAST_SAMPLE_SECONDS:
        raise ValueError(f"at least {LEAST_SAMPLE_SECONDS:g} s, or off")
    return wanted


def seconds_or_never(value: str) -> float:
    if value == "never":
        return math.inf
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{error}, or never") from None


def at_least(least: float, read: Callable[[str], float], also: str = "") -> Read:
    """A number of seconds that `read` gives, refused below `least`."""

    def checked(value: str) -> float:
        wanted = read(value)
        if wanted < least:
            raise ValueError(f"at least {least:g} s{also}")
        return wanted

    return checked


def ports(value: str) -> tuple[int, int]:
    """`29500-29599` or `29500` -> first and last port, both included."""
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", value)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValueError("FIRST-LAST with ports from 1 to 65535")
    return first, last


def ranks(value: str) -> tuple[int, ...] | Literal["all"]:
    """`all`, or `0,4-7` -> ranks, sorted."""
    if value == "all":
        return "all"
    chosen: set[int] = set()
    for part in value.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not found:
            raise ValueError("all, or ranks as 0,4-7")
        chosen.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(chosen))


def parameters(value: str) -> float:
    """The size of a model: `7B`, `350M`, `1.3e9` -> how many parameters."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*([KMBT]?)", value.strip(), re.IGNORECASE)
    number = float(found[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[found[2].upper()] if found else 0.0
    if number < 1:
        raise ValueError("a number of parameters such as 350M or 7B")
    return number


def assignment(value: str) -> tuple[str, str | None]:
    """`NAME=VALUE` -> (name, value); `NAME` -> (name, None), copied from the launcher's environment."""
    name, equals, content = value.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in content:
        raise ValueError("NAME or NAME=VALUE")
    return name, content if equals else None


def choice(*choices: str) -> Read:
    def read(value: str) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return value

    return read


class EnvSetting(NamedTuple):
    """One variable that the user gave by `--env` or in nvrun.yaml."""

    name: str
    value: str | None
    """None: copied from the launcher's environment."""
    source: str
    """`--env`, `NVRUN_ENV`, `nvrun.yaml:7`."""
    from_file: bool = False
    """Of a configuration file: it holds where a host has none of that name."""


_HOSTS = "Hosts"
_CHAIN = "How hosts are reached and what runs there"
_CHECKS = "Checks"
_NCCL = "Environment and binding"
_JOB = "The running job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """nvrun's settings for one command. None: not given, the reader of the field decides."""

    hosts: Annotated[
        str | None,
        Setting(_HOSTS, text, "LIST", "hosts of the job: a,b:4,user@c:2222,gpu[01-04] (b:4 = 4 ranks)", brief=True),
    ] = None
    hostfile: Annotated[
        str | None,
        Setting(_HOSTS, text, "FILE", "hosts from a file, one 'HOST slots=N' a line", brief=True, file=True),
    ] = None
    exclude: Annotated[str | None, Setting(_HOSTS, text, "LIST", "hosts to leave out")] = None
    nodes: Annotated[
        int | None,
        Setting(_HOSTS, whole, "N", "use N of the hosts, the rest are spares (--nnodes is torchrun's)", brief=True),
    ] = None

    fleet: Annotated[
        Literal["local", "ssh", "srun"] | None,
        Setting(_CHAIN, choice("local", "ssh", "srun"), "local|ssh|srun", "how hosts are reached", brief=True),
    ] = None
    rsh: Annotated[
        str | None, Setting(_CHAIN, words, "CMD", "reach hosts by a command: 'kubectl exec -i {host} --'")
    ] = None
    ssh: Annotated[
        str, Setting(_CHAIN, choice("paramiko", "openssh"), "paramiko|openssh", "which ssh is used (paramiko)")
    ] = "paramiko"
    ssh_config: Annotated[str | None, Setting(_CHAIN, text, "FILE", "ssh_config in place of the user's", file=True)] = (
        None
    )
    connect_timeout: Annotated[
        float,
        Setting(_CHAIN, at_least(LEAST_TIMEOUT_SECONDS, seconds), "SECONDS", "give up on a silent host after (10)"),
    ] = 10.0
    python: Annotated[str | None, Setting(_CHAIN, text, "PATH", "interpreter of the job on the hosts", brief=True)] = (
        None
    )
    setup: Annotated[
        str | None,
        Setting(_CHAIN, text, "CMD|FILE", "sourced by bash on every host before anything else", brief=True),
    ] = None
    in_: Annotated[
        str | None,
        Setting(_CHAIN, words, "CMD", "run all of it inside: 'apptainer exec --nv x.sif'", brief=True),
    ] = None
    chdir: Annotated[str | None, Setting(_CHAIN, text, "DIR", "working directory on the hosts (the same as here)")] = (
        None
    )

    check: Annotated[
        str,
        Setting(
            _CHECKS,
            choice("off", "quick", "full", "deep"),
            "off|quick|full|deep",
            "checks before the launch (full)",
            brief=True,
        ),
    ] = "full"
    check_timeout: Annotated[
        float | None,
        Setting(
            _CHECKS,
            at_least(LEAST_TIMEOUT_SECONDS, seconds),
            "SECONDS",
            "what all checks together may take (60; with --check deep 300)",
        ),
    ] = None
    latency: Annotated[
        str | None,
        Setting(_CHECKS, choice("bare-metal"), "bare-metal", "refuse hosts that are more than 50 microseconds apart"),
    ] = None
    require_path: Annotated[
        tuple[str, ...],
        Setting(_CHECKS, text, "PATH", "this folder must be there, and one and the same on all hosts", many=True),
    ] = ()
    require_same: Annotated[
        tuple[str, ...],
        Setting(_CHECKS, text, "PATH", "this file must be there with the same content on all hosts", many=True),
    ] = ()
    check_ssh_mesh: Annotated[
        bool, Setting(_CHECKS, switch, "", "every host must reach the others by ssh, for frameworks that need it")
    ] = False
    waive: Annotated[
        tuple[str, ...], Setting(_CHECKS, text, "CODE", "launch although this error was found", many=True)
    ] = ()
    requeue_on_bad_node: Annotated[
        int | None,
        Setting(_CHECKS, whole, "N", "under sbatch: requeue the job without nodes that fail, N times at most"),
    ] = None
    force: Annotated[bool, Setting(_CHECKS, switch, "", "launch whatever was found")] = False

    env: Annotated[
        tuple[EnvSetting, ...],
        Setting(_NCCL, assignment, "NAME[=VALUE]", "set a variable in every rank, or copy it", brief=True, many=True),
    ] = ()
    env_file: Annotated[
        tuple[str, ...], Setting(_NCCL, text, "FILE", "variables from a file of NAME=VALUE", many=True, file=True)
    ] = ()
    preset: Annotated[
        tuple[str, ...], Setting(_NCCL, text, "NAME|PATH", "apply an NCCL preset, or auto", brief=True, many=True)
    ] = ()
    preset_path: Annotated[
        tuple[str, ...], Setting(_NCCL, text, "DIR", "look for presets here first", many=True, file=True)
    ] = ()
    model_size: Annotated[
        str | None, Setting(_NCCL, text, "N", "the preset for a model of N parameters: 350M, 7B (never guessed)")
    ] = None
    bind_memory: Annotated[
        Literal["preferred", "strict", "local"],
        Setting(_NCCL, choice("preferred", "strict", "local"), "preferred|strict|local", "memory of bound ranks"),
    ] = "preferred"
    gpu_order: Annotated[
        Literal["nvlink"] | None,
        Setting(_NCCL, choice("nvlink"), "nvlink", "number a host's GPUs along NVLink, where it is not all to all"),
    ] = None
    omp: Annotated[
        Literal["auto"] | None,
        Setting(_NCCL, choice("auto"), "auto", "OMP_NUM_THREADS by each rank's cores (torchrun: 1)"),
    ] = None
    bind: Annotated[
        str | None,
        Setting(_NCCL, text, "none|node|socket|exclusive|FILE", "which CPUs each rank gets"),
    ] = None
    hook: Annotated[
        tuple[str, ...], Setting(_NCCL, text, "NAME|PATH", "run a hook around the job, or none", many=True)
    ] = ()

    console: Annotated[
        tuple[int, ...] | Literal["all"] | None,
        Setting(_JOB, ranks, "all|RANKS", "ranks shown here (all up to 16 ranks, above that rank 0)", brief=True),
    ] = None
    monitor: Annotated[
        float | Literal["off"],
        Setting(_JOB, seconds_or_off, "off|SECONDS", "look at GPUs, NICs and ranks every so often (10)"),
    ] = 10.0
    monitor_textfile: Annotated[
        str | None,
        Setting(_JOB, text, "DIR", "samples as Prometheus text too, in a node_exporter's folder on each host"),
    ] = None
    run_dir: Annotated[str | None, Setting(_JOB, text, "DIR", "where run folders go (nvrun-runs)", brief=True)] = None
    grace: Annotated[float, Setting(_JOB, seconds, "SECONDS", "from SIGTERM to SIGKILL (30)", brief=True)] = 30.0
    lost_after: Annotated[
        float | None,
        Setting(
            _JOB,
            at_least(LEAST_LOST_SECONDS, seconds_or_never, ", or never"),
            "SECONDS|never",
            "a host ends its ranks when unheard for (300; srun 60)",
        ),
    ] = None
    hang_after: Annotated[
        float,
        Setting(
            _JOB,
            at_least(LEAST_HANG_SECONDS, seconds_or_never, ", or never"),
            "SECONDS|never",
            "no rank wrote or moved so long: say who waits for whom (600)",
        ),
    ] = 600.0
    hang_timeout: Annotated[
        float,
        Setting(
            _JOB,
            at_least(LEAST_HANG_SECONDS, seconds_or_never, ", or never"),
            "SECONDS|never",
            "end a job that hangs for so long, with exit code 124 (never)",
        ),
    ] = math.inf
    node_restarts: Annotated[
        int,
        Setting(_JOB, whole, "N", "when a host fails, begin again on spares, N times at most (NVRUN_RESTART_COUNT)"),
    ] = 0
    port_range: Annotated[
        tuple[int, int], Setting(_JOB, ports, "FIRST-LAST", "ports for the rendezvous (29500-29599)")
    ] = (29500, 29599)
    from_: Annotated[
        str | None,
        Setting(_HOSTS, text, "FILE", "hosts as `nvrun facts --json` recorded them, instead of real ones", file=True),
    ] = None
    show_env: Annotated[
        bool, Setting(_NCCL, switch, "", "nvrun plan: every variable with who set it; what looks secret is masked")
    ] = False
    dry_run: Annotated[bool, Setting(_JOB, switch, "", "print what would run, as shell", brief=True)] = False
    json: Annotated[bool, Setting(_JOB, switch, "", "print JSON")] = False


def _declared() -> tuple[Setting, ...]:
    hints: Mapping[str, object] = get_type_hints(Options, include_extras=True)
    return tuple(
        hint.__metadata__[0]._replace(name=field.rstrip("_").replace("_", "-"))  # type: ignore[attr-defined]  # Annotated
        for field, hint in hints.items()
    )


SETTINGS: tuple[Setting, ...] = _declared()
BY_NAME = {setting.name: setting for setting in SETTINGS}

HELP: Mapping[str, bool] = {"-h": False, "--help": False, "--help-all": False, "--version": False, "--config": True}
"""Flags that are no settings -> whether they take a value."""
OWN: Mapping[str, bool] = {**HELP, **{setting.flag: bool(setting.metavar) for setting in SETTINGS}}
"""nvrun's flags -> whether they take a value, as `torchrun.split` wants them."""
