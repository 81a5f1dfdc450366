"""Every example runs as a user runs it, with two ranks on the CPU; those that claim equal numerics are compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nvrun import checks
from nvrun.config import ConfigText, parse
from nvrun.model import Severity
from nvrun.options import BY_NAME, Options

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NVRUN = (sys.executable, "-m", "nvrun")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TINY_RESNET = ("--width", 8, "--depths", 1, 1, 1, 1, "--size", 32, "--batch-size", 4)
WINDOWS = ("--steps", 2, "--windows", 2, "--warmup", 1)

Launch = Callable[..., str]


def environment() -> dict[str, str]:
    """This process's own, with what torch deprecates as errors, and without a GPU: equal losses are gloo's claim."""
    warnings = "error::FutureWarning,error::DeprecationWarning:__main__"
    return {**os.environ, "PYTHONWARNINGS": warnings, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def command(script: str, *flags: object, ranks: int = 2, launcher: tuple[str, ...] = NVRUN) -> list[str]:
    return [*launcher, "--nproc-per-node", str(ranks), str(EXAMPLES / script), *map(str, flags)]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Launches an example in an empty working directory; gives its output, and fails where it failed."""

    def run(script: str, *flags: object, **how: object) -> str:
        argv = command(script, *flags, **how)  # type: ignore[arg-type]
        done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def losses(output: str) -> list[float]:
    """Every loss that was printed."""
    return [float(text) for text in re.findall(r"loss=([0-9.]+|nan|inf)", output)]


def number(pattern: str, output: str) -> float:
    """The one number that a pattern's group finds."""
    found = re.findall(pattern, output)
    assert len(found) == 1, f"{pattern!r} is {len(found)} times in:\n{output}"
    return float(found[0])


def test_the_quickstart_learns_and_its_loss_is_that_of_bare_torchrun(launch: Launch) -> None:
    ours = losses(launch("train_ddp.py", "--steps", 60))
    assert ours == losses(launch("train_ddp.py", "--steps", 60, launcher=TORCHRUN))
    assert ours[0] < 0.02  # 0.2 at the start


def test_sharded_training_equals_ddp_with_half_the_parameters_a_rank(launch: Launch) -> None:
    sharded = launch("train_fsdp.py", "--steps", 8)
    assert losses(sharded) == pytest.approx(losses(launch("train_fsdp.py", "--steps", 8, "--plain")), rel=1e-5)
    whole, here = map(float, re.findall(r"parameters: ([\d.]+) MB, on this rank ([\d.]+) MB", sharded)[0])
    assert here == pytest.approx(whole / 2, rel=0.05)


def test_tensor_parallel_equals_data_parallel(launch: Launch) -> None:
    tensor = launch("train_2d.py", "--steps", 6)
    data = launch("train_2d.py", "--steps", 6, "--tp", 1)
    assert "1 data parallel x 2 tensor parallel" in tensor
    assert "2 data parallel x 1 tensor parallel" in data
    assert losses(tensor) == pytest.approx(losses(data), rel=1e-5)


def test_switches_of_ddp_leave_the_loss_alone(launch: Launch) -> None:
    size = ("--steps", 5, "--width", 8, "--batch-size", 4, "--accumulate", 2)
    plain = losses(launch("ddp_overlap.py", *size))
    flags = ("--no-sync", "--static-graph", "--bucket-view", "--keep-buffers", "--bucket-mb", 0.1)
    tuned = launch("ddp_overlap.py", *size, *flags)
    assert losses(tuned) == pytest.approx(plain, rel=1e-3)


def test_compression_sends_less_and_still_learns(launch: Launch) -> None:
    output = launch("comm_compress.py", "--steps", 12, "--plain-steps", 2)
    share = {hook: int(part) for hook, part in re.findall(r"(\w+) +[\d.]+ +(\d+)% +[\d.]+  loss=", output)}
    loss = dict(zip(share, losses(output), strict=True))
    assert share["plain"] == 100
    assert share["fp16"] == 50
    assert share["powersgd"] < 40
    assert loss["fp16"] == pytest.approx(loss["plain"], rel=1e-3)
    assert loss["powersgd"] < 5.5  # ln(256) = 5.545 is knowing nothing
    assert "bf16       skipped" in output


