"""nvrun's reading of torchrun's command line against the real parser of the installed torch."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrun.errors import UsageError
from nvrun.torchrun import TorchrunArgs, split, unknown_flags
from nvrun.torchrun_flags import BY_NAME, FLAGS, Flag

NOTHING: dict[str, bool] = {}


@pytest.fixture(scope="module")
def real() -> Iterator[argparse.ArgumentParser]:
    run = pytest.importorskip("torch.distributed.run")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PET_")]:
            patch.delenv(name)
        yield run.get_args_parser()


def read(*argv: str, **environ: str) -> TorchrunArgs:
    return TorchrunArgs.read(split(argv, NOTHING), environ)


def parsed(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace | None:
    """The real parser's reading; None where it, or torchrun right after it, refuses."""
    std = pytest.importorskip("torch.distributed.elastic.multiprocessing").Std
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            namespace = parser.parse_args(argv)
            std.from_str(namespace.redirects)
            std.from_str(namespace.tee)
        except (SystemExit, ValueError):
            return None
    if namespace.no_python and namespace.module and not namespace.run_path:
        return None
    return namespace


def as_torchrun(args: TorchrunArgs, name: str) -> Any:
    """A field in the form the real parser gives it."""
    value = getattr(args, name)
    if name == "nnodes":
        return tuple(value)
    if name == "nproc_per_node":
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def as_typed(namespace: argparse.Namespace, name: str) -> Any:
    value = getattr(namespace, name)
    if name == "nnodes":
        low, _, high = value.partition(":")
        return int(low), int(high or low)
    return value


def assert_same(args: TorchrunArgs, namespace: argparse.Namespace) -> None:
    for name in vars(namespace):
        if name in BY_NAME:
            assert as_torchrun(args, name) == as_typed(namespace, name), name
    assert args.program == namespace.training_script
    assert list(args.arguments) == namespace.training_script_args


def test_table_is_the_real_one(real: argparse.ArgumentParser) -> None:
    """Every option of the installed torch, with its spellings, default and PET variable."""
    defaults = TorchrunArgs()
    for action in real._actions:
        if not action.option_strings or action.dest == "help":
            continue
        flag = BY_NAME[action.dest]
        assert {*flag.spellings, *filter(None, [flag.short])} == set(action.option_strings)
        assert (flag.read is None) == (action.nargs == 0)
        assert flag.pet == (type(action).__name__ in ("env", "check_env"))
        expected = argparse.Namespace(**{action.dest: action.default})
        assert as_torchrun(defaults, flag.name) == as_typed(expected, flag.name)


def test_fields_are_the_table() -> None:
    named = {field.name for field in fields(TorchrunArgs)} - {"program", "arguments", "origin"}
    assert named == {flag.name for flag in FLAGS}


VALUES: dict[str, st.SearchStrategy[str]] = {
    "nnodes": st.sampled_from(["1", "2", "1:4", "3:3", " 2"]),
    "nproc_per_node": st.sampled_from(["1", "8", "auto", "gpu", "cpu", "xpu", "privateuseone"]),
    "max_restarts": st.sampled_from(["0", "3", "1_0"]),
    "monitor_interval": st.sampled_from(["0.1", "5", "1e-3"]),
    "start_method": st.sampled_from(["spawn", "fork", "forkserver"]),
    "redirects": st.sampled_from(["0", "3", "0:1", "0:1,1:2"]),
    "tee": st.sampled_from(["1", "2", "9:3"]),
    "local_ranks_filter": st.sampled_from(["0", "0,1", ""]),
    "node_rank": st.sampled_from(["0", "7"]),
    "master_port": st.sampled_from(["0", "29500"]),
    "numa_binding": st.sampled_from(["node", "socket", "exclusive", "core-complex"]),
    "shutdown_timeout": st.sampled_from(["0", "60"]),
    "duplicate_stdout_filters": st.sampled_from(["a", "a,b", "a,,b", "a,,,b", ",", ""]),
}
FREE = st.sampled_from(
    ["x", "", "a b", "-5", "-x y", "--weird value", "a=b", "[::1]:29500", "ünï", "--", "-", "--x", "-r"]
)
WORDS = st.one_of(FREE, st.sampled_from(["--foo", "-m", "--nnodes", "train.py", "-1.5"]))


