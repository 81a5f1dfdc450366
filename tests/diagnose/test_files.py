"""Folders of logs, as runs and other launchers leave them."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import msgspec
import pytest

from nvrun.diagnose.files import collect
from nvrun.diagnose.judge import diagnose
from nvrun.errors import UsageError
from nvrun.model import RankEnd, RunResult

LINE = "gpu01:1:2 [0] include/shm.h:30 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
DUMPS = Path(__file__).parent / "dumps"


def test_a_run_s_folder(tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "gpu01"
    logs.mkdir(parents=True)
    (logs / "rank3.err").write_text(
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n"
    )
    (logs / "rank3.out").write_text("step 1\n")
    (logs / "nccl.gpu01.12.gz").write_bytes(gzip.compress(LINE.encode()))
    (tmp_path / "plan.json").write_text('{"note": "CUDA out of memory"}')
    shutil.copytree(DUMPS / "missing", tmp_path / "flight")
    end = RankEnd(rank=3, host="gpu01", local_rank=3, pid=1, code=1)
    result = RunResult(run_id="r", ended_by="rank", exit_code=1, started=0.0, seconds=1.0, ranks=(end,))
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(result))
    (logs / "core.12").write_bytes(b"\x7fELF\0\0\0")

    found = collect([tmp_path])
    assert found.ends == (end,)
    assert [dump.rank for dump in found.dumps] == [0, 1, 2]
    assert len(found.skipped) == 1
    assert "core.12: not text" in found.skipped[0]
    by_rank = {source.rank: source for source in found.sources if source.name.endswith(".err")}
    assert by_rank[3].host == "gpu01"

    codes = [finding.code for finding in diagnose(found.sources, ends=found.ends, dumps=found.dumps)]
    assert codes[:2] == ["shm-full", "python-exception"]
    assert "flight-rank-missing" in codes
    assert "gpu-out-of-memory" not in codes


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        collect([tmp_path / "nothing"])


def test_broken_files_are_said_and_skipped(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{")
    (tmp_path / "trace_rank_0").write_bytes(b"\x80\x04broken")
    (tmp_path / "weights").write_bytes(b"\x80\x04broken")
    (tmp_path / "no.log.gz").write_bytes(b"\x1f\x8bbroken")
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(LINE.encode())[:15])
    found = collect([tmp_path])
    assert found.sources == []
    assert len(found.skipped) == 5
    long = "".join(f"{number} {number**9}\n" for number in range(20000))
    (tmp_path / "long.log.gz").write_bytes(gzip.compress((LINE + long).encode())[:-5000])
    (source,) = collect([tmp_path]).sources
    assert next(iter(source.lines)) == LINE.encode()
    assert 10000 < len(list(source.lines)) < 20000, "what came before the cut is read"


def test_a_file_named_outright_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(LINE)
    found = collect([tmp_path / "log.json"])
    assert [finding.code for finding in diagnose(found.sources)] == ["shm-full"]


def test_torchruns_error_files_are_read(tmp_path: Path) -> None:
    """As torch 2.2 to 2.13 write them for functions under @record; another error.json is none."""
    folder = tmp_path / "none_abc" / "attempt_0" / "3"
    folder.mkdir(parents=True)
    stack = 'Traceback (most recent call last):\n  File "/job/train.py", line 5, in main\nValueError: bad shape\n'
    written = {"message": {"message": "ValueError: bad shape", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}
    (folder / "error.json").write_bytes(msgspec.json.encode(written))
    (finding,) = diagnose(collect([tmp_path]).sources)
    assert finding.code == "python-exception"
    assert "ValueError: bad shape at /job/train.py:5" in finding.message
    logs = tmp_path / "logs" / "gpu07"
    shutil.copytree(tmp_path / "none_abc", logs / "torchrun" / "none_abc")
    shutil.rmtree(tmp_path / "none_abc")
    (logs / "rank3.err").write_text(stack)
    (finding,) = diagnose(collect([tmp_path]).sources)
    assert (finding.host, finding.subject) == ("gpu07", "rank 3"), "torchrun's quote of it is no second cause"
    (logs / "rank3.err").unlink()
    folder = logs / "torchrun" / "none_abc" / "attempt_0" / "3"
    for other in (b"", b"{", b"[]", b'{"message": 3}', b'{"error": "CUDA out of memory"}', b"[" * 100_000):
        (folder / "error.json").write_bytes(other)
        assert collect([tmp_path]).sources == []