def test_all_reduce_in_steps_over_nodes_of_different_size(launch: Launch) -> None:
    """Flat, then with the leg between nodes in fp32, bf16 and PowerSGD."""
    output = launch("hierarchical_allreduce.py", "--pretend-nodes", 2, "--mb", 1, ranks=3)
    assert "2 nodes of 2, 1 ranks" in output
    flat, fp32, bf16, powersgd = map(float, re.findall(r"a node sends +([\d.]+) MB", output))
    assert fp32 <= flat
    assert bf16 == pytest.approx(fp32 / 2, rel=0.05)
    assert powersgd < fp32 / 10
    exact, rounded, approximate = map(float, re.findall(r"relative error (\S+)", output))
    assert exact < 1e-6
    assert 1e-5 < rounded < 4e-3
    assert 1e-5 < approximate < 1e-2


def test_an_all_reduce_in_steps_knows_its_nodes_from_nvrun(launch: Launch) -> None:
    output = launch("hierarchical_allreduce.py", "--mb", 1, "--between", "fp32")
    assert "1 nodes of 2 ranks" in output
    assert number(r"relative error (\S+)", output) < 1e-6


def test_mixed_precision_ends_near_fp32(launch: Launch) -> None:
    output = launch("mixed_precision.py", "--steps", 8, "--batch-size", 4)
    fp32, bf16, fp16 = losses(output)
    assert bf16 == pytest.approx(fp32, rel=1e-2)
    assert fp16 == pytest.approx(fp32, rel=1e-2)
    assert bf16 != fp32
    assert number(r"loss scale (\d+)", output) >= 1


def test_stopped_by_sigterm_it_saves_and_goes_on_as_if_nothing_had_been(launch: Launch, tmp_path: Path) -> None:
    whole = losses(launch("elastic_checkpoint.py", "--folder", "whole", "--steps", 30, "--every", 30))
    argv = command("elastic_checkpoint.py", "--folder", "cut", "--steps", 30, "--every", 4, "--pause", 0.3)
    with subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        seen = ""
        for line in job.stdout:
            seen += line
            if "saved at step 4" in line:
                job.send_signal(signal.SIGTERM)
    assert "stopped as told" in seen, seen
    assert job.returncode != 0
    stopped = int(re.findall(r"saved at step (\d+)", seen)[-1])
    resumed = launch("elastic_checkpoint.py", "--folder", "cut", "--steps", 30, "--every", 30)
    assert number(r"'step': (\d+)", resumed) == stopped
    assert losses(resumed) == pytest.approx(whole, rel=1e-6)


def test_shards_are_read_back_by_another_number_of_ranks(launch: Launch) -> None:
    launch("elastic_checkpoint.py", "--folder", "shards", "--fsdp", "--steps", 20, "--every", 20)
    alone = launch("elastic_checkpoint.py", "--folder", "shards", "--fsdp", "--steps", 22, ranks=1)
    assert "1 ranks, from {'step': 20, 'epoch': 1, 'seen': 64}" in alone
    assert losses(alone)[0] < 5.0


def test_a_profile_names_the_communication_and_what_hides_it(launch: Launch, tmp_path: Path) -> None:
    output = launch("profile_me.py", "--steps", 2, "--layers", 3, "--batch-size", 4)
    total, hidden = map(float, re.findall(r"communication ([\d.]+) ms, of it ([\d.]+) ms hidden", output)[0])
    assert 0 < hidden <= total
    assert "traceEvents" in (tmp_path / "profile/rank0.json").read_text()


def test_alignment_names_a_size_and_the_rest_of_each_bucket(launch: Launch) -> None:
    output = launch("align.py", "--largest", 4, "--repeat", 2, "--bucket-mb", 4)
    assert number(r"nine tenths of the best from ([\d.]+) MB", output) <= 4
    rests = re.findall(r"bucket \d+: (\d+) bytes, (\d+) short", output)
    assert len(rests) > 1
    assert all((int(size) + int(short)) % 16384 == 0 for size, short in rests)


def test_nvlink_check_reports_this_host(launch: Launch) -> None:
    output = launch("nvlink_check.py")
    assert "GPU" in output  # its GPUs, that it has none, or why they are not readable


def test_the_ladder_runs_its_rows_and_compares_them(tmp_path: Path) -> None:
    flags = ["--rows", "default", "all", "--rounds", 1, "--plot", "l.png", "--", *TINY_RESNET, *WINDOWS]
    argv = [sys.executable, str(EXAMPLES / "ladder.py"), *map(str, flags)]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| default \| [\d.]+ \| [\d.]+ - [\d.]+ \|  \|$", done.stdout, re.MULTILINE)
    assert re.search(r"^\| all \| .* \| [+-][\d.]+%, one run only \|$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +all █", done.stdout, re.MULTILINE)
    assert ("no image: matplotlib is not installed" in done.stdout) != (tmp_path / "l.png").exists()