@st.composite
def one_flag(draw: st.DrawFn, flag: Flag) -> list[str]:
    """One option as somebody might type it, abbreviated and attached in every way, not all of them right."""
    name = draw(st.sampled_from([*flag.spellings, *filter(None, [flag.short])]))
    if name.startswith("--"):
        name = name[: draw(st.integers(min(4, len(name)), len(name)) | st.just(len(name)))]
    if flag.read is None:
        return [name]
    value = draw(VALUES.get(flag.name, FREE))
    if value == "--":  # attached (`--role=--`) argparse drops it and hands on an empty list
        return [name, value]
    if name.startswith("--"):
        return draw(st.sampled_from([[name, value], [f"{name}={value}"]]))
    return draw(st.sampled_from([[name, value], [name + value], [f"{name}={value}"], ["-m" + name[1:] + value]]))


def command_lines(parser: argparse.ArgumentParser) -> st.SearchStrategy[list[str]]:
    known = [BY_NAME[action.dest] for action in parser._actions if action.dest in BY_NAME]
    options = st.lists(st.sampled_from(known).flatmap(one_flag), max_size=5)
    separator = st.sampled_from([[], ["--"]])
    tail = st.tuples(separator, FREE, separator, st.lists(WORDS, max_size=4))
    return st.tuples(options, tail).map(
        lambda line: [*chain(*line[0]), *line[1][0], line[1][1], *line[1][2], *line[1][3]]
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_torchrun_accepts_means_the_same(real: argparse.ArgumentParser, data: st.DataObject) -> None:
    argv = data.draw(command_lines(real))
    namespace = parsed(real, argv)
    if namespace is not None:
        assert_same(read(*argv), namespace)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_handed_on_means_the_same_to_torchrun(real: argparse.ArgumentParser, data: st.DataObject) -> None:
    """to_argv through the real parser, whatever the program's arguments look like."""
    try:
        args = read(*data.draw(command_lines(real)))
    except UsageError:
        return
    if args.program is not None:
        namespace = parsed(real, args.to_argv())
        assert namespace is not None
        assert_same(args, namespace)


@settings(max_examples=100, deadline=None)
@given(argv=st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=6))
def test_any_line_is_read_or_refused(argv: list[str]) -> None:
    message = "read"
    try:
        read(*argv)
    except UsageError as error:
        message = error.message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("argument", ["--r=16", "--log", "--lo=x", "--m", "--master=1", "--no"])
def test_arguments_that_torchrun_misreads(real: argparse.ArgumentParser, argument: str) -> None:
    assert parsed(real, ["train.py", argument]) is None
    args = read("train.py", argument)
    assert (args.program, args.arguments) == ("train.py", (argument,))
    namespace = parsed(real, args.to_argv())
    assert namespace is not None
    assert namespace.training_script_args == [argument]


