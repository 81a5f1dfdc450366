"""Layering: what the user set holds whatever presets and nvrun offer, and every value says who set it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrun import facts, presets, shipped
from nvrun.environment import (
    Chosen,
    Resolved,
    automatic,
    conf_variables,
    from_user,
    notices,
    resolve,
    rows,
    setting_of,
    settings,
)
from nvrun.errors import UsageError
from nvrun.model import EnvVar, Severity
from nvrun.nccl import catalogue
from nvrun.nccl.lint import lint_settings
from nvrun.nccl.setting import Setting
from nvrun.preset_file import Preset

ALL = presets.load_all([shipped.folder("presets")])
MACHINES = {
    path.stem: facts.from_json(path.read_bytes())
    for path in sorted((Path(__file__).parent / "data/facts").glob("*.json"))
}
VERSIONS = {"nccl": "2.30.7", "torch": "2.13.0"}
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
EVERYTHING = automatic(
    interface=Chosen(value="eth0", why="carries the route to the other hosts"),
    hcas=Chosen(value="mlx5_0,mlx5_1", why="share a switch with a GPU"),
)


def var(name: str, value: str, source: str = "preset p") -> EnvVar:
    return EnvVar(name=name, value=value, source=source)


def from_presets(chosen: Sequence[Preset]) -> list[EnvVar]:
    return [each for preset in chosen for each in presets.variables(preset, versions=VERSIONS, run_dir="/runs/1")]


HOSTILE = [var(name, "2" if value == "0" else "0", "preset hostile") for name, value in MULTICAST_OFF.items()]
"""Somebody's preset that would switch multicast on: even that leaves the user's values."""


def values(resolved: Sequence[Resolved]) -> dict[str, str]:
    return {each.variable.name: each.variable.value for each in resolved}


def in_layer(layer: str, wanted: dict[str, str]) -> dict[str, Any]:
    """`wanted` as the argument of resolve() for that layer."""
    if layer == "host":
        return {layer: wanted}
    if layer == "conf_files":
        return {layer: {"/etc/nccl.conf": "".join(f"{name}={value}\n" for name, value in wanted.items())}}
    return {layer: [var(name, value, layer) for name, value in wanted.items()]}


USER_LAYERS = ("conf_files", "config", "host", "forwarded", "flags")


@pytest.mark.parametrize("layer", USER_LAYERS)
@pytest.mark.parametrize("preset", ALL, ids=lambda preset: preset.name)
def test_multicast_that_is_off_stays_off(preset: Preset, layer: str) -> None:
    found = resolve(automatic=EVERYTHING, presets=[*from_presets([preset]), *HOSTILE], **in_layer(layer, MULTICAST_OFF))
    assert MULTICAST_OFF.items() <= values(found).items()


@pytest.mark.parametrize("layer", USER_LAYERS)
def test_multicast_stays_off_under_every_pair_and_all_presets(layer: str) -> None:
    offered = {preset.name: from_presets([preset]) for preset in ALL}
    for chosen in (*combinations(offered, 2), offered, reversed(offered)):
        asked = [each for name in chosen for each in offered[name]]
        found = resolve(automatic=EVERYTHING, presets=[*asked, *HOSTILE], **in_layer(layer, MULTICAST_OFF))
        assert MULTICAST_OFF.items() <= values(found).items()


@pytest.mark.parametrize("machine", MACHINES)
def test_multicast_stays_off_under_auto(machine: str) -> None:
    for count in (1, 2):
        chosen = [fit.preset for fit in presets.fitting(ALL, MACHINES[machine][:1] * count) if not fit.reason]
        found = resolve(automatic=EVERYTHING, presets=[*from_presets(chosen), *HOSTILE], host=MULTICAST_OFF)
        assert MULTICAST_OFF.items() <= values(found).items()


def test_nobody_switches_multicast_on_unasked() -> None:
    for chosen in (*([preset] for preset in ALL), ALL):
        found = values(resolve(automatic=EVERYTHING, presets=from_presets(chosen)))
        assert "NCCL_NVLS_ENABLE" not in found
        assert "TORCH_SYMM_MEM_DISABLE_MULTICAST" not in found


_NAMES = st.sampled_from(
    ["NCCL_NVLS_ENABLE", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_IB_DISABLE", "A"]
)
_LAYER = st.dictionaries(_NAMES, st.sampled_from("0123"), max_size=4)


@given(st.lists(_LAYER, max_size=3), st.dictionaries(st.sampled_from(USER_LAYERS), _LAYER))
def test_user_wins_whatever_presets_say(offered: list[dict[str, str]], layers: dict[str, dict[str, str]]) -> None:
    """Even against somebody's own presets: the highest user layer holds, in the order of the layers."""
    arguments: dict[str, Any] = {}
    expected: dict[str, str] = {}
    for layer in USER_LAYERS:
        arguments |= in_layer(layer, layers.get(layer, {}))
        expected |= layers.get(layer, {})
    found = resolve(presets=[var(name, value) for each in offered for name, value in each.items()], **arguments)
    assert expected.items() <= values(found).items()
    taken = {setting_of(name) for name in expected}
    for each in found:
        assert each.variable.name in expected or setting_of(each.variable.name) not in taken
        assert all((offer.name, offer.value) != (each.variable.name, each.variable.value) for offer in each.overrode)


