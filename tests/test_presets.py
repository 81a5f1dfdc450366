"""Preset files: the schema and its errors, what extends what, what fits where, and that the shipped ones do no harm."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun import config, facts, job, preflight, presets, shipped
from nvrun.errors import UsageError
from nvrun.facts import Gpu, HostFacts, NvLink, PciDevice, RdmaPort, Software
from nvrun.model import Finding, Severity
from nvrun.nccl import catalogue
from nvrun.nccl.lint import lint_settings
from nvrun.nccl.parse import version
from nvrun.nccl.setting import Setting
from nvrun.prepare import plan_of_facts
from nvrun.preset_file import Preset, read
from nvrun.preset_fit import network, unmet

SHIPPED = [shipped.folder("presets")]
ALL = presets.load_all(SHIPPED)
MACHINES = {
    path.stem: facts.from_json(path.read_bytes())
    for path in sorted((Path(__file__).parent / "data/facts").glob("*.json"))
}
NAMED = (
    "ampere hopper blackwell nvlink infiniband roce ethernet efa gcp model-small model-medium model-large"
    " throughput latency stability debug ab-no-p2p ab-no-ib deepep horovod"
)
NEW = {"nccl": "2.30.7", "torch": "2.13.0"}

GOOD = """\
summary: mine
fits:
  compute_capability: ["9.0"]
variables:
  NCCL_BUFFSIZE:
    value: 8MiB
    why: large messages
    source: measured
    cost: not measured
    versions: nccl>=2.24, torch<2.10
"""


def names_of(preset: Preset, versions: dict[str, str | None]) -> list[str]:
    return [variable.name for variable in presets.variables(preset, versions=versions, run_dir="/runs/1")]


def linted(preset: Preset, nccl: str) -> list[Finding]:
    """What lint says of the preset's own variables."""
    settings = [
        Setting(name=name, value=each.value, where=each.place, syntax="conf") for name, each in preset.variables.items()
    ]
    return lint_settings(settings, nccl=nccl, shared=True)


def test_every_preset_is_there() -> None:
    assert sorted(NAMED.split()) == [preset.name for preset in ALL]


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.name)
def test_shipped_preset(preset: Preset) -> None:
    assert preset.summary
    assert preset.variables
    for name, variable in preset.variables.items():
        assert name not in ("NCCL_NVLS_ENABLE", "NCCL_COMM_ID", "NCCL_HOSTID"), "nobody asked for it"
        figures = re.search(r"[0-9.]+ GB/s", variable.cost)
        assert not figures or ("H200" in variable.cost and "2026-" in variable.cost) or "see NCCL" in variable.cost
    errors = [each for each in linted(preset, "2.30.7") if each.severity >= Severity.WARNING]
    assert [each.subject for each in errors] == (["NCCL_P2P_DISABLE"] if preset.name == "ab-no-p2p" else [])


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.name)
@pytest.mark.parametrize("nccl", ["2.19.3", "2.21.5", "2.27.5"])
def test_shipped_preset_sets_only_what_that_nccl_reads(preset: Preset, nccl: str) -> None:
    versions: dict[str, str | None] = {"nccl": nccl, "torch": "2.13.0"}
    applied = set(names_of(preset, versions))
    unread = [each.subject for each in linted(preset, nccl) if each.code == "nccl-name-too-new"]
    assert not applied & set(unread)


RELEASES = sorted(
    {row.since for row in catalogue.variables().values() if row.owner == "nccl" and row.since}, key=version
)
"""Of NCCL, in which a variable began: what a preset sets, and what lint says of it, changes nowhere else."""


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.name)
def test_no_nccl_that_a_preset_is_applied_to_has_a_newer_name_for_what_it_sets(preset: Preset) -> None:
    for nccl in RELEASES:
        versions: dict[str, str | None] = {"nccl": nccl, "torch": "2.13.0"}
        applied = presets.variables(preset, versions=versions, run_dir="/runs/1")
        said = lint_settings(
            [Setting(name=each.name, value=each.value, where=each.source, syntax="conf") for each in applied], nccl=nccl
        )
        bad = [each for each in said if each.severity >= Severity.ERROR or each.code == "nccl-name-deprecated"]
        assert not bad, f"NCCL {nccl}: {bad[0].message}"


