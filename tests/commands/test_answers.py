"""What the commands that run no job answer, through the command line itself."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nvrun import facts, runs
from nvrun.cli import command_of, main
from nvrun.commands import bench
from nvrun.diagnose.scan import RULES
from nvrun.job import Job
from nvrun.mode import Mode
from nvrun.model import Attempt, EndedBy, Finding, Host, RunResult, Severity, Verdict
from nvrun.options import Options
from nvrun.request import request
from nvrun.torchrun import TorchrunArgs

FACTS = Path(__file__).parents[1] / "data/facts"
MATRIX = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV12    PIX     0-15    0
GPU1    NV12     X      SYS     16-31   1
NIC0    PIX     SYS      X

NIC Legend:

  NIC0: mlx5_0
"""


class Asked:
    """nvrun's answer to one command line."""

    def __init__(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        self._capsys = capsys
        self.environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def __call__(self, *argv: str | Path) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main([str(word) for word in argv], self.environ)
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.chdir(tmp_path)
    return Asked(capsys, tmp_path)


@pytest.mark.parametrize("command", ["diagnose", "nccl", "lint", "presets", "topo", "runs", "stop", "clean", "explain"])
def test_each_has_its_page(ask: Asked, command: str) -> None:
    code, out, _ = ask(command, "--help")
    assert code == 0
    assert out.startswith(f"nvrun {command}")


@pytest.mark.parametrize("ill", ["folder", "not YAML", "not UTF-8"])
def test_an_ill_nvrun_yaml_stops_no_command_that_works_without(ask: Asked, tmp_path: Path, ill: str) -> None:
    path = tmp_path / "nvrun.yaml"
    if ill == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"hosts: [a\n" if ill == "not YAML" else b"\xff")
        path.chmod(0o644)
    for command in (["runs"], ["explain", "gpu-lost"], ["completion", "bash"]):
        code, out, err = ask(*command)
        assert (code, bool(out)) == (0, True)
        assert err.startswith("nvrun: not read: nvrun.yaml")
        assert len(err.splitlines()) == 1
    code, _, err = ask("stop")
    assert (code, err.splitlines()[1]) == (2, "nvrun: there is no run yet: none in ./nvrun-runs, none in the index")
    code, _, err = ask("clean")
    assert code == 2
    assert err.startswith("nvrun: nvrun.yaml")


