"""torchrun's flags and nvrun's own over two real hosts."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.flags import recovery
from tests.lab.lab import Lab

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
RANK = HERE / "rank.py"
NVRUN = (sys.executable, "-m", "nvrun")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that all hosts of an unsplit lab share."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def sums(text: str) -> list[str]:
    return re.findall(r"sum \d+ of \d+ attempt \d+", text)


def nvrun(lab: Lab, *arguments: object, user: str = "root") -> tuple[int, str, str]:
    done = lab.run([*NVRUN, *map(str, arguments)], timeout=90, user=user)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", [NVRUN, TORCHRUN], ids=["nvrun", "torchrun"])
def test_the_two_lines_of_torchruns_manual(lab: Lab, program: tuple[str, ...]) -> None:
    """Typed on two hosts, with nvrun in torchrun's place: node mode, the user's rendezvous untouched."""
    line = [*program, "--nnodes=2", "--nproc_per_node=2", "--rdzv_id=456", "--rdzv_backend=c10d",
            f"--rdzv_endpoint={lab.address('a')}:1234", str(RANK), "sum"]  # fmt: skip
    with ExitStack() as stack:
        jobs = [stack.enter_context(lab.popen(line, place=host)) for host in ("a", "b")]
        said = [job.communicate(timeout=90) for job in jobs]
        assert [job.returncode for job in jobs] == [0, 0], said
    assert sums("".join(out for out, _ in said)) == ["sum 4 of 4 attempt 0"] * 4


def test_a_job_recovers_from_a_rank_that_dies_once(lab: Lab, folder: Path) -> None:
    """Every step is done once, and its loss is that of a training that nothing disturbs."""
    flags = ["--nnodes", "2", "--max-restarts", "1", "--nproc-per-node", "1"]
    seen = recovery.suffer(lab, recovery.Case("", ["die:b"], flags), folder, bare=False)
    assert seen.codes == (0,), seen.said
    assert seen.losses_right, seen.steps
    assert {step.ranks for step in seen.steps} == {2}
    assert re.search(r"nvrun: rank \d on b \(local rank 0\) .*: torchrun starts all ranks again \(1 of 1\)", seen.said)
    assert not seen.behind


def test_restarts_used_up_end_with_the_ranks_own_code(lab: Lab) -> None:
    code, _, err = nvrun(lab, "--hosts", "a,b", "--nproc-per-node", 1, "--max-restarts", 1, RANK, "sum", "die:1:9")
    assert code == 9, err
    assert "exited with 9" in err


def test_hosts_that_leave_an_elastic_job(lab: Lab, folder: Path) -> None:
    """c's torchrun is killed, b is gone without a word: a goes on alone, and nobody waits for them in the end."""
    soon = "join_timeout=60,last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=3"
    flags = ["--nnodes", "1:3", "--max-restarts", "3", "--nproc-per-node", "1", "--rdzv-conf", soon]
    case = recovery.Case("", ["wait:b", "kill-torchrun:c"], flags, hosts="abc", plug="b")
    seen = recovery.suffer(lab, case, folder, bare=False)
    assert seen.codes == (0,), seen.said
    assert seen.losses_right, seen.steps
    assert [step.ranks for step in seen.steps] == [3] * 5 + [1] * 7
    assert "c has left the job (torchrun there was killed by SIGKILL)" in seen.said
    assert "b is not waited for: the job has ended without it" in seen.said
    assert not seen.behind


def test_uneven_hosts(lab: Lab) -> None:
    code, out, err = nvrun(lab, "--hosts", "a:3,b:1", RANK, "sum")
    assert code == 0, err
    assert sums(out) == ["sum 4 of 4 attempt 0"] * 4


def test_two_runs_at_once_on_the_same_hosts(lab: Lab) -> None:
    line = [*NVRUN, "--hosts", "a,b", "--nproc-per-node", "1", str(RANK), "sum"]
    with ExitStack() as stack:
        jobs = [stack.enter_context(lab.popen(line)) for _ in range(2)]
        said = [job.communicate(timeout=90) for job in jobs]
        assert [job.returncode for job in jobs] == [0, 0], said
    assert [sums(out) for out, _ in said] == [["sum 2 of 2 attempt 0"] * 2] * 2


