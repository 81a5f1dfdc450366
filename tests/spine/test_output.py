"""No rank ever waits for its output, the files have all of it, and what the console did not show is counted."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.lab import Lab, wait_for
from tests.spine.jobs import job, result

pytestmark = pytest.mark.lab

BYTES = bytes(range(256))
BAR = b"".join(b"\r%3d%%|%s|" % (percent, b"#" * (percent // 10)) for percent in range(101)) + b"\n"
FORGED = b"\x1b[2J\x1b]0;title\x07\x1b[32mgreen\x1b[0m \xc3\xa9\n"


def took(place: Path, rank: int) -> float:
    """How long the rank itself says that its writing lasted (seconds)."""
    return float((place / f"ready.{rank}.took").read_text())


def log(place: Path, name: str) -> bytes:
    host, file = name.split("/")
    return (place / "runs/latest/logs" / host / file).read_bytes()


def is_all_of_it(printed: bytes, megabytes: int) -> bool:
    block = b"".join(b"%09d %s\n" % (line, b"x" * 89) for line in range(10_000))
    return printed == block * megabytes


def test_a_flood_while_nvrun_is_stopped(lab: Lab, place: Path) -> None:
    raw = (BYTES + b"\n" + BAR + FORGED).hex()
    actions = ["wait", "print:0:100", "gush:3:4", f"raw:1:{raw}"]
    with job(lab, place, actions, stdout=subprocess.DEVNULL) as running:
        running.running.send_signal(signal.SIGSTOP)
        running.go()
        started = time.monotonic()
        wait_for(lambda: all((place / f"ready.{rank}.took").exists() for rank in (0, 3)), "the output", timeout=30)
        assert took(place, 3) < 5.0
        assert took(place, 0) < 20.0  # 100 MB by a Python that writes 1 MB at a time, on a busy machine
        time.sleep(max(0.0, 10.0 - (time.monotonic() - started)))
        running.running.send_signal(signal.SIGCONT)
        code, _, stderr = running.finish()
    assert code == 0, stderr
    assert "nothing heard" not in stderr, "it was nvrun itself that did not listen"
    assert is_all_of_it(log(place, "a/rank0.out"), 100)
    assert log(place, "b/rank3.err") == b"y" * 4_000_000
    assert log(place, "a/rank1.out") == BYTES + b"\n" + BAR + FORGED
    dropped = result(place)["console_dropped"]
    assert dropped["a"] > 50_000_000
    assert dropped["b"] >= 4_000_000 - (1 << 16), "one line of 4 MB is cut"
    assert f"{dropped['a']} bytes of a's output were not shown here" in stderr


def test_the_console_shows_whole_lines_and_no_tricks(lab: Lab, place: Path) -> None:
    raw = (BYTES + b"\n" + BAR + FORGED).hex()
    with (
        open(place / "console", "wb") as console,
        job(
            lab, place, ["wait", f"raw:0:{raw}", f"raw:1:{raw}", f"raw:2:{raw}", f"raw:3:{raw}"], stdout=console
        ) as running,
    ):
        running.go()
        assert running.finish()[0] == 0
    lines = (place / "console").read_bytes().splitlines()
    for where in (b"a:0", b"a:1", b"b:2", b"b:3"):
        mine = [line.removeprefix(where + b": ") for line in lines if line.startswith(where)]
        assert mine[-2:] == [b"100%|##########|", b"\x1b[32mgreen\x1b[0m \xc3\xa9\x1b[0m"]
    assert all(line.startswith((b"a:", b"b:")) for line in lines)
    assert result(place).get("console_dropped", {}) == {}


def test_nobody_reads_standard_output(lab: Lab, place: Path) -> None:
    with job(lab, place, ["wait", "print:0:30"], hosts=("b",), ranks=1) as running:
        running.go()
        wait_for(lambda: (place / "ready.0.took").exists(), "the output", timeout=30)
        assert took(place, 0) < 20.0
        wait_for(lambda: running.running.poll() is not None, "nvrun's end although nobody reads", timeout=20)
        assert running.running.returncode == 0
    assert is_all_of_it(log(place, "b/rank0.out"), 30)
    assert result(place)["console_dropped"]["b"] > 10_000_000
