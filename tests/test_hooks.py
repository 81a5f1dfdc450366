"""Hooks are found, refused, given their options, and add to a plan; all of it without a host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvrun import cli, facts, shipped
from nvrun.config import ConfigText, parse
from nvrun.errors import UsageError
from nvrun.hooks import Hook, contributions, load, log_folder
from nvrun.hooks.load import find, listing, read, wanted
from nvrun.job import read as read_job
from nvrun.placement import Placed, place, wishes_of
from nvrun.prepare import plan_of_facts
from nvrun.report.shell import script

DATA = Path(__file__).parent / "data" / "facts"
HOOK = '''
"""Says hello.

And more."""
from typing import Annotated
from nvrun.hooks import Contribution, Frozen, Option
from nvrun.options import whole

class Options(Frozen, frozen=True, kw_only=True):
    how_often: Annotated[int, Option(whole, "N", "times")] = 1

def contribute(plan, facts, options):
    return Contribution(prefix={0: ("env", f"HELLO={options.how_often}")})
'''


def own(tmp_path: Path, text: str = HOOK, name: str = "hello.py", mode: int = 0o644) -> str:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def loaded(*texts: str, environ: Mapping[str, str] = {"HOME": "/nobody"}) -> dict[str, Hook]:
    return {hook.name: hook for hook in load(texts, environ)}


def placed(*texts: str, machines: tuple[str, ...] = ("h100x8", "h100x8"), env: tuple[str, ...] = ()) -> Placed:
    """A plan for recorded machines with these hooks."""
    known = [
        msgspec.structs.replace(each, host=f"{name}-{number}")
        for number, name in enumerate(machines)
        for each in facts.from_json((DATA / f"{name}.json").read_bytes())
    ]
    names = ",".join(each.host for each in known)
    flags = [part for text in texts for part in ("--hook", text)]
    flags += [part for text in env for part in ("--env", text)]
    job = read_job(parse(["--hosts", names, *flags, "train.py"], {}), {"HOME": "/nobody"})
    plan = plan_of_facts(job, "20261129-1-abcd", known)
    return place(plan, dict(enumerate(known)), wishes_of(job, known))


# -- what is asked for ---------------------------------------------------------------------------------------------


def test_the_default_ones_come_first_unless_none() -> None:
    assert [each.name for each in wanted([])] == ["nccl-debug", "flight-recorder"]
    assert [each.name for each in wanted(["nsys"])] == ["nccl-debug", "flight-recorder", "nsys"]
    assert [each.name for each in wanted(["nsys", "none"])] == ["nsys"]
    assert [each.name for each in wanted(["nccl-debug:keep=all"])] == ["flight-recorder", "nccl-debug"]
    with pytest.raises(UsageError, match="nsys is given twice"):
        wanted(["nsys", "nsys:ranks=1"])


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("nsys", "nsys", {}),
        ("nsys:ranks=0,4-7,capture=api", "nsys", {"ranks": "0,4-7", "capture": "api"}),
        ("nsys:trace=cuda,nvtx", "nsys", {"trace": "cuda,nvtx"}),
        ("./a:b.sh", "./a:b.sh", {}),
        ("./a:b.sh:x=1", "./a:b.sh", {"x": "1"}),
        ("./x=1.sh:url=http://a:1/?b=c,d", "./x=1.sh", {"url": "http://a:1/?b=c,d"}),
    ],
)
def test_a_comma_begins_an_option_only_before_a_name(text: str, name: str, options: dict[str, str]) -> None:
    assert read(text)[:2] == (name, options)


def test_in_nvrun_yaml_they_stand_in_the_plural_and_paths_start_at_the_file() -> None:
    text = "hooks: [nsys, './mine.py:x=1', ../theirs.sh]\n"
    options = parse([], {}, [ConfigText("/home/u/.config/nvrun/nvrun.yaml", text)]).options
    assert options.hook == ("nsys", "/home/u/.config/nvrun/./mine.py:x=1", "/home/u/.config/nvrun/../theirs.sh")
    assert parse(["--hook", "none"], {}, [ConfigText("nvrun.yaml", text)]).options.hook == ("none",)


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_gets_its_options(tmp_path: Path) -> None:
    path = own(tmp_path)
    assert loaded(path)["hello"].settings.how_often == 1
    assert loaded(f"{path}:how-often=3")["hello"].settings.how_often == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def around(:", "hello.py:1: invalid syntax"),
        ("import json\nraise ValueError('no')\n", "hello.py:2: ValueError: no"),
        ("x = 1\n", "has none of contribute, wrap, around"),
    ],
)
def test_a_file_that_is_no_hook_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(own(tmp_path, text))


@pytest.mark.parametrize(
    ("options", "words"),
    [("how-ofen=1", "there is no option how-ofen; there are: how-often"), ("how-often=x", "expected a whole number")],
)
def test_a_wrong_option_says_what_was_expected(tmp_path: Path, options: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(f"{own(tmp_path)}:{options}")


def test_what_others_can_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can be written by others") as refused:
        loaded(own(tmp_path, mode=0o666))
    assert refused.value.hint.startswith("chmod go-w")
    own(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="can be written by others"):
        loaded(str(tmp_path / "hello.py"))
    tmp_path.chmod(0o1777)
    assert "hello" in loaded(str(tmp_path / "hello.py"))


def test_a_link_is_judged_by_what_it_points_at(tmp_path: Path) -> None:
    target = tmp_path / "open"
    target.mkdir()
    own(target)
    target.chmod(0o777)
    link = tmp_path / "hello.py"
    link.symlink_to(target / "hello.py")
    with pytest.raises(UsageError, match="can be written by others"):
        loaded(str(link))


def test_a_pipe_or_folder_in_its_place_stops_nothing(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.py")
    for name in ("pipe.py", ""):
        with pytest.raises(UsageError, match=r"not a file|Is a directory"):
            loaded(f"{tmp_path}/{name}")


def test_a_program_must_be_executable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a Python file"):
        loaded(own(tmp_path, "#!/bin/sh\n", "hello.sh"))
    assert loaded(own(tmp_path, "#!/bin/sh\n", "hello.sh", 0o755))["hello"].around is not None


def test_nothing_runs_because_it_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no hook hello"):
        loaded("hello")
    with pytest.raises(UsageError, match="did you mean nsys"):
        loaded("nsy")


def test_the_users_own_folder_comes_before_the_shipped_one(tmp_path: Path) -> None:
    folder = tmp_path / "nvrun" / "hooks"
    folder.mkdir(parents=True)
    own(folder)
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find("hello", environ)[0] == folder / "hello.py"
    assert {"hello", "nsys", "host-state"} <= {each.name for each in listing(environ)}


# -- nvrun hooks ---------------------------------------------------------------------------------------------------


def test_every_shipped_hook_is_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hooks", "--json"], {"HOME": "/nobody"}) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["hooks"]}
    assert set(rows) == {"flight-recorder", "gpu-clean", "host-state", "nccl-debug", "nsys", "nvlink-errors", "py-spy",
                         "torch-profiler"}  # fmt: skip
    assert {name for name, row in rows.items() if row["default"]} == {"nccl-debug", "flight-recorder"}
    readme = (shipped.folder("hooks") / "README.md").read_text()
    for name, row in rows.items():
        assert row["help"].endswith(".")
        assert f"`{name}`" in readme
        for option in row["options"]:
            assert option["help"]
            loaded("none", f"{name}:{option['name']}={option['default'].replace('10,15', '10-15')}")


def test_hooks_show_tells_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hooks", "show", own(tmp_path), "nccl-debug"], {"HOME": "/nobody"}) == 0
    out = capsys.readouterr().out
    assert "how-often=N  times (1)" in out
    assert "keep=some|all" in out


# -- contributions -------------------------------------------------------------------------------------------------


def variables(result: Placed, rank: int = 0) -> dict[str, str]:
    (found,) = [each for host in result.plan.hosts for each in host.ranks if each.rank == rank]
    return {variable.name: variable.value for variable in found.env}


def test_a_contribution_shows_in_the_plan_and_its_shell(tmp_path: Path) -> None:
    path = own(tmp_path)
    result = placed("none", f"{path}:how-often=7")
    assert result.plan.hosts[0].ranks[0].prefix[-2:] == ("env", "HELLO=7")
    assert result.plan.hosts[0].ranks[0].prefix[0] == "/usr/bin/numactl"
    assert "HELLO=7" not in result.plan.hosts[1].ranks[0].prefix
    assert "env HELLO=7" in script(result.plan)


def test_a_hook_that_raises_is_named(tmp_path: Path) -> None:
    from nvrun.errors import NvrunError

    with pytest.raises(NvrunError, match=r"hook hello: contribute: ZeroDivisionError"):
        placed(own(tmp_path, "def contribute(plan, facts, options):\n    1 / 0\n"))


def test_recording_is_on_by_default_and_none_leaves_it_out() -> None:
    on, off = variables(placed()), variables(placed("none"))
    assert on["NCCL_DEBUG"] == "INFO"
    assert on["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,BOOTSTRAP,NET"
    assert on["NCCL_DEBUG_FILE"].endswith("/logs/h100x8-0/nccl.%h.%p.log")
    assert set(on) - set(off) == {
        "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_RAS_ADDR",
        "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT",
    }  # fmt: skip
    assert off["PYTHONFAULTHANDLER"] == "1"


@pytest.mark.parametrize("name", ["NCCL_DEBUG=WARN", "NCCL_DEBUG_FILE=/x", "NCCL_DEBUG_SUBSYS=COLL"])
def test_any_debug_variable_of_the_user_silences_nccl_debug(name: str) -> None:
    result = placed(env=(name,))
    assert not [each for each in variables(result) if each.startswith("NCCL_DEBUG")]
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in variables(result)
    assert result.notices == ()


def test_a_conf_file_of_the_host_counts_as_the_users() -> None:
    (known,) = facts.from_json((DATA / "h100x8.json").read_bytes())
    known = msgspec.structs.replace(known, env={}, conf_files={"/etc/nccl.conf": "# site\nNCCL_DEBUG=WARN\n"})
    job = read_job(parse(["--hosts", known.host, "train.py"], {}), {"HOME": "/nobody"})
    result = place(plan_of_facts(job, "run", [known]), {0: known}, wishes_of(job, [known]))
    assert not [name for name in variables(result) if name.startswith("NCCL_DEBUG")]
    assert "NCCL_RAS_ADDR" in variables(result)


def test_net_is_logged_up_to_64_ranks() -> None:
    assert variables(placed(machines=("h100x8",) * 8))["NCCL_DEBUG_SUBSYS"].endswith(",NET")
    assert not variables(placed(machines=("h100x8",) * 9))["NCCL_DEBUG_SUBSYS"].endswith(",NET")


def shipped_module(name: str) -> Any:
    from nvrun.hooks.load import _module

    path, data = find(name, {"HOME": "/nobody"})
    return _module(name, path, data)


def test_the_ras_port_is_one_that_nobody_has() -> None:
    (known,) = facts.from_json((DATA / "h100x8.json").read_bytes())
    ras_port = shipped_module("nccl-debug").ras_port
    first = ras_port("run", [known])
    taken = facts.HostFacts(host="x", listeners=(facts.Listener(port=first),))
    assert ras_port("run", [known, taken]) == first + 1
    assert ras_port("another run", [known]) != first
    everything = facts.HostFacts(host="x", listeners=tuple(facts.Listener(port=port) for port in range(28100, 28900)))
    assert ras_port("run", [everything]) is None


@pytest.mark.parametrize(
    ("torch", "names"),
    [
        ("2.13.0", ["TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"]),
        ("2.7.1", ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"]),
        ("2.1.0", []),
        (None, []),
    ],
)
def test_flight_recorder_names_follow_the_version(torch: str | None, names: list[str]) -> None:
    known = facts.HostFacts(host="a", software=facts.Software(python="3.11.7", executable="python", torch=torch))
    said = list(shipped_module("flight-recorder")._variables(known, "/logs", 2000))
    assert [variable.name for variable in said] == names


def test_only_implicated_hosts_keep_their_nccl_logs() -> None:
    from nvrun.model import RankEnd, RunResult

    def result(code: int, *ends: RankEnd) -> RunResult:
        return RunResult(run_id="r", ended_by="rank", exit_code=code, started=0, seconds=1, ranks=ends)

    kept = shipped_module("nccl-debug").kept
    failed = RankEnd(rank=9, host="b", local_rank=1, pid=1, code=1)
    ended = RankEnd(rank=0, host="a", local_rank=0, pid=1, code=-15, by_nvrun=True)
    assert list(kept(["a", "b"], result(0))) == ["a"]
    assert set(kept(["a", "b"], result(1, failed, ended))) == {"b"}
    assert set(kept(["a", "b"], result(69))) == {"a", "b"}


def test_nsys_stands_between_numactl_and_the_program() -> None:
    result = placed("none", "nsys:ranks=0,9")
    prefix = result.plan.hosts[0].ranks[0].prefix
    assert prefix[0] == "/usr/bin/numactl"
    assert " ".join(prefix[prefix.index("nsys") :]).startswith(
        "nsys profile -w true -t cuda,nvtx,osrt,cudnn,cublas -s cpu -f true -o "
    )
    assert prefix[prefix.index("-o") + 1].endswith("/h100x8-0/nsys/h100x8-0.rank0")
    assert "nsys" in result.plan.hosts[1].ranks[1].prefix
    assert "nsys" not in result.plan.hosts[0].ranks[1].prefix
    session = next(part for part in prefix if part.startswith("--session-new="))[len("--session-new=") :]
    assert result.plan.hosts[0].ranks[0].last[0].argv == ("nsys", "stop", f"--session={session}")


def test_nsys_per_host_wraps_torchrun() -> None:
    result = placed("none", "nsys:per=host,ranks=9,capture=api")
    first, second = result.plan.hosts
    assert first.prefix == ()
    assert second.prefix[:2] == ("nsys", "profile")
    assert "--capture-range=cudaProfilerApi" in second.prefix
    assert second.ranks[1].last[0].argv[:2] == ("nsys", "stop")
    assert not [rank for host in result.plan.hosts for rank in host.ranks if "nsys" in rank.prefix]
    assert "\nnsys profile" in script(result.plan)


def test_nsys_by_steps_enters_the_rank() -> None:
    result = placed("none", "nsys:capture=steps,steps=5-8")
    rank = result.plan.hosts[0].ranks[0]
    entering = rank.prefix[rank.prefix.index("--capture-range-end=stop") + 1 :]
    assert entering[:3] == ("env", 'NVRUN_CUDA_RANGE={"first": 5, "last": 8}', "sh")
    with pytest.raises(UsageError, match="FIRST-LAST, optimizer steps from 2"):
        placed("none", "nsys:capture=steps,steps=8-5")


def test_folders_in_a_plan_alone_have_the_name_they_would_have() -> None:
    plan = placed().plan
    assert log_folder(plan.hosts[1], plan) == "nvrun-runs/20261129-1-abcd/logs/h100x8-1"
    assert contributions((), plan, {}).env == {}
