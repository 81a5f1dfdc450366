"""`nvrun check --from`: recorded hosts, judged with the variables that the job would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvrun.cli import main

MACHINE = Path(__file__).parents[1] / "data" / "facts" / "h100x8.json"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two hosts of eight GPUs and eight InfiniBand ports."""
    monkeypatch.chdir(tmp_path)
    read = json.loads(MACHINE.read_text())
    one = read[0] if isinstance(read, list) else read
    path = tmp_path / "two.json"
    path.write_text(json.dumps([{**one, "host": name} for name in ("n0", "n1")]))
    return path


def codes(two: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> set[str]:
    main(["check", "--from", str(two), "--json", *flags], {"HOME": str(two.parent), "PATH": "/usr/bin:/bin"})
    return {each["code"] for each in json.loads(capsys.readouterr().out)["findings"]}


def test_a_run_over_a_slower_network_than_the_hosts_have_is_told_so(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "fabric-slower-than-possible" not in codes(two, capsys)
    assert "fabric-slower-than-possible" in codes(two, capsys, "--env", "NCCL_IB_DISABLE=1")


def test_the_fabric_is_named_with_its_rate(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--from", str(two)], {"HOME": str(two.parent), "PATH": "/usr/bin:/bin"})
    assert "InfiniBand, 3200 Gb/s over 8 between all hosts" in capsys.readouterr().out


def test_check_off_is_a_contradiction(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--from", str(two), "--check", "off"], {"HOME": str(two.parent), "PATH": "/usr/bin:/bin"})
    assert code == 2
    assert "nothing is left to check" in capsys.readouterr().err
