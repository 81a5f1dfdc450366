"""The commands that reach hosts."""

from __future__ import annotations

import itertools

import pytest

from nvrun.errors import UsageError
from nvrun.fleet import openssh
from nvrun.fleet.routes import choose, routes, rsh_argv, srun_argv
from nvrun.fleet.start import COMMAND, Start, quoted
from nvrun.model import Host

START = Start(pythons=("python3",))


def test_openssh_call() -> None:
    call = openssh.argv(Host(name="gpu1", user="ada", port=2222), COMMAND, timeout=4.5, config="/c")
    assert call[:2] == ["ssh", "-T"]
    assert call[-3:] == ["--", "gpu1", "exec " + quoted(COMMAND)]
    options = {word for flag, word in itertools.pairwise(call) if flag == "-o"}
    assert {"BatchMode=yes", "ConnectTimeout=5"} <= options
    assert " ".join(["-F", "/c", "-l", "ada", "-p", "2222"]) in " ".join(call)
    assert not any("ControlPath" in word or "ControlMaster" in word for word in call)  # the user's own are used


@pytest.mark.parametrize(
    ("template", "argv"),
    [
        ("kubectl exec -i {host} --", ["kubectl", "exec", "-i", "pod-1", "--", *COMMAND]),
        ("docker exec -i {host}", ["docker", "exec", "-i", "pod-1", *COMMAND]),
        ("ssh -A {host}", ["ssh", "-A", "pod-1", quoted(COMMAND)]),
        ("su - ada -c {command}", ["su", "-", "ada", "-c", quoted(COMMAND)]),
    ],
)
def test_rsh(template: str, argv: list[str]) -> None:
    assert rsh_argv(template, "pod-1", COMMAND) == argv


def test_srun_is_one_step_for_all() -> None:
    argv = srun_argv(["n1", "n2"], {"SLURM_CPUS_ON_NODE": "64"})
    assert {
        "--nodes=2",
        "--nodelist=n1,n2",
        "--cpus-per-task=64",
        "--overlap",
        "--kill-on-bad-exit=0",
        "--no-kill",
    } <= set(argv)
    made = routes([Host(name="n1"), Host(name="n2")], ["srun", "srun"], START, environment={})
    assert len(made) == 1
    assert made[0].names == {"n1": 0, "n2": 1}


@pytest.mark.parametrize(
    "name",
    ["-oProxyCommand=touch /tmp/x", "a;b", "a b", "$(id)", "`id`", "a\nb", "a|b", "a&b", "a'b", 'a"b', "", "a>b"],
)
def test_names_that_a_command_line_could_take_for_something_else(name: str) -> None:
    for host in (Host(name=name), Host(name="gpu1", user=name)):
        with pytest.raises(UsageError):
            routes([host], ["rsh"], START, environment={}, rsh="ssh {host}")


@pytest.mark.parametrize("name", ["gpu-1", "gpu_1.cluster", "10.0.0.1", "fd77::1", "fe80::1%eth0", "pod/x", "büro"])
def test_names_that_hosts_have(name: str) -> None:
    assert len(routes([Host(name=name)], ["rsh"], START, environment={}, rsh="ssh {host}")) == 1


def test_ways_to_hosts() -> None:
    hosts = [Host(name="127.0.0.1"), Host(name="127.0.0.1", user="ada"), Host(name="192.0.2.1")]
    assert choose(hosts, None, None, in_slurm=False) == ("local", "ssh", "ssh")
    assert choose(hosts, None, None, in_slurm=True) == ("srun",) * 3
    assert choose(hosts, "ssh", None, in_slurm=True) == ("ssh",) * 3
    assert choose(hosts, None, "rsh {host}", in_slurm=True) == ("rsh",) * 3
    with pytest.raises(UsageError):
        choose(hosts, "ssh", "rsh {host}", in_slurm=False)
    with pytest.raises(UsageError):
        choose(hosts, "local", None, in_slurm=False)
