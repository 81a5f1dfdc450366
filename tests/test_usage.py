"""The help pages, and the completion that is made from the same tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from nvrun import runs
from nvrun.commands import COMMANDS
from nvrun.completion import completion
from nvrun.errors import UsageError
from nvrun.options import OWN
from nvrun.torchrun_flags import FLAGS
from nvrun.usage import command_page, page


def test_the_first_page_is_one_screen() -> None:
    lines = page("short").splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 110


def test_the_long_page_has_every_flag() -> None:
    text = page("all")
    for name in [*OWN, *(flag.spelling for flag in FLAGS), *(flag.short for flag in FLAGS if flag.short)]:
        assert name in text, name


def test_every_command_has_a_page_and_a_line_on_the_long_one() -> None:
    for name, command in COMMANDS.items():
        text = command_page(name)
        assert text.startswith(f"nvrun {name} ")
        assert all(flag.name in text for flag in command.flags)
        assert command.help in page("all")
        assert max(map(len, text.splitlines())) <= 110


def test_every_page_says_what_each_flag_does() -> None:
    for flag in FLAGS:
        assert flag.help
        assert bool(flag.metavar) == (flag.read is not None)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_flag_and_the_shell_can_read_it(shell: str, tmp_path: Path) -> None:
    text = completion(shell)
    for name in [*OWN, *(flag.spelling for flag in FLAGS)]:
        assert (f"-l {name[2:]}" if shell == "fish" and name.startswith("--") else name) in text or name == "-h"
    script = tmp_path / "script"
    script.write_text(text)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=20)
    with pytest.raises(UsageError, match="expected bash, zsh or fish"):
        completion("tcsh")


NVRUN = Path(sys.executable).with_name("nvrun")


def environment(home: Path) -> dict[str, str]:
    """Of a user who has had one run."""
    (index := home / ".local/state/nvrun/index").mkdir(parents=True)
    run = runs.Remembered(id="20261129-151203-k3x9", path="/r", started=1.0, launcher=runs.this_process(), hosts=(),
                          kinds=(), fleet=False)  # fmt: skip
    (index / f"{run.id}.json").write_bytes(msgspec.json.encode(run))
    return {"HOME": str(home), "PATH": f"{NVRUN.parent}:{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_sources_it_without_a_word_and_knows_it_then(tmp_path: Path) -> None:
    ask = "source <(nvrun completion zsh); print $_comps[nvrun]"
    done = subprocess.run(
        ["zsh", "-f", "-c", ask], env=environment(tmp_path), capture_output=True, text=True, timeout=20
    )
    assert (done.stdout, done.stderr) == ("_nvrun\n", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes_what_there_is(tmp_path: Path) -> None:
    wanted = {"check --pro": "--prometheus", "bench --coll": "--collectives", "--preset au": "auto",
              "--hook torch-p": "torch-profiler", "explain port-dr": "port-dropped",
              "report 2026": "20261129-151203-k3x9"}  # fmt: skip
    asks = "; ".join(f"complete -C 'nvrun {line}'" for line in wanted)
    done = subprocess.run(
        ["fish", "-N", "-c", f"nvrun completion fish | source; {asks}"],
        env=environment(tmp_path), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == list(wanted.values()), done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["diag"], ["diagnose"]),
        (["diagnose", "--j"], ["--json"]),
        (["diagnose", "--json", "tr"], ["train.py"]),
        (["completion", "z"], ["zsh"]),
        (["facts", "--fle"], ["--fleet"]),
        (["facts", "train.py", "--fle"], []),
        (["--fle"], ["--fleet"]),
        (["--fleet", "s"], ["ssh", "srun"]),
        (["--fleet", "=", "l"], ["local"]),
        (["--fleet", "="], ["local", "ssh", "srun"]),
        (["--numa-binding", "co"], ["core-complex"]),
        (["--grace", ""], []),
        (["tr"], ["train.py"]),
        (["--grace", "3", "tr"], ["train.py"]),
        (["--hostfile", "tr"], ["train.py"]),
        (["train.py", "--fle"], []),
        (["--", "--fle"], []),
        (["--force", "train.py", "tr"], ["train.py"]),
        (["check", "--pro"], ["--prometheus"]),
        (["bench", "--coll"], ["--collectives"]),
        (["bench", "--sizes", "8:8", "tr"], ["train.py"]),
        (["--coll"], []),
        (["--preset", "au"], ["auto"]),
        (["check", "--hook", "torch-p"], ["torch-profiler"]),
        (["explain", "port-dr"], ["port-dropped"]),
        (["report", "2026"], ["20261129-151203-k3x9"]),
        (["hooks", "sh"], ["show"]),
        (["presets", "show", "aut"], ["auto"]),
    ],
)
def test_bash_completes(words: list[str], replies: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    ask = f"""{completion("bash")}
COMP_WORDS=({NVRUN} "$@"); COMP_CWORD=$#; _nvrun; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", ask, "bash", *words], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
        check=True, timeout=20,
    )  # fmt: skip
    assert done.stdout.split() == replies
    assert done.stderr == ""
