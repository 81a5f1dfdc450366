"""torchrun's command line: its flags by version, and where nvrun's part, torchrun's part and the script's part begin.

    line = split(argv, own)                      # CommandLine: three parts, nothing interpreted yet
    args = TorchrunArgs.read(line, environ)      # typed values, PET_* merged, who set what
    args = args.replacing(nnodes=(2, 2), node_rank=1)
    args.to_argv()                               # for torchrun; always with `--` before the program

The rules are those of the argparse parser in torch.distributed.run (read in torch 2.9 to 2.14), with one difference:
argparse looks at the script's arguments too, so that `torchrun train.py --r=16` fails as an ambiguous option of
torchrun. Here everything after the program belongs to the program. Pure: no I/O, torch is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvrun.errors import UsageError
from nvrun.torchrun_flags import BY_NAME, FLAGS, Flag, filters

_LONG = {spelling: flag for flag in FLAGS for spelling in flag.spellings}
_SHORT = {flag.short: flag for flag in FLAGS if flag.short}

# What argparse takes for a value although it starts with a dash: a negative number, anything with a space in it.
_NEGATIVE = re.compile(r"-(\d+(_\d+)*(\.\d*)?|\d*\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line in its three parts. Values are text as typed; order and repetitions are kept."""

    own: tuple[tuple[str, str | None], ...] = ()
    """nvrun's flags as (`--grace`, value); None where a switch has no value."""
    torchrun: tuple[tuple[Flag, str | None], ...] = ()
    program: str | None = None
    """Script, module or program; None where the line ends before one."""
    arguments: tuple[str, ...] = ()
    """The program's own, byte for byte."""
    separated: bool = False
    """`--` stood before the program: it is then a program, whatever its name."""


def split(argv: Sequence[str], own: Mapping[str, bool]) -> CommandLine:
    """The parts of `argv` (without nvrun's own name). `own` maps nvrun's flags to whether they take a value.

    torchrun's flags may be abbreviated where torchrun allows it; nvrun's are known in full only. A first `--` right
    before or right after the program is not passed on to it; argparse does the same. Raises UsageError for an unknown
    or ambiguous flag, a missing value and a value that a switch cannot take.
    """
    mine: list[tuple[str, str | None]] = []
    theirs: list[tuple[Flag, str | None]] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if token == "--":
            return CommandLine(
                own=tuple(mine),
                torchrun=tuple(theirs),
                program=rest[0] if rest else None,
                arguments=tuple(rest[1:]),
                separated=True,
            )
        if not _is_option(token, own):
            arguments = rest[1:] if rest[:1] == ["--"] else rest
            return CommandLine(own=tuple(mine), torchrun=tuple(theirs), program=token, arguments=tuple(arguments))

        name, equals, value = token.partition("=")
        if name in own:
            if own[name] and not equals:
                value = _value(name, rest, own)
            mine.append((name, value if own[name] or equals else None))
            continue
        for flag, attached in _torchrun_flags(token, own):
            if flag.read and attached is None:
                attached = _value(token, rest, own)
            if attached == "--":  # argparse up to Python 3.12 drops it and hands on an empty list
                raise UsageError(f"{flag.spelling}: torchrun cannot take -- for a value")
            theirs.append((flag, attached))
    return CommandLine(own=tuple(mine), torchrun=tuple(theirs))


def _value(name: str, rest: list[str], own: Mapping[str, bool]) -> str:
    if not rest or rest[0] == "--" or _is_option(rest[0], own):
        hint = f"a value that starts with a dash is written {name}={rest[0]}" if rest and rest[0] != "--" else ""
        raise UsageError(f"{name} needs a value", hint=hint)
    return rest.pop(0)


def _is_option(token: str, own: Mapping[str, bool]) -> bool:
    """Whether argparse would take `token` for an option, known or not."""
    if token[:1] != "-" or token == "-":
        return False
    name = token.partition("=")[0]
    if name in own or _candidates(name) or (token[:2] in _SHORT and token[1] != "-"):
        return True
    return not (_NEGATIVE.fullmatch(token) or " " in token)


def _candidates(name: str) -> list[str]:
    """Long spellings that `name` may stand for: itself, or those it abbreviates.

    Where several flags fit, those of the oldest torch count, so that an abbreviation keeps its meaning when a newer
    torch adds a flag.
    """
    if name in _LONG:
        return [name]
    if not name.startswith("--"):
        return []
    fitting = [spelling for spelling in _LONG if spelling.startswith(name)]
    return [spelling for spelling in fitting if _LONG[spelling].since is None] or fitting


def _torchrun_flags(token: str, own: Mapping[str, bool]) -> list[tuple[Flag, str | None]]:
    """The flags in one token, each with its value if it is attached: `--tee=3`, `-r3`, `-mr3`."""
    if not token.startswith("--"):
        return _short_flags(token, own)
    name, equals, value = token.partition("=")
    candidates = _candidates(name)
    if not candidates:
        raise _unknown(name, own)
    if len(candidates) > 1:
        names = ", ".join(dict.fromkeys(_LONG[spelling].spelling for spelling in candidates))
        raise UsageError(f"{name} is an incomplete flag: {names} must be written in full")
    flag = _LONG[candidates[0]]
    if equals and not flag.read:
        raise UsageError(f"{flag.spelling} takes no value, but has {value!r}")
    return [(flag, value if equals else None)]


