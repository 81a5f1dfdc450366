"""`nvrun plan`: what it prints may be shown to others."""

from __future__ import annotations

import json
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