@pytest.mark.parametrize(
    ("argv", "program", "arguments"),
    [
        (["t.py", "--", "--foo"], "t.py", ("--foo",)),
        (["--", "t.py", "--", "--foo"], "t.py", ("--", "--foo")),
        (["t.py", "a", "--", "b"], "t.py", ("a", "--", "b")),
        (["-m", "pkg.train", "-m"], "pkg.train", ("-m",)),
        (["--", "--nnodes"], "--nnodes", ()),
        (["--nnodes=2"], None, ()),
        (["--nnodes=2", "--"], None, ()),
    ],
)
def test_where_the_program_begins(argv: list[str], program: str | None, arguments: tuple[str, ...]) -> None:
    args = read(*argv)
    assert (args.program, args.arguments) == (program, arguments)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nproc-per-nod3", "2", "t.py"], ["--nproc-per-nod3 is no flag", "did you mean --nproc-per-node?"]),
        (["--nproc", "2", "t.py"], ["--nproc is an incomplete flag", "--nproc-per-node"]),
        (["--nnodes"], ["--nnodes needs a value"]),
        (["--role", "--tee"], ["--role needs a value"]),
        (["--standalone=1", "t.py"], ["--standalone takes no value"]),
        (["--nnodes=3:2", "t.py"], ["--nnodes: expected N or MIN:MAX", "'3:2'"]),
        (["--nproc-per-node=0", "t.py"], ["--nproc-per-node: expected a number of ranks", "'0'"]),
        (["-r", "10:3", "t.py"], ["--redirects: expected 0 to 3", "'10:3'"]),
        (["--max-restarts=-1", "t.py"], ["--max-restarts: expected a number from 0"]),
        (["--no-python", "-m", "t"], ["--no-python and --module exclude each other"]),
        (["-mx", "t.py"], ["-mx is no flag"]),
        (["--role=--", "t.py"], ["--role: torchrun cannot take --"]),
    ],
)
def test_mistakes_say_what_was_expected(argv: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        read(*argv)
    for word in words:
        assert word in error.value.message
    assert "\n" not in error.value.message


def test_own_flags_are_known_in_full_only() -> None:
    own = {"--hosts": True, "--force": False}
    line = split(["--hosts", "a,b", "--force", "--nnodes=2", "--force=false", "t.py", "--hosts", "c"], own)
    assert line.own == (("--hosts", "a,b"), ("--force", None), ("--force", "false"))
    assert [(flag.name, value) for flag, value in line.torchrun] == [("nnodes", "2")]
    assert line.arguments == ("--hosts", "c")
    with pytest.raises(UsageError, match=r"--host is no flag.*--hosts"):
        split(["--host", "a", "t.py"], own)


def test_variables_stand_below_flags() -> None:
    args = read("--max-restarts=1", "t.py", PET_MAX_RESTARTS="3", PET_NNODES="2", PET_STANDALONE="1", PET_MODULE="0")
    assert (args.max_restarts, args.nnodes, args.standalone, args.module) == (1, (2, 2), True, False)
    assert args.origin["max_restarts"] == "--max-restarts"
    assert args.origin["nnodes"] == "PET_NNODES"
    assert "--nnodes=2:2" in args.to_argv()
    assert read("t.py", PET_NUMA_BINDING="node").numa_binding is None  # torch has no such variable


@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if flag.pet])
def test_every_variable_means_what_torchrun_makes_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pytest.importorskip("torch.distributed.run")
    flag = BY_NAME[name]
    value = {"redirects": "3", "tee": "3", "start_method": "fork", "nnodes": "2:3", "local_ranks_filter": "1"}.get(
        name, "7"
    )
    assert flag.variable
    monkeypatch.setenv(flag.variable, value)
    namespace = run.get_args_parser().parse_args(["t.py"])
    if hasattr(namespace, name):
        assert as_torchrun(read("t.py", **{flag.variable: value}), name) == as_typed(namespace, name)


@pytest.mark.parametrize("text", ["true", "", "yes"])
def test_a_switch_variable_that_torchrun_would_crash_on(text: str) -> None:
    with pytest.raises(UsageError, match="PET_STANDALONE: expected 0 or 1"):
        read("t.py", PET_STANDALONE=text)


def test_replaced_values_are_handed_on_even_where_they_equal_the_default() -> None:
    args = read("t.py", PET_MAX_RESTARTS="3").replacing(max_restarts=0, node_rank=1, master_port=None)
    assert args.to_argv() == ["--max-restarts=0", "--node-rank=1", "--", "t.py"]


def test_flags_that_a_host_does_not_know() -> None:
    args = read("--virtual-local-rank", "--nproc_per_node=2", "t.py")
    assert [flag.name for flag in unknown_flags(args, ["--nproc_per_node", "--nnodes"])] == ["virtual_local_rank"]
    assert unknown_flags(args, ["--nproc-per-node", "--virtual-local-rank"]) == ()
    assert unknown_flags(args, []) == ()


def test_an_abbreviation_keeps_its_meaning_when_a_newer_torch_adds_a_flag() -> None:
    assert read("--log-d", "x", "t.py").log_dir == "x"
    assert read("--log-", "x", "t.py").log_dir == "x"  # 2.14 adds --log-line-prefix-template