def _short_flags(token: str, own: Mapping[str, bool]) -> list[tuple[Flag, str | None]]:
    found: list[tuple[Flag, str | None]] = []
    letters = token[1:]
    while letters:
        flag = _SHORT.get("-" + letters[0])
        if flag is None:
            raise _unknown(token, own)
        letters = letters[1:]
        if flag.read:
            found.append((flag, letters.removeprefix("=") if letters else None))
            break
        found.append((flag, None))
    return found


_LAUNCHS = ("--use-env", "--use_env")
"""Of torch.distributed.launch, which torchrun took the place of."""


def _unknown(name: str, own: Mapping[str, bool]) -> UsageError:
    if name in _LAUNCHS:
        return UsageError(f"{name} is a flag of torch.distributed.launch: leave it out, ranks read LOCAL_RANK")
    near = nearest(name, [*own, *(flag.spelling for flag in FLAGS)])
    shown = name if name.isprintable() else repr(name)
    whose = "nvrun or torchrun" if own else "torchrun 2.9 to 2.14"
    return UsageError(
        f"{shown} is no flag of {whose}" + (f"; did you mean {near}?" if near else ""),
        hint="the program's own arguments come after the program",
    )


def nearest(word: str, words: Collection[str]) -> str | None:
    """The word most like `word`; None where none is close."""
    import difflib  # only needed once something is wrong

    close = difflib.get_close_matches(word.replace("_", "-"), words, n=1)
    return close[0] if close else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunArgs:
    """torchrun's settings for one job. Fields are torchrun's own names; defaults are torchrun's own."""

    nnodes: tuple[int, int] = (1, 1)
    """Fewest and most nodes."""
    nproc_per_node: int | str = 1
    """Ranks on each node, or `auto`, `cpu`, `gpu`, `xpu`, or a backend's name."""
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: str = ""
    standalone: bool = False
    max_restarts: int = 0
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    event_log_handler: str = "null"
    role: str = "default"
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    log_line_prefix_template: str = ""
    local_ranks_filter: str = ""
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    """None: torchrun takes 29500."""
    local_addr: str | None = None
    logs_specs: str | None = None
    numa_binding: str | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    shutdown_timeout: int | None = None
    """Seconds; None: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30."""
    virtual_local_rank: bool = False
    print_completion: str | None = None

    program: str | None = None
    arguments: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    """Field -> who set it: the flag, `PET_NNODES`, or `nvrun`. A field that is not here has torchrun's default."""

    @classmethod
    def read(cls, line: CommandLine, environ: Mapping[str, str]) -> TorchrunArgs:
        """The line's values over PET_*. Raises UsageError naming the flag or variable and what was expected."""
        given: dict[str, tuple[str, str | None]] = {}
        for flag in FLAGS:
            if flag.variable and flag.variable in environ:
                given[flag.name] = (flag.variable, environ[flag.variable])
        for flag, text in line.torchrun:
            given[flag.name] = (flag.spelling, text)
        values = {name: _read(BY_NAME[name], source, text) for name, (source, text) in given.items()}
        args = cls(
            program=line.program,
            arguments=line.arguments,
            origin={name: source for name, (source, _) in given.items()},
            **values,  # type: ignore[arg-type]  # a test holds the fields to the table
        )
        if args.no_python and args.module and not args.run_path:
            raise UsageError(f"{args.origin['no_python']} and {args.origin['module']} exclude each other: drop one")
        return args

    def replacing(self, **values: object) -> TorchrunArgs:
        """The same with some fields set by nvrun."""
        return replace(self, origin={**self.origin, **dict.fromkeys(values, "nvrun")}, **values)  # type: ignore[arg-type]  # by field

    def is_set(self, *names: str) -> bool:
        """Whether the line, PET_* or nvrun set any of these fields."""
        return any(name in self.origin for name in names)

    def to_argv(self) -> list[str]:
        """Arguments for torchrun: every field that somebody set, then `--`, the program and its arguments."""
        argv = [argument for flag in FLAGS if flag.name in self.origin for argument in self._argument(flag)]
        return [*argv, "--", *([] if self.program is None else [self.program]), *self.arguments]

    def _argument(self, flag: Flag) -> list[str]:
        value = getattr(self, flag.name)
        if flag.read is None:
            return [flag.spelling] if value else []
        if value is None:
            return []
        if flag.name == "nnodes":
            value = f"{value[0]}:{value[1]}"
        elif flag.read is filters:
            value = ",".join(item.replace(",", ",,") for item in value)
        return [f"{flag.spelling}={value}"]


def _read(flag: Flag, source: str, text: str | None) -> object:
    if flag.read is None:
        if source != flag.variable:
            return True
        try:
            return bool(int(text or ""))
        except ValueError:
            raise UsageError(f"{source}: expected 0 or 1, as torchrun does, got {text!r}") from None
    try:
        return flag.read(text or "")
    except ValueError as error:
        raise UsageError(f"{source}: expected {error}, got {text!r}") from None


def unknown_flags(args: TorchrunArgs, host_flags: Collection[str]) -> tuple[Flag, ...]:
    """Flags in use that a host's torchrun lacks. `host_flags`: its long flags, in either spelling.

    An empty `host_flags` means that they were not read: the caller shows that, nothing is concluded here.
    """
    if not host_flags:
        return ()
    known = {name.replace("_", "-") for name in host_flags}
    return tuple(flag for flag in FLAGS if flag.name in args.origin and flag.spelling not in known)
