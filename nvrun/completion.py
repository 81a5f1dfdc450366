"""Scripts by which bash, zsh and fish complete nvrun's command line, made from the same tables as the help. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nvrun.commands import COMMANDS, Command
from nvrun.errors import UsageError
from nvrun.options import SETTINGS
from nvrun.torchrun_flags import FLAGS


class _Completed(NamedTuple):
    """What completion knows of one flag."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    words: tuple[str, ...] = ()
    files: bool = False
    many: bool = False
    names_of: str = ""
    """What nvrun itself knows the values of: `presets`, `hooks`."""


_NAMES_OF = {"preset": "presets", "hook": "hooks"}
"""Setting -> the kind of `nvrun completion --names`."""


def _completed() -> list[_Completed]:
    rows = [("-h",), ("--help",), ("--help-all",), ("--version",)]
    known = [_Completed(names, "", takes_value=False) for names in rows]
    known.append(_Completed(("--config",), "read FILE in place of ./nvrun.yaml", takes_value=True, files=True))
    for setting in SETTINGS:
        words, files = _values(setting.metavar)
        takes = bool(setting.metavar)
        names_of = _NAMES_OF.get(setting.name, "")
        known.append(_Completed((setting.flag,), setting.help, takes, words, files, setting.many, names_of))
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


def _own(command: Command) -> list[_Completed]:
    """The flags that only this command has."""
    return [_Completed((flag.name,), flag.help, bool(flag.metavar), *_values(flag.metavar)) for flag in command.flags]


def _programs() -> list[tuple[str, Command]]:
    """Commands that take a program, with all flags of a run."""
    return [(name, command) for name, command in COMMANDS.items() if command.words is None]


class _Wordy(NamedTuple):
    """A command without a program."""

    name: str
    flags: str
    words: str
    """That may follow as they stand: `bash zsh fish`."""
    names_of: str
    """What else may follow: `runs`, `codes`; empty where nothing that has a name does."""


def _wordy() -> Iterator[_Wordy]:
    for name, command in COMMANDS.items():
        if command.words is not None:
            flags = [*(flag.name for flag in command.flags), *(f"--{setting}" for setting in command.settings)]
            kinds = {"RUN": "runs", "CODE": "codes", "NAME": name}
            names_of = next((kind for word, kind in kinds.items() if word in command.words), "")
            words = " ".join(re.findall(r"\b[a-z]+\b", command.words))
            yield _Wordy(name, " ".join([*flags, "--help"]), words, names_of)


_BASH_WORDS = """\
        {0})
            if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '{1}' -- "$word"))
            else COMPREPLY=($(compgen -W "{2}{3}" -- "$word"; compgen -f -- "$word")); fi
            return ;;"""
_BASH_NAMES = " $(${{COMP_WORDS[0]}} completion --names {0} 2>/dev/null)"
_BASH = """\
# nvrun completion for bash: source this file
_nvrun() {{
    COMPREPLY=()
    local word=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD-1]}} i first=1 skip=0 own=
    [[ $word == = ]] && word=
    [[ $flag == = ]] && flag=${{COMP_WORDS[COMP_CWORD-2]}}
    if ((COMP_CWORD == 1)) && [[ $word != -* ]]; then
        COMPREPLY=($(compgen -W '{commands}' -- "$word"; compgen -f -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{words}
{programs}
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
        COMPREPLY=($(compgen -W "{names} $own" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _nvrun nvrun
"""


def _bash(known: list[_Completed]) -> str:
    cases = []
    own = [flag for _, command in _programs() for flag in _own(command) if flag.takes_value]
    valued = [flag for flag in known if flag.takes_value] + own
    for flag in (*known, *own):
        asked = _BASH_NAMES.format(flag.names_of) if flag.names_of else ""
        words = " ".join(flag.words)
        replies = [f"compgen -W '{words}' -- \"$word\""] if words else []
        replies += [f'compgen -W "{asked}" -- "$word"'] if asked else []
        replies += ['compgen -f -- "$word"'] if flag.files else []
        if replies:
            cases.append(f"        {'|'.join(flag.names)}) COMPREPLY=($({'; '.join(replies)})); return ;;")
    return _BASH.format(
        commands=" ".join(COMMANDS),
        words="\n".join(
            _BASH_WORDS.format(row.name, row.flags, row.words, _BASH_NAMES.format(row.names_of) if row.names_of else "")
            for row in _wordy()
        ),
        programs="\n".join(
            f"        {name}) first=2 own='{' '.join(flag.names[0] for flag in _own(command))}' ;;"
            for name, command in _programs()
        ),
        valued="|".join(dict.fromkeys(name for flag in valued for name in flag.names)),
        cases="\n".join(cases),
        names=" ".join(flag.names[0] for flag in known),
    )