def test_a_setting_whose_name_changed_is_set_by_the_name_that_nccl_reads() -> None:
    preset = presets.load("ethernet", SHIPPED)
    for nccl, name in (("2.16.5", "NCCL_MIN_NCHANNELS"), ("2.17.1", "NCCL_MIN_CTAS"), ("2.30.7", "NCCL_MIN_CTAS")):
        assert [each for each in names_of(preset, {"nccl": nccl}) if each.startswith("NCCL_MIN")] == [name]
        assert not presets.unset(preset, {"nccl": nccl}), "it is set, if by its other name"
    assert "NCCL_MIN_CTAS" in presets.unset(preset, {"nccl": None})


def test_sizes_of_models() -> None:
    sizes = {
        name: [each.value for each in presets.variables(presets.load(f"model-{name}", SHIPPED), versions=NEW)]
        for name in ("small", "medium", "large")
    }
    assert sizes == {
        "small": ["262144", "1", "2", "4"],
        "medium": ["1048576", "2", "4", "8"],
        "large": ["4194304", "4", "8", "16"],
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("350M", "model-small"),
        ("0.9b", "model-small"),
        ("1B", "model-medium"),
        ("7B", "model-medium"),
        ("10B", "model-medium"),
        ("10.1B", "model-large"),
        ("70b", "model-large"),
        ("1.3e9", "model-medium"),
        ("1T", "model-large"),
    ],
)
def test_model_size(text: str, name: str) -> None:
    assert presets.for_model_size(text) == name


@pytest.mark.parametrize("text", ["big", "", "7 Q", "-7B", "0", "7BB"])
def test_no_model_size(text: str) -> None:
    with pytest.raises(UsageError, match="--model-size"):
        presets.for_model_size(text)


