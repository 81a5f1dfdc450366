"""Layers, provenance and mistakes of flags, variables and nvrun.yaml."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrun import config
from nvrun.config import ConfigText, Invocation, parse
from nvrun.errors import UsageError
from nvrun.model import Host
from nvrun.options import OWN, SETTINGS, EnvSetting, Options, Setting
from nvrun.plan import Site, build
from nvrun.torchrun import split
from nvrun.torchrun_flags import FLAGS

VALID = {
    "hosts": "a,b", "hostfile": "/h", "exclude": "c", "nodes": "2", "fleet": "ssh", "rsh": "docker exec -i {host}",
    "ssh": "openssh", "ssh-config": "/s", "connect-timeout": "4", "python": "/usr/bin/python3", "setup": "ml cuda",
    "in": "unshare -m", "chdir": "/w", "check": "quick", "waive": "port-filtered", "force": "true", "env": "A=b=c",
    "env-file": "/e", "preset": "auto", "preset-path": "/p", "bind": "node", "model-size": "7B",
    "bind-memory": "strict", "gpu-order": "nvlink", "omp": "auto", "hook": "none", "console": "0,2-3", "run-dir": "r",
    "grace": "8", "lost-after": "never", "hang-after": "90",
    "hang-timeout": "1h", "port-range": "1000-1001", "dry-run": "true", "json": "true",
    "from": "/f", "show-env": "true", "requeue-on-bad-node": "2", "node-restarts": "2",
    "check-timeout": "20", "latency": "bare-metal", "require-path": "/data", "require-same": "/etc/hosts",
    "check-ssh-mesh": "true", "monitor": "off", "monitor-textfile": "/var/lib/node_exporter",
}  # fmt: skip
"""A value for every setting, none of them its default."""


def of(*argv: str, yaml: str | None = None, **environ: str) -> Invocation:
    return parse(argv, environ, [] if yaml is None else [ConfigText("nvrun.yaml", yaml)])


def refused(*argv: str, yaml: str | None = None, **environ: str) -> str:
    with pytest.raises(UsageError) as error:
        of(*argv, yaml=yaml, **environ)
    assert "\n" not in error.value.message
    return error.value.message


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_a_flag_a_variable_and_a_key(setting: Setting) -> None:
    text = VALID[setting.name]
    quoted = f"'{text}'"
    from_flag = of(f"{setting.flag}={text}", "t.py")
    from_variable = of("t.py", **{setting.variable: quoted if setting.many else text})
    from_file = of("t.py", yaml=f"{setting.name}: {quoted}")
    value = getattr(from_flag.options, setting.field)
    assert value != getattr(Options(), setting.field)
    if setting.name != "env":  # its variables keep their sources
        assert getattr(from_variable.options, setting.field) == value
        assert getattr(from_file.options, setting.field) == value
    assert from_flag.source(setting.field) == setting.flag
    assert from_variable.source(setting.field) == setting.variable
    assert from_file.source(setting.field) == "nvrun.yaml:1"


def test_settings_are_the_fields() -> None:
    assert [setting.field for setting in SETTINGS] == [field.name for field in fields(Options)]


def test_no_flag_of_nvrun_is_one_of_torchrun_or_abbreviates_one() -> None:
    spellings = {spelling for flag in FLAGS for spelling in flag.spellings}
    assert not spellings & set(OWN)
    for flag in set(OWN) - {"-h"}:
        with pytest.raises(UsageError):
            split([flag, "x"], {})  # to torchrun alone it means nothing


def test_later_layers_win_and_say_so() -> None:
    files = [ConfigText("/home/u/.config/nvrun/nvrun.yaml", "grace: 1\nssh: openssh\nwaive: [a, b]\n")]
    files.append(ConfigText("nvrun.yaml", "\n\ngrace: 2\nlost-after: 5m\n"))
    invocation = parse(["--waive=c", "--waive=d", "t.py"], {"NVRUN_GRACE": "3s"}, files)
    options = invocation.options
    assert (options.grace, options.ssh, options.lost_after, options.waive) == (3.0, "openssh", 300.0, ("c", "d"))
    assert invocation.source("grace") == "NVRUN_GRACE"
    assert invocation.source("ssh") == "/home/u/.config/nvrun/nvrun.yaml:2"
    assert invocation.source("lost_after") == "nvrun.yaml:4"
    assert invocation.source("waive") == "--waive"
    assert invocation.source("console") == "default"


def test_variables_of_the_job_are_settings_of_their_own() -> None:
    yaml = "env:\n  NCCL_DEBUG: INFO\n  SIZE: 4 MiB\n"
    invocation = of("--env", "NCCL_DEBUG=WARN", "--env", "HOME_OF_DATA", "t.py", yaml=yaml, NVRUN_ENV="'A=x y' B=")
    assert invocation.options.env == (
        EnvSetting("NCCL_DEBUG", "WARN", "--env"),
        EnvSetting("SIZE", "4 MiB", "nvrun.yaml:1", from_file=True),
        EnvSetting("A", "x y", "NVRUN_ENV"),
        EnvSetting("B", "", "NVRUN_ENV"),
        EnvSetting("HOME_OF_DATA", None, "--env"),
    )


def test_values_are_typed() -> None:
    options = of("--lost-after=never", "--console", "all", "--port-range", "29500", "--force", "t.py").options
    assert options.lost_after == math.inf
    assert (options.console, options.port_range, options.force) == ("all", (29500, 29500), True)
    assert of("--console=3,0-1", "t.py").options.console == (0, 1, 3)
    assert of("--force=false", "t.py", NVRUN_FORCE="1").options.force is False
    assert of("t.py", yaml="hosts: [a, 'b:4']").options.hosts == "a,b:4"


def test_paths_of_a_file_start_there_and_home_is_known() -> None:
    files = [ConfigText("/etc/x/nvrun.yaml", "hostfile: hosts.txt\nssh-config: ~/ssh\nrun-dir: runs\n")]
    options = parse(["t.py"], {"HOME": "/home/u"}, files).options
    assert (options.hostfile, options.ssh_config, options.run_dir) == ("/etc/x/hosts.txt", "/home/u/ssh", "runs")
    assert of("--hostfile=hosts.txt", "t.py", yaml="hostfile: other").options.hostfile == "hosts.txt"


@pytest.mark.parametrize(
    ("argv", "help_asked", "program"),
    [
        (["--help"], "short", None),
        (["-h"], "short", None),
        (["--help", "all"], "all", "all"),
        (["--help-all"], "all", None),
        (["t.py", "-h"], None, "t.py"),
    ],
)
def test_help_is_asked_for_before_the_program(argv: list[str], help_asked: str | None, program: str | None) -> None:
    invocation = of(*argv)
    assert (invocation.help, invocation.torchrun.program) == (help_asked, program)


def test_a_separator_makes_a_program_of_any_name() -> None:
    assert of("--", "plan").separated
    assert not of("plan").separated


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--grase=3", "t.py"], ["--grase is no flag", "did you mean --grace?"]),
        (["--grace=soon", "t.py"], ["--grace: expected seconds", "'soon'"]),
        (["--grace=-1", "t.py"], ["--grace: expected seconds"]),
        (["--fleet", "rsh", "t.py"], ["--fleet: expected one of local, ssh, srun", "'rsh'"]),
        (["--nodes=0", "t.py"], ["--nodes: expected a whole number from 1"]),
        (["--port-range=2-1", "t.py"], ["--port-range: expected FIRST-LAST"]),
        (["--console=x", "t.py"], ["--console: expected all, or ranks"]),
        (["--rsh=a 'b", "t.py"], ["--rsh: expected shell words"]),
        (["--env=1A=2", "t.py"], ["--env: expected NAME or NAME=VALUE"]),
        (["--hosts=", "t.py"], ["--hosts: expected a value"]),
        (["--force=maybe", "t.py"], ["--force: expected true or false"]),
        (["--hosts"], ["--hosts needs a value"]),
    ],
)
def test_a_wrong_flag_or_value_is_one_line(argv: list[str], words: list[str]) -> None:
    message = refused(*argv)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("nproc-per-nodes: 2\n", "nvrun.yaml:1: nproc-per-nodes: no such setting; --nproc-per-node is a flag of "
            "torchrun"),
        ("grace: 3\ngrase: 4\n", "nvrun.yaml:2: grase: no such setting; did you mean grace?"),
        ("nproc-per-node: 2\n", "nvrun.yaml:1: nproc-per-node: a flag of torchrun: give it on the command line or as "
                                "PET_NPROC_PER_NODE"),
        ("\ngrace: soon\n", "nvrun.yaml:2: grace: expected seconds, as 30, 90s, 5m or 1h, got 'soon'"),
        ("grace: 1\ngrace: 2\n", "nvrun.yaml:2: grace is given twice (first in line 1)"),
        ("grace:\n", "nvrun.yaml:1: expected grace: a value, got nothing"),
        ("grace: [1]\n", "nvrun.yaml:1: grace: expected one value, got a list"),
        ("grace: {a: 1}\n", "nvrun.yaml:1: grace: expected a value, got a mapping"),
        ("waive:\n  - [a]\n", "nvrun.yaml:2: expected waive: a value, got something nested"),
        ("- a\n", "nvrun.yaml:1: expected lines of the form 'key: value'"),
        ("hosts: a\n--- \nhosts: b\n", "nvrun.yaml:2: expected one document, found another"),
        ("hosts: &x a\nexclude: *x\n", "nvrun.yaml:1: anchors and aliases are not allowed here"),
        ("hosts: !!python/object:os.system a\n", "nvrun.yaml:1: tags are not allowed here"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_with_its_place(yaml: str, message: str) -> None:
    assert refused("t.py", yaml=yaml) == message


@pytest.mark.parametrize("yaml", ["a: [", "\t", "a: 'x", "a: b: c", "\0", "? [a]: b", "{"])
def test_what_is_no_yaml_is_refused_with_its_file(yaml: str) -> None:
    assert refused("t.py", yaml=yaml).startswith("nvrun.yaml")


@pytest.mark.parametrize("yaml", ["", "\n", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_says_nothing(yaml: str) -> None:
    assert of("t.py", yaml=yaml).sources == {}


def test_help_and_version_need_no_right_settings() -> None:
    for flag in ("--help", "--help-all", "--version"):
        invocation = of(flag, yaml="grase: 4\n", NVRUN_GRACE="soon", PET_NNODES="x")
        assert invocation.help or invocation.version


def test_variables_are_checked_and_misspelt_ones_shown() -> None:
    assert refused("t.py", NVRUN_GRACE="soon").startswith("NVRUN_GRACE: expected seconds")
    assert refused("t.py", NVRUN_WAIVE="'a").startswith("NVRUN_WAIVE: expected shell words")
    invocation = of("t.py", NVRUN_CONECT_TIMEOUT="3", NVRUN_RESTART_COUNT="1")
    assert [notice for notice in invocation.notices if "CONECT" in notice] == [
        "NVRUN_CONECT_TIMEOUT is ignored: there is no such setting; did you mean NVRUN_CONNECT_TIMEOUT?"
    ]
    assert len(invocation.notices) == 1
    site = Site(host=Host(name="a"), ranks=1, python="/p", folder="/f", address="10.0.0.1")
    plan = build(run_id="r", args=invocation.torchrun, sites=[site], fleet=True, cwd="/", master_port=1, grace=1.0,
                 lost_after=1.0)  # fmt: skip
    told = [variable.name for variable in plan.hosts[0].env if variable.name.startswith("NVRUN_")]
    assert len(told) == 5
    assert of("t.py", **dict.fromkeys(told, "1")).notices == (), "an nvrun inside a job"
    assert of("t.py", NVRUN_NPROC_PER_NODE="2", NVRUN_NODE_RANK="1").notices == (
        "NVRUN_NPROC_PER_NODE is ignored: a flag of torchrun; give --nproc-per-node or PET_NPROC_PER_NODE",
    )


@settings(max_examples=150, deadline=None)
@given(yaml=st.one_of(st.text(max_size=40), st.text(alphabet="ab:-[]{}'\"\n\t#&*!|>%@, ", max_size=25)))
def test_any_file_is_read_or_refused(yaml: str) -> None:
    message = "nvrun.yaml"
    try:
        of("t.py", yaml=yaml)
    except UsageError as error:
        message = error.message
    assert len(message.splitlines()) == 1
    assert message.startswith("nvrun.yaml")


@settings(max_examples=150, deadline=None)
@given(setting=st.sampled_from(SETTINGS), text=st.text(max_size=12))
def test_any_value_is_read_or_refused(setting: Setting, text: str) -> None:
    with contextlib.suppress(UsageError):
        of(f"{setting.flag}={text}", "t.py")
    with contextlib.suppress(UsageError):
        of("t.py", **{setting.variable: text})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_found_in_their_order(folder: Path) -> None:
    user = folder / "home" / ".config" / "nvrun"
    user.mkdir(parents=True)
    (user / "nvrun.yaml").write_text("grace: 1\nssh: openssh\n")
    (folder / "nvrun.yaml").write_text("grace: 2\n")
    (folder / "nvrun.yaml").chmod(0o644)
    (folder / "other.yaml").write_text("grace: 3\n")
    environ = {"HOME": str(folder / "home")}
    invocation = config.load(["t.py"], environ)
    assert (invocation.options.grace, invocation.options.ssh) == (2.0, "openssh")
    assert config.load(["--config", "other.yaml", "t.py"], environ).options.grace == 3.0
    assert config.load(["t.py"], {**environ, "NVRUN_CONFIG": "other.yaml"}).options.grace == 3.0
    assert config.load(["t.py"], {**environ, "XDG_CONFIG_HOME": str(folder)}).options.ssh == "paramiko"
    with pytest.raises(UsageError, match=r"gone\.yaml: No such file or directory \(given by --config"):
        config.load(["--config=gone.yaml", "t.py"], environ)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_left_out_and_said(folder: Path, mode: int) -> None:
    (folder / "nvrun.yaml").write_text("setup: evil\n")
    (folder / "nvrun.yaml").chmod(mode)
    invocation = config.load(["t.py"], {"HOME": str(folder)})
    assert invocation.options.setup is None
    assert "nvrun.yaml is ignored: it can be written by others" in invocation.notices[0]
    with pytest.raises(UsageError, match="refused: it can be written by others") as refused:
        config.load(["--config=nvrun.yaml", "t.py"], {"HOME": str(folder)})
    assert refused.value.hint == "chmod go-w nvrun.yaml"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_left_out(folder: Path) -> None:
    (folder / "nvrun.yaml").write_text("setup: evil\n")
    os.chown(folder / "nvrun.yaml", 12345, 12345)
    assert config.load(["t.py"], {"HOME": str(folder)}).options.setup is None
    with pytest.raises(UsageError, match="refused: it belongs to user 12345"):
        config.load(["--config=nvrun.yaml", "t.py"], {"HOME": str(folder)})


def test_a_pipe_in_place_of_the_file_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "nvrun.yaml", 0o600)
    assert config.load(["t.py"], {"HOME": "/dev/null"}).sources == {}


def test_a_file_that_is_too_long_or_no_text_or_no_file_is_refused(folder: Path) -> None:
    path = folder / "nvrun.yaml"
    path.write_bytes(b"#" * (config.MAX_FILE + 1))
    path.chmod(0o600)
    with pytest.raises(UsageError, match="longer than 1 MiB"):
        config.load(["t.py"], {})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        config.load(["t.py"], {})
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=r"nvrun\.yaml: Is a directory"):
        config.load(["t.py"], {})


def test_without_a_file_yaml_is_not_imported() -> None:
    code = (
        "import sys, nvrun.config as c; c.parse(['--help'], {}); "
        "print(sorted({'yaml', 'torch', 'paramiko', 'msgspec', 'difflib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
