"""Flags, NVRUN_*, nvrun.yaml and the user's config folder, in layers -> `Invocation`.

    invocation = config.load(argv, os.environ)        # reads the files: the only effect here
    invocation = config.parse(argv, environ, files)   # the same, pure: files as text
    invocation.options.grace                          # nvrun's own settings (options.py)
    invocation.torchrun.nproc_per_node                # torchrun's (torchrun.py), with .program and .arguments
    invocation.source("grace")                        # `--grace`, `NVRUN_GRACE`, `nvrun.yaml:3` or `default`
    invocation.help, .version, .notices               # None, "short" or "all"; bool; lines to show

Later wins: defaults < ~/.config/nvrun/nvrun.yaml < ./nvrun.yaml or --config FILE < NVRUN_* < flags. A setting that may
be given several times is replaced as a whole by a later layer; `env` is not: its variables are settings of their own
and keep their source. A mistake is one UsageError naming the flag, variable or file:line, and what was expected.
A subcommand reads the settings that it takes; one that works without a file is not stopped by a mistake in it.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from nvrun import xdg
from nvrun.errors import UsageError
from nvrun.options import BY_NAME, OWN, SETTINGS, EnvSetting, Options, Setting, assignment
from nvrun.textfile import written_by_others
from nvrun.torchrun import CommandLine, TorchrunArgs, nearest, split
from nvrun.torchrun_flags import BY_NAME as TORCHRUN

if TYPE_CHECKING:
    from nvrun.commands import Command

MAX_FILE = 1 << 20
"""Bytes of a configuration file; a longer one is a mistake."""


class ConfigText(NamedTuple):
    """A configuration file as read."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One command line with everything that was layered under it."""

    options: Options
    torchrun: TorchrunArgs
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field of `Options` -> who set it. Defaults are not listed."""
    notices: tuple[str, ...] = ()
    """What was left out of account, and why: one line each, to be shown."""
    help: Literal["short", "all"] | None = None
    version: bool = False
    separated: bool = False
    """`--` stood before the program, which is then no subcommand."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """A subcommand's own flags -> value, empty for a switch."""

    @property
    def words(self) -> tuple[str, ...]:
        """What a subcommand without a program was given beside flags."""
        return () if self.torchrun.program is None else (self.torchrun.program, *self.torchrun.arguments)

    def source(self, name: str) -> str:
        return self.sources.get(name, "default")


class _Given(NamedTuple):
    setting: Setting
    source: str
    text: str
    where: str
    """How an error names it: the flag, the variable, `file:line: key`."""


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    files: Sequence[ConfigText] = (),
    *,
    notices: Sequence[str] = (),
    command: Command | None = None,
) -> Invocation:
    """The settings that hold for `argv` (without nvrun's own name and the subcommand's). `files`: the weakest first.

    Settings that the command does not take are not read, so that a mistake in them does not stop it. A command that
    works without files leaves out a file with a mistake, and a notice says so."""
    more = command.own_flags if command else {}
    takes = command.takes if command else None
    left_out = []
    line = split(argv, {**OWN, **more})
    asked = dict(line.own)
    wants_help: Literal["short", "all"] | None = (
        "all" if "--help-all" in asked or ("--help" in asked and line.program == "all") else None
    )
    if wants_help is None and ("--help" in asked or "-h" in asked):
        wants_help = "short"
    if wants_help or "--version" in asked:  # also where a setting is wrong: the help says what is right
        return Invocation(
            options=Options(), torchrun=TorchrunArgs.read(line, {}), help=wants_help, version="--version" in asked
        )
    layers = []
    for file in files:
        try:
            layers.append([(given, _read(given, environ)) for given in _from_file(file, takes)])
        except UsageError as error:
            left_out.append(_not_read(error, command))
            layers.append([])
    for others in (_from_environment(environ, takes), _from_line(line)):
        layers.append([(given, _read(given, environ)) for given in others])
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    variables: dict[str, EnvSetting] = {}
    for number, layer in enumerate(layers):
        fresh: dict[str, list[object]] = {}
        for given, value in layer:
            if given.setting.name == "env":
                name, content = assignment(given.text)
                variables[name] = EnvSetting(name, content, given.source, from_file=number < len(files))
                value = tuple(variables.values())
            elif given.setting.many:
                fresh.setdefault(given.setting.field, []).append(value)
                value = tuple(fresh[given.setting.field])
            values[given.setting.field] = value
            sources[given.setting.field] = given.source
    return Invocation(
        options=Options(**values),  # type: ignore[arg-type]  # each reader gives its field's type; a test holds it
        torchrun=TorchrunArgs.read(line, environ if command is None or command.configured else {}),
        sources=sources,
        notices=(*notices, *left_out, *_misspelt(environ)),
        separated=line.separated,
        flags={name: value or "" for name, value in line.own if name in more},
    )


def load(argv: Sequence[str], environ: Mapping[str, str], command: Command | None = None) -> Invocation:
    """`parse` with the files there are. The working directory's counts only where nobody else could have written it."""
    own = {**OWN, **(command.own_flags if command else {})}
    named = dict(split(argv, own).own).get("--config") or environ.get("NVRUN_CONFIG")
    files: list[ConfigText] = []
    notices: list[str] = []
    for path, chosen in ((f"{xdg.config(environ)}/nvrun.yaml", False), (named or "nvrun.yaml", bool(named))):
        try:
            found = _file(path, chosen)
        except UsageError as error:
            found = _not_read(error, command)
        if isinstance(found, str):
            notices.append(found)
        elif found:
            files.append(found)
    return parse(argv, environ, files, notices=notices, command=command)


