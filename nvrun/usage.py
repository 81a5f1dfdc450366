"""The help pages and shell completion, made from the tables of nvrun's and torchrun's flags. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from nvrun.commands import COMMANDS
from nvrun.errors import UsageError
from nvrun.options import BY_NAME, SETTINGS, Setting
from nvrun.torchrun_flags import FLAGS

WIDTH = 100
"""Columns of a help page."""
_INDENT = 34

_HEAD = """\
nvrun [flags] train.py [arguments]      runs a PyTorch job as torchrun does, on all hosts, checked first

  nvrun --nproc-per-node gpu train.py   all GPUs of this machine, or of every node of the Slurm job
  nvrun --hosts a,b train.py            all GPUs of these hosts, by ssh
  nvrun --nnodes 2 --node-rank 0 --master-addr a train.py      one node, as with torchrun

torchrun's flags keep their meaning. What stands after the program, or after --, is the program's.
"""
_OURS = """\
Each flag of nvrun is also a key of nvrun.yaml (connect-timeout: 5) and a variable (NVRUN_CONNECT_TIMEOUT).
Later wins: ~/.config/nvrun/nvrun.yaml, ./nvrun.yaml (or --config FILE), NVRUN_*, flags.
"""
_COMMON = ("nnodes", "nproc_per_node", "max_restarts", "module", "standalone")
"""torchrun's flags on the first screen."""


class _Row(NamedTuple):
    names: str
    metavar: str
    help: str

    def text(self) -> str:
        head = f"  {self.names} {self.metavar}".rstrip()
        lines = textwrap.wrap(self.help, WIDTH - _INDENT)
        if len(head) >= _INDENT:
            lines.insert(0, "")
        first = f"{head:<{_INDENT}}{lines[0]}".rstrip()
        return "\n".join([first, *(" " * _INDENT + line for line in lines[1:])])


_GENERAL = (
    _Row("-h, --help", "", "this page; --help-all: every flag, torchrun's too"),
    _Row("--config", "FILE", "read FILE in place of ./nvrun.yaml"),
    _Row("--version", "", "nvrun's version"),
)


def page(kind: Literal["short", "all"]) -> str:
    """The help: one screen, or everything."""
    settings = [setting for setting in SETTINGS if setting.brief or kind == "all"]
    flags = [flag for flag in FLAGS if kind == "all" or flag.name in _COMMON]
    groups = {setting.group: [_row(s) for s in settings if s.group == setting.group] for setting in settings}
    groups["torchrun" if kind == "all" else "torchrun (the common ones)"] = [
        _Row(
            ", ".join(filter(None, [flag.short, flag.spelling])),
            flag.metavar,
            flag.help + (f" [torch {flag.since}]" if flag.since else ""),
        )
        for flag in flags
    ]
    blocks = [_HEAD, *(_block(title, rows) for title, rows in groups.items()), _block("General", _GENERAL)]
    if kind == "short":
        names = textwrap.fill(" ".join(COMMANDS), WIDTH, initial_indent="  ", subsequent_indent="  ")
        return "\n".join([*blocks, f"Commands (nvrun COMMAND --help tells more):\n{names}\n"])
    blocks.insert(1, _block("Commands", (_Row(name, "", command.help) for name, command in COMMANDS.items())))
    return "\n".join([*blocks, _OURS])


def command_page(name: str) -> str:
    """The help of one command."""
    command = COMMANDS[name]
    words = "[flags] [program [arguments]]" if command.words is None else f"{command.words} [flags]"
    rows = [_Row(flag.name, flag.metavar, flag.help) for flag in command.flags]
    if command.words is not None:
        rows += [_row(BY_NAME[setting]) for setting in command.settings]
    lines = [f"nvrun {name} {words}".replace("  ", " "), "", textwrap.fill(_sentence(command.help), WIDTH), ""]
    if rows:
        lines.append(_block("Flags", rows))
    if command.words is None:
        lines += ["It takes all flags of nvrun and torchrun besides: nvrun --help-all.", ""]
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _row(setting: Setting) -> _Row:
    return _Row(setting.flag, setting.metavar, setting.help + ("; repeatable" if setting.many else ""))


def _block(title: str, rows: Iterable[_Row]) -> str:
    return "\n".join([f"{title}:", *(row.text() for row in rows), ""])