def test_the_words_of_nccl_are_held_against_the_plan_while_the_job_runs(lab: Lab) -> None:
    words = "NCCL INFO Using network Socket", "NCCL INFO NCCL_IB_TIMEOUT set by environment to 18."
    script = "".join(f'echo "$(uname -n):$$:$$ [0] {each}" >&2; ' for each in words) + "sleep 2; echo end >&2"
    code, _, err = nvrun(
        lab, "--hosts", "a,b", "--nproc-per-node", 1, "--env", "NCCL_NET=IB", "--env", "NCCL_IB_TIMEOUT=22",
        "--waive", "nccl-net-contradiction", "--no-python", "sh", "-c", script,
    )  # fmt: skip
    assert code == 0, err
    before, _, after = err.partition(" end\n")
    assert "NCCL uses the network Socket instead of IB (rank" in before, "told while it runs"
    for message in ("NCCL uses the network Socket instead of IB", "NCCL read NCCL_IB_TIMEOUT=18, the plan gives 22"):
        assert re.search(f"nvrun: .*{message}.* \\(ranks 0-1\\)", after), err


def test_over_ipv6(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(["a", "b"], ipv6=True)
    code, out, err = nvrun(lab, "--hosts", "a,b", "--nproc-per-node", 1, RANK, "sum")
    assert code == 0, err
    assert sums(out) == ["sum 2 of 2 attempt 0"] * 2


def test_behind_a_bastion(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(["a", "b"], behind={"b": "a"})
    code, out, err = nvrun(lab, "--hosts", "a,b", "--nproc-per-node", 1, RANK, "sum")
    assert code == 0, err
    assert sums(out) == ["sum 2 of 2 attempt 0"] * 2


def test_set_up_container_and_the_ssh_program(lab: Lab) -> None:
    """The interpreter is a name that only the set-up's PATH knows; its noise and the container's harm nothing."""
    setup = f"echo noise; export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    code, out, err = nvrun(
        lab, "--hosts", "a,b", "--nproc-per-node", 1, "--ssh", "openssh", "--in", "unshare -m",
        "--python", Path(sys.executable).name, "--setup", setup, RANK, "sum",
    )  # fmt: skip
    assert code == 0, err
    assert sums(out) == ["sum 2 of 2 attempt 0"] * 2


def two_cpus(tmp_path: Path) -> Path:
    """A binding file: a CPU for each of two ranks, where there are two."""
    cpus = sorted(os.sched_getaffinity(0))
    tmp_path.chmod(0o755)
    path = tmp_path / "bind.txt"
    path.write_text(f"0 {cpus[0]} 0\n1 {cpus[-1]} 0\n")
    return path


def test_the_dry_runs_shell_starts_the_same_job(lab: Lab, tmp_path: Path) -> None:
    flags = ["--hosts", "a,b", "--nproc-per-node", "2", "--env", "TOKEN=a secret", "--bind", str(two_cpus(tmp_path))]
    plan = lab.run([*NVRUN, "--dry-run", *flags, str(RANK), "say", "sum", "two words"], timeout=60)
    assert plan.returncode == 0, plan.stderr
    assert "a secret" not in plan.stdout
    blocks = re.split(r"(?m)^# (\w+) \(node \d+\)$", plan.stdout)[1:]
    scripts = dict(zip(blocks[::2], blocks[1::2], strict=True))
    given = "".join(f"{name}=${{{name}-x}}; " for name in re.findall(r"\$\{(\w+):\?\}", plan.stdout) if name != "TOKEN")
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(lab.popen(["bash", "-c", f"{given} TOKEN='a secret'\n{scripts[host]}"], place=host))
            for host in ("a", "b")
        ]
        said = [job.communicate(timeout=90) for job in jobs]
        assert [job.returncode for job in jobs] == [0, 0], (said, plan.stdout)
    pasted = "".join(out for out, _ in said)
    assert sorted(re.findall(r'"cpus": "[\d,-]+"', pasted)) == sorted(
        f'"cpus": "{line.split()[1]}"' for line in two_cpus(tmp_path).read_text().splitlines() for _ in "ab"
    )
    assert sums(pasted) == ["sum 4 of 4 attempt 0"] * 4
    assert pasted.count(shlex.quote("two words")[1:-1]) == 4
