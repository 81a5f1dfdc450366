"""The help pages and shell completion."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nvrun.commands import COMMANDS
from nvrun.errors import UsageError
from nvrun.options import OWN
from nvrun.torchrun_flags import FLAGS
from nvrun.usage import command_page, completion, page


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
    ],
)
def test_bash_completes(words: list[str], replies: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    ask = f"""{completion("bash")}
COMP_WORDS=(nvrun "$@"); COMP_CWORD=$#; _nvrun; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", ask, "bash", *words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.split() == replies
    assert done.stderr == ""
