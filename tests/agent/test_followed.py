"""What the console is told of log files that ranks write, however they write them."""

from __future__ import annotations

import os
from pathlib import Path

from nvrun.agent.followed import Followed


def test_every_line_comes_once_and_the_last_needs_no_end(tmp_path: Path) -> None:
    log = tmp_path / "nccl.a.7.log"
    seen: list[tuple[int, bytes]] = []
    followed = Followed(str(tmp_path), [("nccl.*.log", lambda pid, line: seen.append((pid, line)))])
    log.write_bytes(b"one\ntw")
    os.mkfifo(tmp_path / "nccl.a.8.log")  # would wait for ever
    (tmp_path / "nccl.a.9.log").symlink_to("/etc/passwd")
    followed.look()
    log.write_bytes(b"new\n")  # begun anew, as by a second communicator
    followed.look()
    assert [line for _, line in seen] == [b"one", b"new"]
    log.write_bytes(b"new\n" + b"x" * 100 + b"\n" + b"y" * (3 << 20) + b"\nlast")  # more than one turn
    followed.end()
    assert [(pid, line[:4]) for pid, line in seen[2:]] == [(7, b"xxxx"), (7, b"yyyy"), (7, b"last")]
    assert max(len(line) for _, line in seen) < 1 << 19, "a line that does not end is not kept for ever"