def test_a_good_file() -> None:
    preset = read("mine.yaml", "mine", GOOD)
    assert preset.variables["NCCL_BUFFSIZE"].value == "8388608"
    assert preset.variables["NCCL_BUFFSIZE"].place == "mine.yaml:5"
    assert names_of(preset, {"nccl": "2.27.5", "torch": "2.9.1"}) == ["NCCL_BUFFSIZE"]
    for versions in ({"nccl": "2.21.5", "torch": "2.9.1"}, {"nccl": "2.27.5", "torch": "2.10"}, {"nccl": "2.27.5"}):
        assert names_of(preset, {"torch": None, **versions}) == []
    reasons = {
        presets.left_out(preset.variables["NCCL_BUFFSIZE"], {"nccl": nccl, "torch": "2.9"}) for nccl in ("2.21", None)
    }
    assert reasons == {"needs nccl>=2.24", "needs nccl>=2.24, and the version is not known"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value: 8MiB", "valeu: 8MiB", "mine.yaml:6: unknown key variables.NCCL_BUFFSIZE.valeu"),
        ("    value: 8MiB\n", "", "mine.yaml:5: variables.NCCL_BUFFSIZE: object missing required field `value`"),
        ("value: 8MiB", "value: [1, 2]", "mine.yaml:6: variables.NCCL_BUFFSIZE.value: expected `str`, got `array`"),
        ("value: 8MiB", "value: 8 apples", "mine.yaml:6: variables.NCCL_BUFFSIZE.value: NCCL_BUFFSIZE is a size"),
        ("why: large messages", "why:", "mine.yaml:7: variables.NCCL_BUFFSIZE.why is empty"),
        ("nccl>=2.24", "nccl=2.24", "mine.yaml:10: variables.NCCL_BUFFSIZE.versions: expected"),
        ("fits:", "fit:", "mine.yaml:2: unknown key fit"),
        ('["9.0"]', "{a: b}", "mine.yaml:3: fits.compute_capability: expected `array`, got `object`"),
        ("summary: mine", "name: mine\nsummary: mine", "mine.yaml:1: name: the file's own name"),
        ("summary: mine\n", "", "mine.yaml: object missing required field `summary`"),
        ("summary: mine", "summary: mine\nsummary: yours", "mine.yaml:2: summary is given twice (first in line 1)"),
        ("NCCL_BUFFSIZE:", "NCCL-BUFFSIZE:", "mine.yaml:5: variables: 'NCCL-BUFFSIZE' is no name"),
        (GOOD, "- a\n- b\n", "mine.yaml: expected 'summary:'"),
        (GOOD, "summary: a\nvariables: [x]\n", "mine.yaml:2: variables: expected"),
        (GOOD, "summary: a\n", "mine.yaml: the key 'variables' is missing"),
        (GOOD, "", "mine.yaml: expected 'summary:'"),
        (GOOD, "summary: a\nvariables:\n  A: text\n", "mine.yaml:3: variables.A: expected keys value, why, source"),
        (GOOD, "summary: [\n", "mine.yaml:2: not YAML"),
        (GOOD, "summary: a\x00\n", "mine.yaml: not YAML"),
        (GOOD, "a: &x [1]\nb: *x\n", "mine.yaml:1: anchors and aliases are not allowed"),
        (GOOD, "summary: !!python/object:os.system x\n", "mine.yaml:1: tags are not allowed"),
        (GOOD, "[" * 2000, "mine.yaml:1: nested deeper"),
        (GOOD, "summary: " + "a" * 70000, "mine.yaml: a preset has at most 65536 characters"),
        (GOOD, "? [a]\n: b\n", "mine.yaml:1: expected a key"),
    ],
)
def test_errors_name_file_line_and_key(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError) as error:
        read("mine.yaml", "mine", GOOD.replace(old, new, 1))
    assert error.value.message.startswith(said)


def test_nearest_key_is_offered() -> None:
    with pytest.raises(UsageError) as error:
        read("mine.yaml", "mine", GOOD.replace("value:", "valeu:"))
    assert error.value.hint == "did you mean value?"


def test_scalars_keep_their_text() -> None:
    text = "summary: no\nvariables:\n  A: {value: 010, why: yes, source: 1e6, cost: ~}\n"
    preset = read("a.yaml", "a", text)
    assert (preset.summary, preset.variables["A"].value, preset.variables["A"].why) == ("no", "010", "yes")


@given(st.text(max_size=300) | st.text("abc:{}[]&*!|>-?#'\",\n \t", max_size=300))
def test_any_text_is_a_preset_or_a_usage_error(text: str) -> None:
    said = "a.yaml"
    try:
        read("a.yaml", "a", text)
    except UsageError as error:
        said = error.message
    assert said.startswith("a.yaml")


def write(folder: Path, name: str, extends: str = "", value: str = "1", variable: str = "NCCL_IB_SL") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"summary: {name}\nextends: [{extends}]\nvariables:\n"
        f"  {variable}: {{value: {value}, why: a, source: b, cost: c}}\n"
    )
    return path


def test_extends(tmp_path: Path) -> None:
    write(tmp_path, "base", value="1")
    write(tmp_path, "other", variable="NCCL_IB_TC", value="106")
    path = write(tmp_path, "top", extends="base, other, roce", value="2")
    for name, folders in (("top", [tmp_path, *SHIPPED]), (str(path), SHIPPED)):
        preset = presets.load(name, folders)
        found = {variable.name: variable for variable in presets.variables(preset, versions=NEW)}
        assert (found["NCCL_IB_SL"].value, found["NCCL_IB_SL"].source) == ("2", "preset top")
        assert (found["NCCL_IB_TC"].value, found["NCCL_IB_TC"].source) == ("106", "preset top (other)")
        assert found["NCCL_NET"].source == "preset top (infiniband)"