def _not_read(error: UsageError, command: Command | None) -> str:
    """The notice where a command works without the file; the error itself where it does not."""
    if command is None or command.configured:
        raise error
    return f"not read: {error.message}"


def _file(path: str, chosen: bool) -> ConfigText | str | None:
    """A configuration file, `chosen` by the user or not; a notice why it is ignored; None where there is none."""
    try:
        with open(path, "rb", opener=None if chosen else _never_waiting) as opened:
            status = os.fstat(opened.fileno())
            data = opened.read(MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if chosen:
            raise UsageError(f"{path}: {error.strerror} (given by --config or NVRUN_CONFIG)") from None
        return f"{path} is ignored: {error.strerror}" if isinstance(error, PermissionError) else None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if why := written_by_others(status):
        if chosen:
            raise UsageError(f"{path} is refused: it {why} (given by --config or NVRUN_CONFIG)",
                             hint=f"chmod go-w {path}")  # fmt: skip
        return f"{path} is ignored: it {why}"
    return ConfigText(path, _decode(path, data))


def _never_waiting(path: str, flags: int) -> int:
    """Opens a file that somebody may have put there as a pipe, without waiting for its other end."""
    return os.open(path, flags | os.O_NONBLOCK)


def _decode(path: str, data: bytes) -> str:
    if len(data) > MAX_FILE:
        raise UsageError(f"{path}: longer than {MAX_FILE >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _from_line(line: CommandLine) -> Iterator[_Given]:
    for flag, text in line.own:
        if flag[2:] in BY_NAME:
            setting = BY_NAME[flag[2:]]
            yield _Given(setting, flag, "true" if text is None else text, flag)


def _from_environment(environ: Mapping[str, str], takes: Collection[str] | None) -> Iterator[_Given]:
    for setting in SETTINGS:
        text = environ.get(setting.variable)
        if text is None or (takes is not None and setting.name not in takes):
            continue
        try:
            parts = shlex.split(text) if setting.many else [text]
        except ValueError as error:
            raise UsageError(f"{setting.variable}: expected shell words, got {text!r}: {error}") from None
        for part in parts:
            yield _Given(setting, setting.variable, part, setting.variable)


_OTHERS = {"NVRUN_CONFIG", "NVRUN_RUN_ID", "NVRUN_NODE_RANK", "NVRUN_NODE_COUNT", "NVRUN_LOCAL_WORLD_SIZES",
           "NVRUN_RESTART_COUNT"}  # fmt: skip
"""No settings, or what nvrun tells ranks: an nvrun inside a job has them."""


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like a setting and are none. Others may be nvrun's own marks or a hook's."""
    known = {setting.variable: setting for setting in SETTINGS}
    for variable in environ:
        if variable.startswith("NVRUN_") and variable not in known and variable not in _OTHERS:
            name = variable[6:].lower()
            meant = _meant(name)
            theirs = TORCHRUN.get(name)
            if theirs:
                yield f"{variable} is ignored: a flag of torchrun; give {theirs.spelling} or {theirs.variable}"
            elif meant:
                yield f"{variable} is ignored: there is no such setting; did you mean {BY_NAME[meant].variable}?"


def _from_file(file: ConfigText, takes: Collection[str] | None) -> Iterator[_Given]:
    from nvrun.configfile import read  # imports yaml, which `nvrun --help` need not

    for entry in read(file.path, file.text):
        place = f"{file.path}:{entry.line}"
        key = entry.key.replace("_", "-")
        setting = BY_NAME.get(key) or _in_the_plural(key)
        if takes is not None and (setting.name if setting else _meant(key)) not in takes:
            continue
        if setting is None:
            raise UsageError(f"{place}: {entry.key}: {_no_such_key(entry.key)}")
        for text in _texts(entry.value, setting, f"{place}: {entry.key}"):
            is_path = setting.file or (setting.metavar == "NAME|PATH" and text.startswith(("./", "../")))
            if is_path and not text.startswith(("/", "~/")):
                text = posixpath.join(posixpath.dirname(file.path), text)
            yield _Given(setting, place, text, f"{place}: {entry.key}")


def _in_the_plural(key: str) -> Setting | None:
    """`hooks:` above a list reads better than `hook:`."""
    setting = BY_NAME.get(key.removesuffix("s"))
    return setting if setting and setting.many else None


def _texts(value: str | list[str] | dict[str, str], setting: Setting, where: str) -> list[str]:
    if isinstance(value, dict):
        if setting.name != "env":
            raise UsageError(f"{where}: expected a value, got a mapping")
        return [f"{name}={text}" for name, text in value.items()]
    if isinstance(value, str):
        return [value]
    if setting.name in ("hosts", "exclude"):
        return [",".join(value)]
    if not setting.many:
        raise UsageError(f"{where}: expected one value, got a list")
    return value


def _meant(key: str) -> str | None:
    return nearest(key, [setting.name for setting in SETTINGS])


def _no_such_key(key: str) -> str:
    flag = TORCHRUN.get(key.replace("-", "_"))
    if flag:
        also = f" or as {flag.variable}" if flag.variable else ""
        return f"a flag of torchrun: give it on the command line{also}"
    if near := _meant(key):
        return f"no such setting; did you mean {near}?"
    theirs = nearest(key.replace("-", "_"), list(TORCHRUN))
    return "no such setting" + (f"; {TORCHRUN[theirs].spelling} is a flag of torchrun" if theirs else "")


def _read(given: _Given, environ: Mapping[str, str]) -> object:
    text = given.text
    if given.setting.file and text.startswith("~/") and environ.get("HOME"):
        text = posixpath.join(environ["HOME"], text[2:])
    try:
        return given.setting.read(text)
    except ValueError as error:
        raise UsageError(f"{given.where}: expected {error}, got {given.text!r}") from None
