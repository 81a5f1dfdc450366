"""The help pages and shell completion, made from the tables of nvrun's and torchrun's flags. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Literal, NamedTuple

from nvrun.errors import UsageError
from nvrun.options import SETTINGS, Setting
from nvrun.torchrun_flags import FLAGS

WIDTH = 100
"""Columns of a help page."""
_INDENT = 34

_HEAD = """\
nvrun [flags] train.py [arguments]      runs a PyTorch job as torchrun does, on all hosts, checked first

  nvrun train.py                        this machine, or every node of the Slurm job, all GPUs
  nvrun --hosts a,b train.py            these hosts, by ssh
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
    return "\n".join([*blocks, _OURS] if kind == "all" else blocks)


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


_BASH = """\
# nvrun completion for bash: source this file
_nvrun() {{
    COMPREPLY=()
    local word=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD-1]}} i skip=0
    [[ $word == = ]] && word=
    [[ $flag == = ]] && flag=${{COMP_WORDS[COMP_CWORD-2]}}
    for ((i = 1; i < COMP_CWORD; i++)); do  # after the program: its own arguments
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
    return "\n".join([*lines, "  '1:program:_files' '*::argument:_files'", ""])


def _fish(known: list[_Completed]) -> str:
    lines = ["# nvrun completion for fish: put this file into ~/.config/fish/completions"]
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
