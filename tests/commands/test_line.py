"""A subcommand's command line: flags anywhere, the command's own and nvrun's."""

from __future__ import annotations

import importlib

import pytest

from nvrun.commands import COMMANDS
from nvrun.commands.line import flags_first
from nvrun.config import ConfigText, Invocation, parse
from nvrun.errors import UsageError
from nvrun.options import OWN


def read(command: str, *argv: str) -> Invocation:
    return parse(flags_first(command, argv), {}, command=COMMANDS[command])


def test_flags_stand_anywhere_where_no_program_follows() -> None:
    for argv in (["--json", "one", "two"], ["one", "--json", "two"], ["one", "two", "--json"]):
        found = read("diagnose", *argv)
        assert found.words == ("one", "two")
        assert found.options.json


def test_what_follows_two_dashes_is_a_word_and_so_is_one_dash() -> None:
    found = read("diagnose", "--json", "-", "--", "--json", "-x")
    assert found.words == ("-", "--json", "-x")


def test_own_flags_take_values_in_both_spellings() -> None:
    assert read("lint", "a.sh", "--nccl", "2.28.9").flags == {"--nccl": "2.28.9"}
    assert read("lint", "--nccl=2.28.9", "a.sh").flags == {"--nccl": "2.28.9"}
    assert read("topo", "--topo", "-").flags == {"--topo": "-"}
    assert read("env", "--list").flags == {"--list": ""}


def test_a_program_keeps_its_own_flags() -> None:
    found = read("env", "--explain", "NCCL_ALGO", "train.py", "--list", "--json")
    assert found.flags == {"--explain": "NCCL_ALGO"}
    assert found.torchrun.arguments == ("--list", "--json")
    assert not found.options.json


NEEDS_NO_FILE = {
    *("hooks", "explain", "diagnose", "bundle", "nccl", "profile", "report", "top", "runs", "stop", "completion"),
}
NO_YAML = ConfigText("nvrun.yaml", "hosts: [a\n")
MISTAKES = ConfigText("nvrun.yaml", "hosts: a,b\ncheck: often\nno-such-thing: 1\nhook: {a: b}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_in_what_a_command_does_not_take_is_not_its_matter(command: str) -> None:
    ill = {"NVRUN_CHECK": "often", "NVRUN_MONITOR": "-1"}
    takes = COMMANDS[command].takes
    if takes is None:
        with pytest.raises(UsageError, match="expected one of off, quick"):
            parse([], {}, [MISTAKES], command=COMMANDS[command])
        return
    found = parse([], ill, [MISTAKES], command=COMMANDS[command])
    assert found.notices == ()
    assert found.options.hosts == ("a,b" if "hosts" in takes else None)


def test_a_misspelt_name_of_what_a_command_takes_is_its_matter() -> None:
    with pytest.raises(UsageError, match=r"nvrun\.yaml:1: hostss: no such setting; did you mean hosts\?"):
        parse([], {}, [ConfigText("nvrun.yaml", "hostss: a,b\n")], command=COMMANDS["clean"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_read_stops_only_what_would_be_about_something_else_without_it(command: str) -> None:
    if command not in NEEDS_NO_FILE:
        with pytest.raises(UsageError, match=r"nvrun\.yaml:2: not YAML"):
            parse([], {}, [NO_YAML], command=COMMANDS[command])
        return
    found = parse([], {"PET_NNODES": "many"}, [NO_YAML, ConfigText("b.yaml", "json: 1")], command=COMMANDS[command])
    (notice,) = found.notices
    assert notice.startswith("not read: nvrun.yaml:2: not YAML")
    assert found.options.json == ("json" in COMMANDS[command].settings), "the other file holds"


@pytest.mark.parametrize(
    ("command", "argv", "words"),
    [
        ("diagnose", ["--jsno"], "--jsno is no flag of nvrun diagnose; did you mean --json"),
        ("diagnose", ["--nnodes", "2"], "--nnodes is no flag of nvrun diagnose"),
        ("runs", ["--grace", "2"], "--grace is no flag of nvrun runs"),
        ("clean", ["--hosts"], "--hosts needs a value"),
        ("clean", ["--hosts", "--json"], "--hosts needs a value"),
        ("runs", ["--\x1b[31m"], r"is no flag of nvrun runs"),
    ],
)
def test_a_flag_without_a_meaning_is_refused(command: str, argv: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        read(command, *argv)
    assert "\x1b" not in error.value.message
    assert error.value.hint == f"nvrun {command} --help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_whole(name: str) -> None:
    command = COMMANDS[name]
    assert callable(importlib.import_module(f"nvrun.commands.{name}").run)
    assert all(f"--{setting}" in OWN for setting in command.settings)
    assert not {flag.name for flag in command.flags} & set(OWN), "a command's own flag would hide nvrun's"