def test_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a", extends="b")
    write(tmp_path, "b", extends="a")
    with pytest.raises(UsageError, match="circle"):
        presets.load("a", [tmp_path])


def test_the_earlier_folder_wins(tmp_path: Path) -> None:
    write(tmp_path, "hopper")
    assert presets.load("hopper", [tmp_path, *SHIPPED]).summary == "hopper"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        presets.load("hoper", SHIPPED)
    assert error.value.hint == "did you mean hopper?"
    with pytest.raises(UsageError, match="No such file"):
        presets.load("./nothing.yaml", SHIPPED)
    with pytest.raises(UsageError, match="Is a directory"):
        presets.load(f"{tmp_path}/", SHIPPED)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        presets.load(str(tmp_path / "binary.yaml"), SHIPPED)
    (tmp_path / "wild.yaml").write_text("summary: a\nrequires: magic\nvariables: {}\n")
    with pytest.raises(UsageError, match="magic is none of nvlink"):
        presets.load(str(tmp_path / "wild.yaml"), SHIPPED)
    assert presets.names([tmp_path / "absent"]) == {}


@pytest.mark.parametrize(
    ("machine", "alone", "together"),
    [
        ("a100x8_nps4", "ampere nvlink", "ampere nvlink roce"),
        ("h100x8", "hopper nvlink", "hopper infiniband nvlink"),
        ("efa_h100x8", "hopper nvlink", "efa hopper nvlink"),
        ("h200x2", "hopper nvlink", "ethernet hopper nvlink"),
        ("gh200", "hopper", "hopper infiniband"),
        ("l40sx4", "", "ethernet"),
    ],
)
def test_auto(machine: str, alone: str, together: str) -> None:
    hosts = MACHINES[machine][:1]
    assert [fit.preset.name for fit in presets.fitting(ALL, hosts) if not fit.reason] == alone.split()
    assert [fit.preset.name for fit in presets.fitting(ALL, hosts * 2) if not fit.reason] == together.split()


def test_auto_wants_every_host_and_what_was_read() -> None:
    mixed = (MACHINES["h100x8"][0], MACHINES["a100x8_nps4"][0])
    reasons = {fit.preset.name: fit.reason for fit in presets.fitting(ALL, mixed)}
    assert "compute capability 8.0, not 9.0" in reasons["hopper"]
    assert reasons["nvlink"] == ""
    unread = HostFacts(host="n1", missing={"gpus": "NVML: driver not loaded"})
    reasons = {fit.preset.name: fit.reason for fit in presets.fitting(ALL, (unread, unread))}
    assert reasons["hopper"] == "n1: its GPUs were not read (NVML: driver not loaded)"
    assert all(reasons.values())
    assert all(fit.reason for fit in presets.fitting(ALL, ()))


def test_a_network_plugin_keeps_its_place() -> None:
    (host,) = MACHINES["gh200"][:1]
    plugin = HostFacts(
        host="n1",
        pci=host.pci,
        rdma=host.rdma,
        software=Software(python="3.11", executable="/p", nccl_net_plugins=("x.so",)),
    )
    (reason,) = [fit.reason for fit in presets.fitting(ALL, (plugin, plugin)) if fit.preset.name == "infiniband"]
    assert reason == "n1: NCCL would load the network plugin x.so"


def test_networks() -> None:
    def host(*ports: tuple[str, float], vendor: str = "0x15b3") -> HostFacts:
        return HostFacts(
            host="n1",
            pci=(PciDevice(address="0000:01:00.0", vendor=vendor, device="0x1021"),),
            rdma=tuple(
                RdmaPort(device=f"mlx5_{i}", port=1, link_layer=layer, state="ACTIVE", rate_gbps=rate)
                for i, (layer, rate) in enumerate(ports)
            ),
        )

    assert network(host(("InfiniBand", 400), ("Ethernet", 100))) == "infiniband"
    assert network(host(("InfiniBand", 100), ("Ethernet", 100))) == "mixed"
    assert network(host(("Ethernet", 100))) == "roce"
    assert network(host()) == "ethernet"
    assert network(host(vendor="0x1ae0")) == "gcp"
    assert network(host(vendor="0x1d0f")) == "ethernet on Amazon's NIC"
    assert network(HostFacts(host="n1", rdma=())) is None