_ZSH = """\
#compdef nvrun
# nvrun completion for zsh: source this file, or put it as _nvrun into a folder of $fpath
_nvrun() {{
  local -a every=(
{every}
  )
  case $words[2] in
{cases}
  esac
  _arguments $every '1:program:{{_files; compadd {commands}}}' '*::argument:_files'
}}
if [[ $funcstack[1] == _nvrun ]]; then
  _nvrun "$@"
else
  (( $+functions[compdef] )) || {{ autoload -Uz compinit; compinit -i -D }}
  compdef _nvrun nvrun
fi
"""


def _zsh(known: list[_Completed]) -> str:
    cases = [
        f"    {name}) _arguments $every {' '.join(spec for flag in _own(command) for spec in _zsh_specs(flag))}"
        f" '1:command:({name})' '2:program:_files' '*::argument:_files'; return ;;"
        for name, command in _programs()
    ]
    for row in _wordy():
        flags = [flag for flag in (*_own(COMMANDS[row.name]), *known) if flag.names[0] in row.flags.split()]
        names = f" {_ZSH_NAMES.format(row.names_of)}" if row.names_of else ""
        cases.append(
            f"    {row.name}) _arguments {' '.join(spec for flag in flags for spec in _zsh_specs(flag))}"
            f" '1:command:({row.name})' '*:word:{{_files; compadd -- {row.words}{names}}}'; return ;;"
        )
    every = "\n".join(f"    {spec}" for flag in known for spec in _zsh_specs(flag))
    return _ZSH.format(every=every, cases="\n".join(cases), commands=" ".join(COMMANDS))


_ZSH_NAMES = "$($words[1] completion --names {0} 2>/dev/null)"


def _zsh_specs(flag: _Completed) -> list[str]:
    """The flag as _arguments takes it, once for each of its names."""
    text = flag.help.translate({ord(c): None for c in "'[]"}).replace(":", "\\:")
    names = [*flag.words, *([_ZSH_NAMES.format(flag.names_of)] if flag.names_of else [])]
    action = "_files" if flag.files else " "
    if names:
        action = f"{{_files; compadd -- {' '.join(names)}}}" if flag.files else f"({' '.join(names)})"
    value = f":value:{action}" if flag.takes_value else ""
    return [
        f"'{'*' * flag.many}{name}{'=' * (flag.takes_value and name.startswith('--'))}[{text}]{value}'"
        for name in flag.names
    ]


def _fish(known: list[_Completed]) -> str:
    lines = ["# nvrun completion for fish: put this file into ~/.config/fish/completions"]
    lines += [
        f"complete -c nvrun -n __fish_use_subcommand -a {name} -d '{command.help.replace(chr(39), '')}'"
        for name, command in COMMANDS.items()
    ]
    lines += [_fish_flag(flag) for flag in known]
    for name, command in COMMANDS.items():
        lines += [_fish_flag(flag, _FISH_AFTER.format(name)) for flag in _own(command)]
    for row in _wordy():
        names = _FISH_NAMES.format(row.names_of) if row.names_of else ""
        if row.words or names:
            words = " ".join(filter(None, [row.words, names]))
            lines.append(f"complete -c nvrun{_FISH_AFTER.format(row.name)} -a '{words}'")
    return "\n".join([*lines, ""])


_FISH_AFTER = " -n '__fish_seen_subcommand_from {0}'"
_FISH_NAMES = "(nvrun completion --names {0} 2>/dev/null)"


def _fish_flag(flag: _Completed, when: str = "") -> str:
    text = flag.help.replace("\\", "\\\\").replace("'", "\\'")
    long = flag.names[0]
    parts = [f"complete -c nvrun{when}", f"-l {long[2:]}" if long.startswith("--") else f"-s {long[1:]}"]
    parts += [f"-s {name[1:]}" for name in flag.names[1:] if not name.startswith("--")]
    if flag.takes_value:
        words = [*flag.words, *([_FISH_NAMES.format(flag.names_of)] if flag.names_of else [])]
        parts.append("-r" if flag.files else "-x")
        parts += [f"-a '{' '.join(words)}'"] if words else []
    parts += [f"-d '{text}'"] if text else []
    return " ".join(parts)