def test_order_of_layers() -> None:
    found = resolve(
        automatic=[var("A", "1", "nvrun")],
        presets=[var("A", "2"), var("A", "3", "preset q")],
        conf_files={"/etc/nccl.conf": "A=4\n"},
        config=[var("A", "5", "nvrun.yaml:7")],
        host={"A": "6"},
        forwarded=[var("A", "7", "forwarded")],
        flags=[var("A", "8", "--env")],
    )
    (only,) = found
    assert only.variable.value == "8"
    assert [offer.value for offer in only.overrode] == ["1", "2", "3", "4", "5", "6", "7"]


def test_later_preset_wins_over_earlier_and_over_nvrun() -> None:
    (only,) = resolve(automatic=[var("A", "1", "nvrun")], presets=[var("A", "2"), var("A", "3", "preset q")])
    assert (only.variable.value, only.variable.source, only.set_by_nvrun) == ("3", "preset q", True)
    assert [offer.source for offer in only.overrode] == ["nvrun", "preset p"]


def test_another_name_of_the_same_setting() -> None:
    old = {
        "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
        "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    }
    for theirs, ours in old.items():
        (only,) = resolve(presets=[var(ours, "9")], host={theirs: "1"})
        assert (only.variable.name, only.variable.value) == (theirs, "1")
        assert only.overrode == (var(ours, "9"),)
    (only,) = resolve(presets=[var("NCCL_MIN_NCHANNELS", "8"), var("NCCL_MIN_CTAS", "32", "preset q")])
    assert only.variable == var("NCCL_MIN_CTAS", "32", "preset q")


def test_every_setting_has_one_name() -> None:
    for name in catalogue.variables():
        assert setting_of(setting_of(name)) == setting_of(name)


def test_what_gives_way() -> None:
    found = values(resolve(presets=[var("NCCL_NET", "IB")], host={"NCCL_IB_DISABLE": "1"}))
    assert found == {"NCCL_IB_DISABLE": "1"}
    found = values(resolve(presets=[var("NCCL_NET", "IB"), var("NCCL_IB_DISABLE", "1", "preset ab-no-ib")]))
    assert found == {"NCCL_IB_DISABLE": "1"}
    found = values(resolve(automatic=EVERYTHING, forwarded=[var("NCCL_DEBUG", "WARN", "forwarded")]))
    assert found["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG_FILE" not in found, "the user's messages stay where he expects them"


def test_a_conf_file_holds_and_is_left_alone() -> None:
    (only,) = resolve(presets=[var("NCCL_IB_SL", "2")], conf_files={"/etc/nccl.conf": "# x\nNCCL_IB_SL=1\n"})
    assert (only.variable.value, only.variable.source, only.set_by_nvrun) == ("1", "/etc/nccl.conf:2", False)
    assert notices([only]) == ("NCCL_IB_SL stays 1 (/etc/nccl.conf:2); preset p would set NCCL_IB_SL=2",)


def test_lint_says_who_set_it() -> None:
    resolved = resolve(conf_files={"/etc/nccl.conf": "NCCL_IB_SL=1M\n"}, flags=[var("NCCL_IB_TC", "1K", "--env")])
    found = {each.subject: each for each in lint_settings(settings(resolved))}
    assert found["NCCL_IB_SL"].evidence == ("/etc/nccl.conf:1: NCCL_IB_SL=1M",)
    assert found["NCCL_IB_TC"].evidence == ("--env: NCCL_IB_TC=1K",)


def test_which_conf_file_nccl_reads() -> None:
    files = {
        "/etc/nccl.conf": "A=system\nB=system\nA=again\n",
        "/home/u/.nccl.conf": "A=home\nC=home\n",
        "/x.conf": "A=named\n",
    }
    home = {each.name: each.value for each in conf_variables(files, {})}
    assert home == {"A": "home", "B": "system", "C": "home"}
    named = {each.name: each.value for each in conf_variables(files, {"NCCL_CONF_FILE": "/x.conf"})}
    assert named == {"A": "named", "B": "system"}


def test_an_empty_value_is_the_users_too() -> None:
    (only,) = resolve(presets=[var("NCCL_ALGO", "Ring")], host={"NCCL_ALGO": ""})
    assert only.variable.value == ""
    assert "stays empty" in notices([only])[0]


def test_equal_values_override_nothing() -> None:
    (only,) = resolve(presets=[var("NCCL_IB_SL", "1")], host={"NCCL_IB_SL": "1"})
    assert (only.overrode, notices([only])) == ((), ())


def test_sizes_of_the_user_are_converted() -> None:
    assert from_user("NCCL_BUFFSIZE", "4MiB", "--env").value == "4194304"
    assert from_user("NCCL_BUFFSIZE", "4MiB", "--env").why == "written as 4MiB"
    assert from_user("MY_SIZE", "4M", "--env").value == "4M"
    with pytest.raises(UsageError, match="--env: NCCL_BUFFSIZE is a size in bytes"):
        from_user("NCCL_BUFFSIZE", "big", "--env")


def test_automatic_layer_holds_only_what_design_allows() -> None:
    found = {variable.name: variable.value for variable in EVERYTHING}
    assert found == {
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "PYTHONFAULTHANDLER": "1",
    }
    assert all(variable.source == "nvrun" and variable.why for variable in EVERYTHING)
    written = [Setting(name=name, value=value, where="nvrun") for name, value in found.items()]
    assert [each for each in lint_settings(written, nccl="2.30.7") if each.severity >= Severity.WARNING] == []
    assert [variable.name for variable in automatic()] == ["PYTHONFAULTHANDLER"]


def test_table_says_differences_between_hosts_twice() -> None:
    def host(interface: str, secret: str) -> tuple[Resolved, ...]:
        return resolve(
            automatic=automatic(interface=Chosen(value=interface, why="route")),
            presets=[var("NCCL_IB_SL", "2")],
            host={"NCCL_IB_SL": "1", "WANDB_API_KEY": secret},
        )

    table = rows({"n1": host("eth0", "x"), "n2": host("eth1", "y"), "n3": host("eth1", "z")})
    assert [(row.name, row.value, row.hosts, row.overrode) for row in table] == [
        ("GLOO_SOCKET_IFNAME", "eth0", ("n1",), ()),
        ("GLOO_SOCKET_IFNAME", "eth1", ("n2", "n3"), ()),
        ("NCCL_IB_SL", "1", (), ("2 (preset p)",)),
        ("NCCL_SOCKET_IFNAME", "=eth0", ("n1",), ()),
        ("NCCL_SOCKET_IFNAME", "=eth1", ("n2", "n3"), ()),
        ("PYTHONFAULTHANDLER", "1", (), ()),
    ]


def test_no_secret_stands_in_the_table_nor_in_what_was_overridden() -> None:
    own = resolve(
        host={"WANDB_API_KEY": "theirs", "NCCL_COMM_ID": "host:1"},
        forwarded=[var("WANDB_API_KEY", "mine", "forwarded")],
        config=[var("NCCL_COMM_ID", "https://ada:geheim@proxy", "nvrun.yaml:3")],
    )
    text = str(rows({"n1": own}))
    assert "WANDB_API_KEY" in text
    assert "NCCL_COMM_ID" in text
    assert not any(secret in text for secret in ("theirs", "mine", "geheim"))