def test_prerequisites_of_deepep() -> None:
    deepep = presets.load("deepep", SHIPPED)
    ready = HostFacts(
        host="n1",
        gpus=(Gpu(index=0, uuid="a", name="H100", pci="x", nvlinks=(NvLink(link=0, active=True),)),),
        rdma=(RdmaPort(device="mlx5_0", port=1, link_layer="InfiniBand", state="ACTIVE"),),
        software=Software(
            python="3.11",
            executable="/p",
            nvidia_peermem=True,
            driver_options={"EnableStreamMemOPs": "1", "RegistryDwords": '"PeerMappingOverride=1;"'},
        ),
    )
    assert unmet(deepep.requires, ready) == []
    bare = HostFacts(
        host="n1",
        gpus=(),
        rdma=(),
        software=Software(python="3.11", executable="/p", nvidia_peermem=False, driver_options={}),
    )
    assert [each.code for each in unmet(deepep.requires, bare)] == [
        "preset-needs-nvlink",
        "preset-needs-rdma",
        "preset-needs-gpudirect",
        "preset-needs-ibgda",
    ]
    assert len(unmet(deepep.requires, HostFacts(host="n1"))) == 4


def test_prerequisites_are_checked_before_a_launch() -> None:
    """Through the checks: a host that lacks them is refused, one of which they were not read is told as not judged."""
    (bare,) = MACHINES["l40sx4"]
    asked = job.read(config.parse(["--preset", "deepep", "train.py"], {}), {"HOME": "/nobody"})
    decided = preflight.decide(asked, plan_of_facts(asked, "run", [bare]), {0: bare})
    assert "preset-needs-nvlink" in {each.code for each in decided.verdict.findings}
    assert decided.exit_code == 78
    unread = HostFacts(host="n1")
    decided = preflight.decide(asked, plan_of_facts(asked, "run", [unread]), {0: unread})
    assert len([each for each in decided.verdict.skipped if each.code.startswith("preset-needs-")]) == 4


def test_describe() -> None:
    text = presets.describe(presets.load("roce", SHIPPED))
    assert "NCCL_NET=IB   (from infiniband)" in text
    assert "NCCL_IB_QPS_PER_CONNECTION=4\n" in text
    assert "auto     where network roce" in text
    assert "auto     never" in presets.describe(presets.load("debug", SHIPPED))
    assert "versions nccl>=2.18.1" in text


def test_run_dir() -> None:
    debug = presets.load("debug", SHIPPED)
    values = {variable.name: variable.value for variable in presets.variables(debug, versions=NEW, run_dir="/runs/7")}
    assert values["NCCL_TOPO_DUMP_FILE"] == "/runs/7/nccl-topology.xml"
    assert "NCCL_TOPO_DUMP_FILE" not in [each.name for each in presets.variables(debug, versions=NEW)]


def test_readme_has_every_preset() -> None:
    readme = (SHIPPED[0] / "README.md").read_text()
    for preset in ALL:
        fits = "yes" if preset.fits else "no"
        assert f"| `{preset.name}` | {preset.summary} | {fits} |\n" in readme
    example = readme.split("```yaml\n")[1].split("```")[0]
    assert read("mine.yaml", "mine", example).variables["NCCL_BUFFSIZE"].value == "8388608"


def test_what_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    for mode in (0o666, 0o664):
        path.chmod(mode)
        with pytest.raises(UsageError, match="refused: it can be written by others") as refused:
            presets.load(str(path), [])
        assert refused.value.hint == f"chmod go-w {path}"
    path.chmod(0o644)
    assert presets.load(str(path), []).variables
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(UsageError, match="belongs to user 12345"):
            presets.load(str(path), [])