class _Completed(NamedTuple):
    """What completion knows of one flag."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    words: tuple[str, ...] = ()
    files: bool = False
    many: bool = False


def _completed() -> list[_Completed]:
    rows = [("-h",), ("--help",), ("--help-all",), ("--version",)]
    known = [_Completed(names, "", takes_value=False) for names in rows]
    known.append(_Completed(("--config",), "read FILE in place of ./nvrun.yaml", takes_value=True, files=True))
    for setting in SETTINGS:
        words, files = _values(setting.metavar)
        takes = bool(setting.metavar)
        known.append(_Completed((setting.flag,), setting.help, takes, words, files, setting.many))
    for flag in FLAGS:
        words, files = _values(flag.metavar)
        names = tuple(filter(None, (*flag.spellings, flag.short)))
        known.append(_Completed(names, flag.help, flag.read is not None, words, files))
    return known


def _values(metavar: str) -> tuple[tuple[str, ...], bool]:
    """`none|node|FILE` -> its literal words, and whether a file may stand there."""
    parts = metavar.split("|")
    return tuple(p for p in parts if p.islower()), any(p in ("FILE", "PATH", "DIR") for p in parts)


def completion(shell: str) -> str:
    """The completion script for bash, zsh or fish. Raises UsageError for another shell."""
    try:
        return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_completed())
    except KeyError:
        raise UsageError(f"completion: expected bash, zsh or fish, got {shell!r}") from None


def _wordy() -> Iterator[tuple[str, str, str]]:
    """Commands without a program: name, flags, and words that may follow as they stand (`bash|zsh|fish`)."""
    for name, command in COMMANDS.items():
        if command.words is not None:
            flags = [*(flag.name for flag in command.flags), *(f"--{setting}" for setting in command.settings)]
            yield name, " ".join([*flags, "--help"]), " ".join(re.findall(r"\b[a-z]+\b", command.words))


_BASH_WORDS = """\
        {0})
            if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '{1}' -- "$word"))
            else COMPREPLY=($(compgen -W '{2}' -- "$word"; compgen -f -- "$word")); fi
            return ;;"""
_BASH = """\
# nvrun completion for bash: source this file
_nvrun() {{
    COMPREPLY=()
    local word=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD-1]}} i first=1 skip=0
    [[ $word == = ]] && word=
    [[ $flag == = ]] && flag=${{COMP_WORDS[COMP_CWORD-2]}}
    if ((COMP_CWORD == 1)) && [[ $word != -* ]]; then
        COMPREPLY=($(compgen -W '{commands}' -- "$word"; compgen -f -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{words}
        {programs}) first=2 ;;
    esac
    for ((i = first; i < COMP_CWORD; i++)); do  # after the program: its own arguments
        case ${{COMP_WORDS[i]}} in
            =) skip=1 ;;
            --) COMPREPLY=($(compgen -f -- "$word")); return ;;
            {valued}) skip=1 ;;
            -*) skip=0 ;;
            *) ((skip)) || {{ COMPREPLY=($(compgen -f -- "$word")); return; }}; skip=0 ;;
        esac
    done
    case $flag in
{cases}
        {valued}) return ;;
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W '{names}' -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _nvrun nvrun
"""


def _bash(known: list[_Completed]) -> str:
    cases = []
    for flag in known:
        replies = [f"compgen -W '{' '.join(flag.words)}' -- \"$word\""] if flag.words else []
        replies += ['compgen -f -- "$word"'] if flag.files else []
        if replies:
            cases.append(f"        {'|'.join(flag.names)}) COMPREPLY=($({'; '.join(replies)})); return ;;")
    return _BASH.format(
        commands=" ".join(COMMANDS),
        words="\n".join(_BASH_WORDS.format(*row) for row in _wordy()),
        programs="|".join(name for name, command in COMMANDS.items() if command.words is None),
        valued="|".join(name for flag in known if flag.takes_value for name in flag.names),
        cases="\n".join(cases),
        names=" ".join(flag.names[0] for flag in known),
    )


def _zsh(known: list[_Completed]) -> str:
    lines = [
        "#compdef nvrun",
        "# nvrun completion for zsh: put this file as _nvrun into a folder of $fpath",
        "_arguments \\",
    ]
    for flag in known:
        text = flag.help.translate({ord(c): None for c in "'[]"}).replace(":", "\\:")
        action = f"({' '.join(flag.words)})" if flag.words else "_files" if flag.files else " "
        value = f":value:{action}" if flag.takes_value else ""
        for name in flag.names:
            equals = "=" if flag.takes_value and name.startswith("--") else ""
            lines.append(f"  '{'*' if flag.many else ''}{name}{equals}[{text}]{value}' \\")
    return "\n".join([*lines, f"  '1:program:{{_files; compadd {' '.join(COMMANDS)}}}' '*::argument:_files'", ""])


def _fish(known: list[_Completed]) -> str:
    lines = ["# nvrun completion for fish: put this file into ~/.config/fish/completions"]
    lines += [
        f"complete -c nvrun -n __fish_use_subcommand -a {name} -d '{command.help.replace(chr(39), '')}'"
        for name, command in COMMANDS.items()
    ]
    for flag in known:
        text = flag.help.replace("\\", "\\\\").replace("'", "\\'")
        long = flag.names[0]
        parts = ["complete -c nvrun", f"-l {long[2:]}" if long.startswith("--") else f"-s {long[1:]}"]
        parts += [f"-s {name[1:]}" for name in flag.names[1:] if not name.startswith("--")]
        if flag.takes_value:
            parts.append("-r" if flag.files else "-x")
            parts += [f"-a '{' '.join(flag.words)}'"] if flag.words else []
        parts += [f"-d '{text}'"] if text else []
        lines.append(" ".join(parts))
    return "\n".join([*lines, ""])