def test_the_communication_bound_model_runs(launch: Launch) -> None:
    output = launch("resnet152.py", "--model", "wide", "--width", 64, "--size", 32, "--batch-size", 4, *WINDOWS)
    assert number(r"images_per_second=([\d.]+)", output) > 0


def test_each_optimizer_for_large_batches_learns(launch: Launch) -> None:
    output = launch("large_batch.py", "--steps", 60)
    assert output.count("global batch 1024, ") == 3
    firsts = [float(text) for text in re.findall(r"first loss ([\d.]+)", output)]
    assert len(firsts) == 3
    for first, last in zip(firsts, losses(output), strict=True):
        assert last < 0.8 * first


def test_experts_on_two_ranks_equal_one_rank_with_all_of_them(launch: Launch) -> None:
    output = launch("alltoall_moe.py", "--tokens", 64)
    assert number(r"difference from one rank: output (\S+),", output) < 1e-5
    assert number(r"gradient (\S+)\n", output) < 1e-8
    assert "DeepEP" in output


def test_horovod_is_used_or_missed_aloud(launch: Launch) -> None:
    output = launch("horovod_train.py", "--steps", 5)
    assert "horovod" in output
    assert len(losses(output)) == 1


def commands() -> list[tuple[str, str]]:
    """(file, command) of each command in the examples' README and docstrings that names an example."""
    found = []
    for path in [EXAMPLES / "README.md", *sorted(EXAMPLES.glob("*.py"))]:
        for line in path.read_text().splitlines():
            if re.match(r"( {4}|\| *`)(nvrun|python) .*examples/", line):
                found.append((path.name, line.strip(" |`")))
    return found


@pytest.mark.parametrize(("file", "line"), commands())
def test_a_shown_command_names_an_example_and_flags_that_it_has(file: str, line: str) -> None:
    script, rest = re.findall(r"examples/(\w+\.py)(.*)", line)[0]
    text = (EXAMPLES / script).read_text()
    for flag in re.findall(r"(?<=\s)--[a-z0-9-]+", re.split(r"\s{3,}", rest)[0].split(" -- ")[0]):
        assert f'"{flag}"' in text, f"{file}: {script} has no {flag}"


def test_every_example_is_in_the_map() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        if path.name not in ("group.py", "models.py"):
            assert f"({path.name})" in page, path.name


def test_the_configuration_file_shows_every_key_and_each_is_valid(tmp_path: Path) -> None:
    page = (EXAMPLES / "nvrun.yaml").read_text()
    keys = re.sub(r"^#(?=\w|  \w)", "", page, flags=re.MULTILINE)
    invocation = parse(["train.py"], {"HOME": str(tmp_path)}, [ConfigText("nvrun.yaml", keys)])
    given = {name for name in BY_NAME if invocation.source(BY_NAME[name].field).startswith("nvrun.yaml:")}
    assert given == set(BY_NAME), "a new setting needs its commented line in examples/nvrun.yaml"
    assert all(checks.CODES[code].severity == Severity.ERROR for code in invocation.options.waive), (
        "one that can be waived"
    )


@pytest.mark.parametrize("name", ["ssh", "check", "force", "grace", "connect-timeout", "port-range", "json"])
def test_the_configuration_file_shows_the_defaults(name: str) -> None:
    """Those whose default is a constant."""
    page = (EXAMPLES / "nvrun.yaml").read_text()
    line = re.findall(rf"^#{name}: (\S+)", page, re.MULTILINE)[0]
    shown = parse(["train.py"], {}, [ConfigText("nvrun.yaml", f"{name}: {line}")]).options
    field = BY_NAME[name].field
    assert getattr(shown, field) == getattr(Options(), field)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("slurm/*.sbatch")), ids=lambda path: path.name)
def test_job_scripts_are_shell_and_run_an_example(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    commands = path.read_text().replace("\\\n", "")
    script, flags = re.findall(r"^(?:srun .*)?nvrun .*examples/(\w+\.py)(.*)$", commands, re.MULTILINE)[0]
    text = (EXAMPLES / script).read_text()
    assert all(f'"{flag}"' in text for flag in re.findall(r"--[a-z0-9-]+", flags))


def test_the_pytorchjob_gives_every_pod_shared_memory_and_gpus() -> None:
    job = yaml.safe_load((EXAMPLES / "k8s/pytorchjob.yaml").read_text())
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        pod = replica["template"]["spec"]
        assert "/dev/shm" in [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert str(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) == job["spec"]["nprocPerNode"]
