"""Arguments and variables arrive byte for byte, and no command line on a host holds a variable's value."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.spine.jobs import RANK, Way, job

pytestmark = pytest.mark.lab

ARGUMENTS = (
    "--lr", "-1e-3", "-x", "--", "--nproc-per-node", "two words", "  ", "",
    "it's", 'a "b"', "`id`", "$HOME", "${HOME}", "$(id)", "$$", "$$HOME", "rank ${local_rank}", "$local_rank", "100%",
    "a;b&&c|d>e", "line\nbreak\ttab\r", "back\\slash", "*", "~", "#", "!!", "{host}", "grüße 日本 \U0001f600",
    "\x1b[31m", "x" * 100_000,
)  # fmt: skip
VALUE = "s3cret 'quoted' \"$HOME\" `id` ; $(id) \n second line ${local_rank} $$ grüße -x=" + "v" * 50_000
SECRET = "s3cret"


@pytest.fixture(scope="module")
def bare(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What torchrun itself delivers to rank 0."""
    place = tmp_path_factory.mktemp("bare")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-port=29600"]
    environment = {"READY": f"{place}/ready", "VALUE": VALUE}
    lab.run([*torchrun, RANK, "tell:VALUE", *ARGUMENTS], place="c", env=environment, check=True)
    return told(place, 0)


def told(place: Path, rank: int) -> Any:
    return json.loads((place / f"ready.{rank}.told").read_text())


def test_torchrun_substitutes(bare: Any) -> None:
    """What the others are compared with is not empty."""
    assert "rank 0" in bare["argv"]
    assert "$HOME" in bare["argv"]
    assert bare["value"] == VALUE


@pytest.mark.parametrize("way", ["ssh", "rsh", "srun"])
def test_as_bare_torchrun_delivers_them(way: Way, bare: Any, place: Path, request: pytest.FixtureRequest) -> None:
    lab = request.getfixturevalue("slurm_lab" if way == "srun" else "lab")
    (place / "variables").write_text("FROM_FILE=s3cret too\n")
    flags = ["--env", f"VALUE={VALUE}", "--env", "COPIED", "--env-file", f"{place}/variables"]
    environment = {"COPIED": SECRET, "NCCL_SECRET": SECRET}
    actions = ["wait", "tell:VALUE", *ARGUMENTS]
    with job(lab, place, actions, way=way, flags=flags, hosts=("a", "b"), ranks=1, env=environment) as running:
        for host in running.hosts:
            ranks = running.processes(host)["rank"]
            assert [rank.environ["VALUE"] for rank in ranks] == [VALUE]
            assert ranks[0].environ["COPIED"] == ranks[0].environ["NCCL_SECRET"] == SECRET
            assert ranks[0].environ["FROM_FILE"] == "s3cret too"
            for process in lab.processes(host):
                assert SECRET not in " ".join(process.argv), f"{host}: {process.argv[0]} shows a variable's value"
        running.go()
        code, _, stderr = running.finish()
    assert code == 0, stderr
    for rank in (0, 1):
        mine = told(place, rank)
        arguments = mine["argv"][mine["argv"].index("tell:VALUE") :]
        assert arguments == bare["argv"][bare["argv"].index("tell:VALUE") :]
        assert mine["value"] == VALUE
    for name in ("plan.json", "result.json"):
        assert (place / "runs/latest" / name).stat().st_mode & 0o077 == 0, "it may quote the environment"
