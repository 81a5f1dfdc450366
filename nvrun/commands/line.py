"""The command line of a subcommand -> flags first, then words, as `config.load` takes it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvrun.commands import COMMANDS
from nvrun.errors import UsageError
from nvrun.options import HELP, OWN
from nvrun.torchrun import nearest


def flags_first(command: str, argv: Sequence[str]) -> list[str]:
    """`argv` (what follows the command) with the flags, which may stand anywhere, before `--` and the words.

    A command that takes a program leaves its line as it is: what follows the program is the program's. Raises
    UsageError for a flag that the command does not have, and for a missing value.
    """
    form = COMMANDS[command]
    if form.words is None:
        return list(argv)
    known = {**HELP, **form.own_flags, **{f"--{name}": OWN[f"--{name}"] for name in form.settings}}
    flags: list[str] = []
    words: list[str] = []
    rest = iter(argv)
    for token in rest:
        if token == "--":
            words += rest
        elif token.startswith("-") and token != "-":
            flags.append(_flag(command, token, rest, known))
        else:
            words.append(token)
    return [*flags, "--", *words] if words else flags


def _flag(command: str, token: str, rest: Iterator[str], known: Mapping[str, bool]) -> str:
    name, equals, _ = token.partition("=")
    if name not in known:
        near = nearest(name, known)
        shown = name if name.isprintable() else repr(name)
        raise UsageError(
            f"{shown} is no flag of nvrun {command}" + (f"; did you mean {near}?" if near else ""),
            hint=f"nvrun {command} --help",
        )
    if equals or not known[name]:
        return token
    value = next(rest, None)
    if value is None or value.startswith("--"):
        raise UsageError(f"{name} needs a value", hint=f"nvrun {command} --help")
    return f"{name}={value}"