def test_a_plan_from_a_pasted_topology(ask: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matrix.txt").write_text(MATRIX)
    code, out, _ = ask("plan", "--topo", "matrix.txt", "--bind-memory", "local", "train.py")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[1][:7] == ["0", "matrix.txt", "0", "0", "0-15", "-", "mlx5_0"]
    assert rows[2][:7] == ["1", "matrix.txt", "1", "1", "16-31", "-", "mlx5_0"]
    shared = [line for line in out.splitlines() if line.startswith("all ranks: ")]
    assert shared == [
        "all ranks: no memory policy is set: whether numactl is there could not be read (not in the matrix)"
    ]
    assert "note:" not in out, "whole CPU lists, none of two ranges"
    monkeypatch.setattr("sys.stdin", io.StringIO(MATRIX))
    plan = json.loads(ask("plan", "--topo", "-", "--json", "--nproc-per-node", "1", "train.py")[1])
    (rank,) = plan["hosts"][0]["ranks"]
    assert (rank["binding"]["gpu_index"], rank["binding"]["memory_node"]) == (0, 0)
    assert "gpu" not in rank["binding"], "a matrix gives no UUID"
    shell = ask("plan", "--topo", "matrix.txt", "--dry-run", "train.py")[1]
    assert 'exec taskset --cpu-list 16-31 "$@"' in shell
    assert "cuda:2 does not exist" in ask("plan", "--topo", "matrix.txt", "--nproc-per-node=3", "train.py")[1]
    out = ask("plan", "--topo", "matrix.txt", "--preset", "hopper", "train.py", "--show-env")[1]
    assert (
        "note: preset hopper leaves out NCCL_NVLS_CHUNKSIZE (needs nccl>=2.21.5, and the version is not known)" in out
    )
    assert "note: --show-env stands behind the program, and so is the program's" in out
    cut = MATRIX.replace("0-15", "0,2,4,6,8,10").replace("16-31", "1,3,5,7,9,11")
    (tmp_path / "cut").write_text(cut)
    out = ask("plan", "--topo", "cut", "train.py")[1]
    assert "not bound: the CPU lists of the matrix are not whole" in out
    assert "note: not known: CPU list 0,2,4,6,8,10 has six entries" in out
    assert ask("plan", "--topo", "cut", "--from", FACTS / "gh200.json")[0] == 2
    assert ask("plan", "--topo", "nowhere")[2] == "nvrun: nowhere: No such file or directory\n"
    (tmp_path / "noise").write_text("Wed Nov 29\n")
    code, _, err = ask("plan", "--topo", "noise")
    assert (code, err.count("\n")) == (2, 1), err


def test_a_folder_of_the_users_own_presets(ask: Asked, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = "summary: ours\nvariables:\n  NCCL_IB_TC: {value: 106, why: w, source: s, cost: none}\n"
    for name in ("ours", "hopper"):
        (tmp_path / "own" / f"{name}.yaml").write_text(own)
    assert "NCCL_IB_TC=106" in ask("presets", "show", "ours", "--preset-path", "own")[1]
    assert ask("presets", "show", "ours")[0] == 2
    (tmp_path / "nvrun.yaml").write_text("preset_paths: [own]\npreset: [ours]\n")
    assert "NCCL_IB_TC=106  (preset ours" in ask("env", "--from", FACTS / "h100x8.json")[1]
    assert ask("presets", "show", "hopper")[1].startswith("hopper: ours"), "the folder named comes first"
    code, _, err = ask("presets", "--preset-path", "nowhere")
    assert (code, err) == (2, "nvrun: nowhere: no such folder of presets (--preset-path)\n")


def test_a_command_that_is_nearly_one_is_offered(ask: Asked) -> None:
    for wrong, right in (("chek", "check"), ("diagnos", "diagnose"), ("runz", "runs")):
        code, out, err = ask(wrong, "--json")
        assert (code, out) == (2, "")
        assert f"did you mean {right}?" in err.splitlines()[0]
        assert f"nvrun -- {wrong}" in err.splitlines()[1]


def test_a_program_may_be_called_nearly_like_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chek").touch()
    for program in ("chek", "./chek", "train.py", "-m"):
        assert command_of([program, "x"]) == (None, [program, "x"])


def test_lint_exits_with_1_for_an_error_and_gives_the_line_to_paste(ask: Asked) -> None:
    ask.environ["NCCL_BUFFSIZE"] = "4M"
    code, out, _ = ask("lint")
    assert code == 1
    assert "export NCCL_BUFFSIZE=4194304" in out
    found = json.loads(ask("lint", "--json")[1])["findings"]
    assert [each["code"] for each in found] == ["nccl-value-misread"]
    ask.environ["NCCL_BUFFSIZE"] = "4194304"
    assert ask("lint")[0] == 0


def test_lint_reads_scripts_and_conf_files(ask: Asked, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\nexport NCCL_NVLS_PATH=/x\n")
    code, out, _ = ask("lint", "job.sh")
    assert "NCCL_NVLS_PATH" in out
    assert "job.sh:2" in out
    (tmp_path / ".nccl.conf").write_text("NCCL_BUFFSIZE=4M\n")
    assert ".nccl.conf:1" in ask("lint")[1]
    ask.environ["NCCL_BUFFSIZE"] = "4194304"
    said = ask("lint")[1]
    assert ".nccl.conf:1" not in said, "the environment wins"
    assert "looked at this environment (1 NCCL variable) and " in said.splitlines()[-1]
    assert "/.nccl.conf; nvrun lint FILE" in said.splitlines()[-1]
    (tmp_path / "binary").write_bytes(b"\0\0")
    for wrong in ("binary", "nowhere", "/"):
        code, _, err = ask("lint", wrong)
        assert (code, err.count("\n")) == (2, 1), err


def test_presets_are_listed_shown_and_judged(ask: Asked) -> None:
    listed = json.loads(ask("presets", "--json")[1])["presets"]
    assert {"hopper", "model-large", "ab-no-p2p"} <= {each["name"] for each in listed}
    assert all(each["fits"] is None for each in listed)
    judged = json.loads(ask("presets", "--from", FACTS / "h100x8.json", "--json")[1])["presets"]
    fits = {each["name"]: each["fits"] for each in judged}
    assert (fits["hopper"], fits["ampere"], fits["model-large"]) == (True, False, None)
    code, out, _ = ask("presets", "show", "hopper", "latency")
    assert code == 0
    assert out.startswith("hopper: ")
    assert "\n\nlatency: " in out
    assert ask("presets", "show", "hoper")[2] == "nvrun: there is no preset hoper\nnvrun: did you mean hopper?\n"
    assert ask("presets", "list")[0] == 2


def test_topo_draws_facts_and_pasted_matrices(ask: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GPU7" in ask("topo", "--from", FACTS / "h100x8.json")[1]
    (tmp_path / "matrix").write_text(MATRIX)
    from_file = ask("topo", "--topo", "matrix")[1]
    assert from_file.startswith("matrix\n")
    assert "NVLink: NV12 between all 2 GPUs" in from_file
    monkeypatch.setattr("sys.stdin", io.StringIO(MATRIX))
    from_stdin = ask("topo", "--topo", "-")[1]
    assert from_stdin.splitlines()[1:] == from_file.splitlines()[1:]
    assert ask("topo", "--topo", "matrix", "--from", FACTS / "gh200.json")[0] == 2
    assert ask("topo", "--topo", "nowhere")[2] == "nvrun: nowhere: No such file or directory\n"


def test_env_tells_sources_and_explains(ask: Asked) -> None:
    code, out, _ = ask("env", "--from", FACTS / "h100x8.json", "--preset", "hopper", "train.py")
    assert code == 0
    assert "NCCL_NVLS_CHUNKSIZE=524288  (preset hopper:" in out
    assert "presets for this hardware" in out
    rows = json.loads(ask("env", "--from", FACTS / "h100x8.json", "--preset", "hopper", "--json", "train.py")[1])
    assert "NCCL_NVLS_CHUNKSIZE" in {row["name"] for row in rows["variables"]}
    assert "hopper" in rows["presets"]
    assert ask("env", "--explain", "NCCL_BUFFSIZE")[1].startswith("NCCL_BUFFSIZE\n")
    assert ask("env", "--explain", "NCCL_BUFSIZE")[2].endswith("did you mean NCCL_BUFFSIZE?\n")
    listed = ask("env", "--list")[1].splitlines()
    assert len(listed) > 300
    assert all(line.split()[0].strip("*").isidentifier() for line in listed)


def test_explain_knows_checks_rules_and_xids(ask: Asked) -> None:
    for name, words in (("host-no-python", "--python PATH"), ("xid-79", "fallen off"), (RULES[0].code, "confidence:")):
        code, out, _ = ask("explain", name)
        assert code == 0
        assert out.startswith(f"{name}: ")
        assert words in out
    code, _, err = ask("explain", "host-no-pyton")
    assert (code, err.splitlines()[-1]) == (2, "nvrun: did you mean host-no-python?")
    assert ask("explain")[0] == 2


def test_diagnose_exits_with_1_for_an_error_whatever_way_the_log_is_named(ask: Asked, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank.err").write_text(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    for word in ("logs", "logs/rank.err", tmp_path / "logs"):
        code, out, _ = ask("diagnose", word)
        assert code == 1
        assert "Do" in out.splitlines()
    assert json.loads(ask("diagnose", "logs", "--json")[1])["findings"]
    (tmp_path / "logs/rank.err").rename(tmp_path / "elsewhere")
    (tmp_path / "logs/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs/rank.err").write_text("epoch 1\n")
    assert ask("diagnose", "logs")[0] == 0, "links lead out of the folder"
    assert ask("diagnose", "logs/link")[0] == 1
    assert ask("diagnose", "nowhere")[0] == 2
    assert ask("diagnose")[2].startswith("nvrun: there is no run yet")


def test_nccl_tells_what_it_chose(ask: Asked, tmp_path: Path) -> None:
    head = "node1:100:200 [0] NCCL INFO "
    (tmp_path / "log").write_text(
        f"{head}NET/Socket : Using [0]eth0:10.0.0.1<0>\n{head}Using network Socket\n"
        f"{head}Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
    )
    code, out, _ = ask("nccl", "log")
    assert code == 0
    assert "network  Socket" in out
    assert "1 pair  by NET/Socket" in out
    assert json.loads(ask("nccl", "log", "--json")[1])["log"]["lines"] == 3
    (tmp_path / "other").write_text("nothing\n")
    assert "NCCL_DEBUG=INFO makes it say" in ask("nccl", "other")[1]


def test_nccl_says_of_a_run_without_it_that_it_was_not_used(ask: Asked, tmp_path: Path) -> None:
    """Not that a variable would make it speak which is set already."""
    for name, words in (("cpu_host", "did not use NCCL, its hosts have no GPU"), ("h200x2", "NCCL_DEBUG=INFO was set")):
        known = facts.from_json((FACTS / f"{name}.json").read_bytes())[0]
        known = replace(known, env={"NCCL_DEBUG": "INFO"})
        (tmp_path / name).mkdir()
        (tmp_path / name / "facts.json").write_bytes(facts.to_json([known]))
        said = ask("nccl", f"./{name}")[1]
        assert words in said
        assert "makes it say" not in said


def test_runs_are_told_in_words_and_rounds_of_a_tune_in_one_row(ask: Asked, tmp_path: Path) -> None:
    index = runs.index(ask.environ)
    index.mkdir(parents=True)
    launcher = runs.this_process()
    mine = replace(launcher, start=launcher.start - 1)  # of commands that are over
    ends: list[tuple[EndedBy, int, str]] = [
        ("success", 0, "ended well"),
        ("rank", 3, "a rank failed (exit 3)"),
        ("preflight", 78, "refused by the checks (exit 78)"),
        ("preflight", 2, "not launched (exit 2)"),
    ]

    def add(at: int, measures: str = "", host: str = "a", end: tuple[EndedBy, int] | None = None) -> str:
        name = f"20261129-1512{at:02d}-k3x9"
        entry = runs.Remembered(
            id=name, path=str(tmp_path / name), started=at, launcher=mine, hosts=(Host(name=host),), kinds=("ssh",),
            fleet=True, measures=measures, program="-c" if measures else "train.py",
        )  # fmt: skip
        (index / f"{name}.json").write_bytes(msgspec.json.encode(entry))
        if end:
            (tmp_path / name).mkdir()
            result = RunResult(run_id=name, ended_by=end[0], exit_code=end[1], started=at, seconds=1.0)
            (tmp_path / name / "result.json").write_bytes(msgspec.json.encode(result))
        return name

    own = [add(at, host="x" * (60 if at == 0 else 3), end=end[:2]) for at, end in enumerate(ends)]
    rounds = [add(at, "tune", end=("success", 0)) for at in range(10, 15)]
    add(20)
    add(21)
    out = ask("runs")[1].splitlines()
    assert [line.split()[0] for line in out] == ["run", rounds[-1], *reversed(own), "and"]
    assert "  tune, 5 rounds  " in out[1]
    assert out[-1] == "and 2 whose folder is not here: --json"
    for line, (_, _, words) in zip(reversed(out[2:6]), ends, strict=True):
        assert f"  {words}  " in line
        assert "  train.py  " in line
    assert len({line.index(str(tmp_path)) for line in out[1:6]}) == 1
    assert out[1].index(str(tmp_path)) < 120, "a long host name widens no row"
    assert len(json.loads(ask("runs", "--json")[1])["runs"]) == 11
    assert ask("stop")[1] == f"nothing runs; the last run was {own[-1]}: not launched (exit 2)\n"
    assert ask("stop", own[1])[1] == f"{own[1]} is over: a rank failed (exit 3)\n"
    assert runs.resolve("latest", ask.environ).path == tmp_path / own[-1]
    assert runs.resolve(rounds[0], ask.environ).path == tmp_path / rounds[0]


def test_tune_refuses_where_nccls_settings_have_no_effect(ask: Asked) -> None:
    code, out, err = ask("tune", "--nproc-per-node", "2", "--messages", "1MiB", "--from", FACTS / "cpu_host.json")
    assert (code, out) == (2, "")
    assert "settings of NCCL, which would change nothing here: no GPU on" in err
    assert "expected: two or more ranks, each with a GPU" in err
    assert not runs.index(ask.environ).exists(), "nothing was measured"


def test_bench_looks_at_its_plot_before_it_measures(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = ask("bench", "--nproc-per-node", "2", "--plot", "x.png")
    assert (code, out) == (2, "")
    assert "--plot needs matplotlib" in err
    assert not runs.index(ask.environ).exists(), "nothing was measured"
    code, _, err = ask("bench", "--compare", "--plot", "x.png", "default", "default")
    assert (code, err) == (2, "nvrun: --plot has no meaning with --compare: drop one\n")
    assert not bench._plot(Path("x.png"), ()), "what fails after the measuring costs no table"


def test_stop_takes_no_guess_which_of_two_runs_is_meant(ask: Asked, tmp_path: Path) -> None:
    index = runs.index(ask.environ)
    index.mkdir(parents=True)
    for name in ("20261129-151203-k3x9", "20261129-151204-k3x9"):
        entry = runs.Remembered(
            id=name, path=str(tmp_path), started=0.0, launcher=runs.this_process(), hosts=(), kinds=(), fleet=False
        )
        (index / f"{name}.json").write_bytes(msgspec.json.encode(entry))
    for broken in ("20261129-151205-k3x9", "20261129-151206-k3x9"):  # of runs that are over, in whatever state
        (tmp_path / broken).mkdir()
        (tmp_path / broken / "result.json").write_text("[]")
        old = msgspec.structs.replace(entry, id=broken, path=str(tmp_path / broken))
        (index / f"{broken}.json").write_bytes(msgspec.json.encode(old))
    code, out, err = ask("stop")
    assert (code, out) == (2, "")
    assert "which of 2 runs? 20261129-151204-k3x9, 20261129-151203-k3x9" in err


@pytest.mark.parametrize("count", ["xpu", "x"])
def test_only_gpus_and_cpus_are_counted_for_the_user(ask: Asked, count: str) -> None:
    code, _, err = ask("plan", "--from", FACTS / "h100x8.json", "--nproc-per-node", count, "t.py")
    assert code == 2
    assert "expected a number, gpu, cpu or auto" in err


@pytest.mark.parametrize("count", ["cpu", "auto"])
def test_cpus_are_counted_as_torchrun_counts_them(ask: Asked, count: str) -> None:
    (host,) = facts.from_json((FACTS / "cpu_host.json").read_bytes())
    code, out, _ = ask("plan", "--from", FACTS / "cpu_host.json", "--nproc-per-node", count, "--json", "t.py")
    assert host.cpus
    assert (code, json.loads(out)["world_size"]) == (0, len(host.cpus.online))


def test_a_run_that_never_began_is_diagnosed_by_what_stopped_it(ask: Asked, tmp_path: Path) -> None:
    lost = Finding(
        code="host-name-unknown", severity=Severity.ERROR, message="n2 has no address", remedy="getent hosts"
    )
    refused = Finding(code="path-missing", severity=Severity.FATAL, message="t.py is not there", remedy="copy it")
    noise = Finding(code="x", severity=Severity.WARNING, message="a warning")
    results = (
        RunResult(run_id="r1", ended_by="unreachable", exit_code=69, started=0, seconds=1, findings=(lost,)),
        RunResult(run_id="r2", ended_by="preflight", exit_code=78, started=0, seconds=1),
        RunResult(run_id="r3", ended_by="success", exit_code=0, started=0, seconds=1),
    )
    for result in results:
        (tmp_path / result.run_id).mkdir()
        (tmp_path / result.run_id / "result.json").write_bytes(msgspec.json.encode(result))
        (tmp_path / result.run_id / "verdict.json").write_bytes(msgspec.json.encode(Verdict(findings=(noise, refused))))
    assert "n2 has no address\nDo\n  getent hosts" in ask("diagnose", "./r1")[1]
    code, out, _ = ask("diagnose", "./r2")
    assert code == 1
    assert "t.py is not there\nDo\n  copy it" in out
    assert "a warning" not in out
    code, out, _ = ask("diagnose", "./r3")
    assert (code, out.splitlines()[0]) == (0, "Nothing failed: r3 ended with success.")
    before = Attempt(hosts=("a", "b"), started=0, seconds=1, began=True, ended_by="lost", exit_code=69,
                     struck_off={"b": "its connection ended"})  # fmt: skip
    again = msgspec.structs.replace(results[2], attempts=(before,))
    (tmp_path / "r3" / "result.json").write_bytes(msgspec.json.encode(again))
    code, out, _ = ask("diagnose", "./r3")
    assert code == 0
    assert out.splitlines()[:2] == [
        "r3 ended with success, begun again without b: its connection ended",
        "Before that: nvrun diagnose r3/attempts/0",
    ]


def test_of_a_run_without_an_end_its_launcher_tells(ask: Asked, tmp_path: Path) -> None:
    here = request(Job(mode=Mode(kind="node", why=""), hosts=(), hosts_from="", kinds=(), args=TorchrunArgs(),
                       options=Options(), cwd="/", lost_after=60.0), 0.0)  # fmt: skip
    assert here.launcher
    dead, elsewhere = replace(here.launcher, start=1), replace(here.launcher, host="n9", kernel="another")
    torchrun = tmp_path / "r4" / "logs" / "a" / "torchrun.err"
    torchrun.parent.mkdir(parents=True)
    for launcher, begins in (
        (here.launcher, "No error is in the logs, and the run still goes on."),
        (elsewhere, "No error is in the logs, and no end is recorded: it still runs on n9, or its launcher"),
        (None, "No error is in the logs, and no end is recorded: it still runs, or its launcher"),
        (dead, "Its launcher was killed (process"),
    ):
        torchrun.write_text("Sending process 7 closing signal SIGTERM\nx.SignalException: Process 6 got signal: 15\n")
        (tmp_path / "r4" / "request.json").write_bytes(msgspec.json.encode(replace(here, launcher=launcher)))
        code, out, _ = ask("diagnose", "./r4")
        assert (code, out.startswith(begins)) == (0, True), out
        assert "Cause" not in out
    torchrun.write_text("subprocess.CalledProcessError: Command 'make' returned non-zero exit status 2.\n")
    code, out, _ = ask("diagnose", "./r4")
    assert (code, out.startswith("Its launcher was killed (process")) == (1, True), "no signal makes an exit code"
    assert "Whether a rank had failed before that is not known of all: no plan is here" in out


def test_what_a_hosts_agent_noted_is_read_where_it_lies(ask: Asked, tmp_path: Path) -> None:
    """The folder that a host kept for itself, of a run whose launcher is gone."""
    end = {"t": "end", "rank": 3, "local": 1, "pid": 9, "code": 41, "attempt": 0, "asked": False, "time": 5.0,
           "begun": 1.0, "first_output": None, "tail": [], "oom": None, "hostname": "n7"}  # fmt: skip
    lines = [{**end, "rank": 2, "code": 1, "time": 6.0}, end, {**end, "code": "x"}]
    own = tmp_path / "own"
    own.mkdir()
    (own / "ends.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"t":"end","ra']))
    code, out, _ = ask("diagnose", "./own")
    assert (code, out.splitlines()[0]) == (1, "First to fail: rank 3 on n7 (local rank 1, pid 9)")
    assert "exit code 41" in out


def test_recorded_facts_are_shown_in_short(ask: Asked) -> None:
    code, out, _ = ask("facts", "--from", FACTS / "h200x2.json")
    assert code == 0
    assert out.startswith("h200-0\n  software  Python 3")
    assert "GPU 1     NVIDIA H200" in out


def test_a_package_that_is_not_installed_is_no_fault_of_nvrun(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_msgspec(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")

    monkeypatch.setattr("nvrun.cli.load", without_msgspec)
    code, out, err = ask("t.py")
    assert (code, out) == (70, "")
    assert err.startswith("nvrun: msgspec is not installed for ")
    assert "report" not in err


def test_facts_of_several_hosts_are_a_fleet(ask: Asked, tmp_path: Path) -> None:
    (one,) = facts.from_json((FACTS / "h100x8.json").read_bytes())
    (tmp_path / "facts.json").write_bytes(facts.to_json([replace(one, host=name) for name in ("a", "b")]))
    plan = json.loads(ask("plan", "--from", tmp_path / "facts.json", "--json", "train.py")[1])
    assert [len(host["ranks"]) for host in plan["hosts"]] == [8, 8]
