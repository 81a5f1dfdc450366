"""Slurm's node lists: our own cases, every recorded one, and the real `scontrol show hostnames`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrun.errors import UsageError
from nvrun.hosts import nodeset

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[001-003,010]", "n001 n002 n003 n010"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-010]", "n8 n9 n10"),
        ("n[5,1,3]", "n5 n1 n3"),
        ("login, n[1-2] ,x", "login n1 n2 x"),
        ("n[1-3,3-4]", "n1 n2 n3 n4"),
        ("r[1-2]n[9-10]", "r1n9 r1n10 r2n9 r2n10"),
        ("n[1-2]-ib", "n1-ib n2-ib"),
        ("v7-0[1-2].site", "v7-01.site v7-02.site"),
    ],
)
def test_a_list_is_expanded_in_its_own_order(text: str, names: str) -> None:
    assert nodeset.expand(text, "x") == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n[5-1]", "runs backwards"),
        ("n[1-2", "brackets do not match"),
        ("n1-2]", "brackets do not match"),
        ("n[[1]]", "brackets do not match"),
        ("n[]", "expected numbers"),
        ("n[1,]", "expected numbers"),
        ("n[a-b]", "expected numbers"),
        ("n[0-9/3]", "expected numbers"),
        ("n[0-99999999]", "more than 65536 hosts"),
        ("n[1-300]m[1-300]", "more than 65536 hosts"),
        ("@group", "no host name"),
        ("-oProxyCommand=x", "no host name"),
        ("a b", "no host name"),
        ("", "names no host"),
        (" , ", "names no host"),
    ],
)
def test_what_is_no_list_is_refused_with_its_source(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        nodeset.expand(text, "SLURM_JOB_NODELIST")
    assert error.value.message.startswith("SLURM_JOB_NODELIST: ")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab12[]-,. @!^", max_size=14) | st.text(max_size=8))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert nodeset.expand(text, "x")


@pytest.mark.parametrize(
    ("text", "numbers"), [("4", (4,)), ("2(x3),1", (2, 2, 2, 1)), ("64,64", (64, 64)), ("72(x2),36", (72, 72, 36))]
)
def test_counts(text: str, numbers: tuple[int, ...]) -> None:
    assert nodeset.counts(text, "x") == numbers


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="12(x),", max_size=10))
def test_any_counts_are_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        nodeset.counts(text, "x")
    with pytest.raises(UsageError, match="expected counts"):
        nodeset.counts("1(x99999999)", "x")


def test_names_are_folded() -> None:
    names = [f"gpu{number:03d}" for number in range(17, 0, -1)]
    assert nodeset.fold([*names, "login"]) == "gpu[001-017],login"
    assert nodeset.fold(["fe80::1", "a2", "a1", "a2"]) == "a[1-2],fe80::1"
    assert nodeset.fold([]) == ""


_NAMES = st.lists(st.from_regex(r"[a-z]{1,3}(0{0,2}[0-9]{1,3})?(-ib)?", fullmatch=True), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(_NAMES)
def test_what_was_folded_expands_to_the_same_names(names: list[str]) -> None:
    assert set(nodeset.expand(nodeset.fold(names), "x")) == set(names)


def scontrol(text: str, conf: Path) -> list[str] | None:
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout.split() if done.returncode == 0 and not done.stderr.strip() else None


_RANGES = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)).map(
        lambda r: f"{r[0]:0{r[2]}d}" + (f"-{r[0] + r[1]:0{r[2]}d}" if r[1] else "")
    ),
    min_size=1,
    max_size=3,
).map(lambda ranges: f"[{','.join(ranges)}]")
_LISTS = st.lists(
    st.tuples(st.sampled_from(["n", "gpu-", "r1c"]), st.lists(_RANGES, max_size=2)).map(lambda e: e[0] + "".join(e[1])),
    min_size=1,
    max_size=3,
).map(",".join)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's scontrol is not installed")
@settings(max_examples=40, deadline=None)
@given(text=_LISTS)
def test_generated_lists_are_what_scontrol_makes_of_them(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    conf = tmp_path_factory.getbasetemp() / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=localhost\n")
    names = scontrol(text, conf)
    assert names is not None
    assert list(nodeset.expand(text, "x")) == list(dict.fromkeys(names))


def _recorded() -> list[tuple[str, str, str]]:
    """(file, expression, what is known about it) of every recorded node list."""
    index = CORPUS / "index.tsv"
    if not index.exists():
        return []
    rows = (line.split("\t") for line in index.read_text().splitlines()[1:])
    facts = {row[0]: row[4] for row in rows if len(row) > 4}
    found = []
    for path in sorted((CORPUS / "slurm").glob("*.txt")):
        for line in path.read_text().splitlines():
            name, _, value = line.partition("=")
            if name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"):
                found.append((path.name, value, facts.get(f"slurm/{path.name}", "")))
    return found


@pytest.mark.skipif(not CORPUS.exists(), reason="no recorded lists beside the checkout")
@pytest.mark.parametrize(("file", "text", "known"), _recorded())
def test_recorded_lists(file: str, text: str, known: str) -> None:
    """Against the facts noted for the file, ClusterShell's set, and scontrol where it takes the list."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    if "expected outcome: error" in known:
        with pytest.raises(UsageError):
            nodeset.expand(text, file)
        return
    names = nodeset.expand(text, file)
    if "distinct)" in known:
        count, first, last = (
            known.split("distinct), first ")[0].rsplit("(", 1)[1],
            *known.split(", first ")[1].split(" last "),
        )
        assert len(names) == int(count)
        assert names[0] == first
        assert last in names  # the facts sort
    if "0003-5" not in text:  # ClusterShell refuses a range whose ends have different widths
        assert set(names) == set(NodeSet(text.replace(" ", ""), resolver=RESOLVER_NOGROUP))
