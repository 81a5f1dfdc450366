"""The start of an agent: its text, and the text really run by every shell that is here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from nvrun.agent import wire
from nvrun.fleet.start import COMMAND, STAGE, Start, argv, interpreters, line, quoted

SHELLS = [["sh"], ["bash"], ["dash"], ["zsh"], ["tcsh"], ["csh"], ["fish"], ["ksh"], ["busybox", "ash"]]
SAYS_WHO = "import os,sys;os.write(1,('\\n\\x02ffffj.'+__import__('json').dumps(%s)+'\\n').encode())"
HOSTILE = "it's \"a\" $HOME `id` \\ !! \\' ;&|<> *?[a] {x} %s ~ #"


def pack(source: str) -> bytes:
    packed = zlib.compress(source.encode())
    return b"%08x" % len(packed) + packed


class Came(dict[str, object]):
    """What a start sent: stages in order, the last message, standard error, exit status."""


def begin(start: Start, shell: list[str], report: str = "sys.executable", **options: object) -> Came:
    """Runs the command as sshd would, by a login shell, with the start's line and a small agent on its input."""
    done = subprocess.run(
        [*shell, "-c", "exec " + quoted(COMMAND)],
        input=line(start) + pack(SAYS_WHO % report + ";print(sys.stdin.read())") + b"unread",
        capture_output=True,
        timeout=20,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    reader = wire.Reader()
    found = list(reader.feed(done.stdout))
    messages = [json.loads(payload) for _, stream, payload in found if stream == wire.MESSAGE]
    return Came(
        stages=[payload.decode().strip() for _, stream, payload in found if stream == STAGE],
        message=messages[-1] if messages else None,
        noise=reader.noise.decode(),
        stderr=done.stderr.decode(),
        code=done.returncode,
    )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_login_shell_starts_the_agent(shell: list[str], tmp_path: Path) -> None:
    if not shutil.which(shell[0]):
        pytest.skip(f"no {shell[0]} here (Debian: {shell[0]})")
    start = Start(
        pythons=("/no/python", sys.executable),
        setup=f"export PROBE={subprocess.list2cmdline(['x'])}\nexport HERE=$PWD\necho noise; cat",
        within="env 'WITHIN=a b'",
        cwd=str(tmp_path),
    )
    came = begin(start, shell, "[os.environ.get(n) for n in ('PROBE','HERE','WITHIN')]+[os.getcwd()]")
    assert came["stages"] == ["shell", "setup", "in", "python"], came
    assert came["message"] == ["x", str(tmp_path), "a b", str(tmp_path)]
    assert "unread" in str(came["noise"])  # not a byte behind the agent was taken by a shell or by `cat`
    assert "noise" in str(came["stderr"])
    assert came["code"] == 0


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_no_character_of_the_user_is_read_by_a_shell_on_the_way(shell: list[str]) -> None:
    if not shutil.which(shell[0]):
        pytest.skip(f"no {shell[0]} here")
    within = f"env {_quoted(f'WITHIN={HOSTILE}')}"
    start = Start(pythons=(sys.executable,), setup=f"SETUP={_quoted(HOSTILE)}\nexport SETUP", within=within)
    came = begin(start, shell, "[os.environ.get(n) for n in ('SETUP','WITHIN')]")
    assert came["message"] == [HOSTILE, HOSTILE], came


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def test_what_login_shells_see_is_the_same_for_all_and_harmless() -> None:
    text = quoted(COMMAND)
    assert "\n" not in text
    assert "!" not in text  # csh would take it for history
    assert text.count("'") == 2


def test_nothing_of_the_user_stands_on_a_command_line_before_it_is_needed() -> None:
    secret = Start(pythons=("p",), setup="export TOKEN=abc")
    assert "abc" not in quoted(COMMAND)
    assert b"abc" in line(secret)
    assert line(secret).count(b"\n") == 1


def test_setup_stands_outside_in_and_in_outside_the_interpreter() -> None:
    words = argv(Start(pythons=("p",), setup="S", within="apptainer exec 'my x.sif'"))
    assert words.index("S") < words.index("apptainer") < words.index("p")
    assert "my x.sif" in words


def test_setup_file_is_sourced_relative_to_the_job(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text('[ $# = 0 ] || exit 9\nexport PROBE="from the file"\n')
    for name in ("env.sh", str(tmp_path / "env.sh")):
        start = Start(pythons=(sys.executable,), setup=name, cwd=str(tmp_path))
        assert begin(start, ["sh"], "os.environ['PROBE']")["message"] == "from the file"


def test_setup_file_of_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export PROBE=home\n")
    start = Start(pythons=(sys.executable,), setup="~/env.sh")
    came = begin(start, ["sh"], "os.environ['PROBE']", env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert came["message"] == "home"


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("false", "exit 1"),
        ("exit 7", "exit 7"),
        ("set -e; false; true", "exit 1"),
        ("set -u; echo $nothing", "exit 127"),
        ("no-such-command", "exit 127"),
        ("if", "exit 2"),
    ],
)
def test_a_setup_that_fails_is_refused_with_its_status(setup: str, why: str) -> None:
    came = begin(Start(pythons=(sys.executable,), setup=setup), ["sh"])
    assert came["message"] == {"t": "refused", "code": "host-setup-failed", "node": "", "why": why}, came


def test_strict_settings_of_a_setup_do_not_outlive_it() -> None:
    came = begin(Start(pythons=("/no/python", sys.executable), setup="set -eu"), ["sh"])
    assert came["message"] == sys.executable


def test_what_a_setup_prints_is_no_protocol() -> None:
    came = begin(Start(pythons=(sys.executable,), setup='printf \'\\002ffffj.{"t":"hello"}\\n\''), ["sh"])
    assert came["message"] == sys.executable


def test_without_bash_a_setup_is_refused(tmp_path: Path) -> None:
    for name in ("sh", "env"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    start = Start(pythons=(sys.executable,), setup="true")
    came = begin(start, [str(tmp_path / "sh")], env={"PATH": str(tmp_path)})
    assert came["message"] == {"t": "refused", "code": "host-setup-failed", "node": "", "why": "no bash there"}


def test_in_that_is_not_there_is_refused() -> None:
    came = begin(Start(pythons=(sys.executable,), within="apptainer-of-nobody exec x.sif"), ["sh"])
    assert came["message"] == {"t": "refused", "code": "host-in-failed", "node": "", "why": "not there"}


# ------------------------------------------------------------------------------------------------ which interpreter


def prefix(root: Path, name: str, *inside: str) -> str:
    """An interpreter, by a link to this one's binary, with these folders in its prefix."""
    (root / name / "bin").mkdir(parents=True)
    path = root / name / "bin" / "python"
    path.write_text(f'#!/bin/sh\nNAME={name} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    for folder in inside:
        (root / name / folder).mkdir(parents=True)
    return str(path)


def chosen(start: Start, **environment: str) -> object:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **environment}
    return begin(start, ["sh"], "os.environ.get('NAME')", env=env)["message"]


@pytest.mark.parametrize(
    "inside",
    [
        "lib/python3.11/site-packages/torch",
        "lib64/python3.9/site-packages/torch",
        "lib/python3/dist-packages/torch",
        "local/lib/python3.12/dist-packages/torch",
        "lib/python3.11/site-packages/torch-2.9.0.dist-info",
    ],
)
def test_the_first_interpreter_with_torch_is_taken(tmp_path: Path, inside: str) -> None:
    bare = prefix(tmp_path, "bare", "lib/python3.11/site-packages/torchvision")
    full = prefix(tmp_path, "full", inside)
    assert chosen(Start(pythons=("/no/python", bare, full))) == "full"
    assert chosen(Start(pythons=(full, bare))) == "full"


def test_without_torch_anywhere_the_first_interpreter_is_taken(tmp_path: Path) -> None:
    one, two = prefix(tmp_path, "one"), prefix(tmp_path, "two")
    assert chosen(Start(pythons=("/no/python", one, two))) == "one"


def test_torch_may_come_by_pythonpath(tmp_path: Path) -> None:
    one, two = prefix(tmp_path, "one"), prefix(tmp_path, "two", "lib/python3.11/site-packages/torch")
    (tmp_path / "modules" / "torch").mkdir(parents=True)
    assert chosen(Start(pythons=(one, two)), PYTHONPATH=f"/no:{tmp_path}/modules") == "one"


def test_the_interpreter_of_a_setup_comes_first_but_not_before_the_users_word(tmp_path: Path) -> None:
    mine = prefix(tmp_path, "mine", "lib/python3.11/site-packages/torch")
    theirs = Path(prefix(tmp_path, "theirs", "lib/python3.11/site-packages/torch"))
    theirs.with_name("python3").symlink_to(theirs)
    activate = f"PATH={theirs.parent}:$PATH"
    assert chosen(Start(pythons=(mine, "python3"), setup=activate)) == "theirs"
    assert chosen(Start(pythons=(mine,), setup=activate, named=True)) == "mine"
    assert chosen(Start(pythons=(mine, "python3"), setup="true")) == "mine"


def test_no_interpreter_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    for name in ("python2", "python3.12", "python-config", "pythonic"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    came = begin(Start(pythons=("/no/python",)), ["/bin/sh"], env={"PATH": f"{tmp_path}/bin", "HOME": "/nowhere"})
    message = came["message"]
    assert isinstance(message, dict)
    assert message["code"] == "host-no-python"
    found = [path.strip() for path in message["why"].split(":")]
    assert [path for path in found if str(tmp_path) in path] == [
        f"{tmp_path}/bin/python2",
        f"{tmp_path}/bin/python3.12",
    ]


def test_interpreters_in_order_of_preference() -> None:
    environment = {"VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda"}
    assert interpreters(environment, None, "/me") == ("/me", "/venv/bin/python", "/conda/bin/python", "python3")
    assert interpreters({"VIRTUAL_ENV": "/venv"}, None, "/venv/bin/python") == ("/venv/bin/python", "python3")
    assert interpreters(environment, "/mine", "/me") == ("/mine",)
