"""The help pages, made from the tables of nvrun's and torchrun's flags. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Literal, NamedTuple

from nvrun.commands import COMMANDS
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
Each flag of nvrun's own is also a key of nvrun.yaml (connect-timeout: 5) and a variable (NVRUN_CONNECT_TIMEOUT);
torchrun's flags are no keys, and their variables are torchrun's own (PET_NNODES).
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
