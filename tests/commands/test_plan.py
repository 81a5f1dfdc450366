"""`nvrun plan` and `nvrun env`: what they print may be shown to others, and says what is wrong."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from nvrun.cli import main

FACTS = Path(__file__).parents[1] / "data" / "facts" / "h200x2.json"


@pytest.mark.parametrize("flags", [["--json"], ["--show-env"], ["--dry-run"]], ids=" ".join)
def test_no_secret_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvrun.yaml").write_text("env:\n  WANDB_API_KEY: yaml-geheim\n")
    (tmp_path / "nvrun.env").write_text("LICENSE_SERVER=env-geheim\n")
    # The shell shows no value of the user's at all; the others mask what looks like a secret.
    given = ["--env-file", "nvrun.env"] if "--dry-run" in flags else []
    argv = ["plan", "--from", str(FACTS), "--config", "nvrun.yaml", *given, "--env", "HF_TOKEN=hf_geheim",
            "--env", "NCCL_DEBUG=INFO", *flags, "train.py"]  # fmt: skip
    assert main(argv, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}) == 0
    out = capsys.readouterr().out
    assert "geheim" not in out
    if "--json" in flags:
        (host,) = json.loads(out)["hosts"]
        values = {each["name"]: each["value"] for each in (*host["env"], *host["defaults"])}
        assert values["HF_TOKEN"] == values["WANDB_API_KEY"] == "***"
        assert values["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize("command", [["env"], ["plan", "--show-env", "train.py"]], ids=" ".join)
def test_a_value_that_lint_finds_wrong_is_marked_where_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    record = json.loads(FACTS.read_bytes())
    record["env"] = record["own_env"] = {"NCCL_IB_TIMEOUT": "22s", "NCCL_DEBUG": "INFO"}
    (facts := tmp_path / "facts.json").write_text(json.dumps(record))
    assert main([command[0], "--from", str(facts), *command[1:]], {"HOME": str(tmp_path)}) == 0
    lines = pairwise(capsys.readouterr().out.splitlines())
    marked = {above.partition("=")[0]: line for above, line in lines if "[nccl-value" in line}
    assert marked["NCCL_IB_TIMEOUT"] == "    error: NCCL reads NCCL_IB_TIMEOUT=22s as 22 [nccl-value-misread]"
    assert "NCCL_DEBUG" not in marked
