"""nvrun's subcommands beside running a job: a module each with `run`. They compute text; `cli` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Said(NamedTuple):
    """What a command has to say."""

    text: str
    """For standard output."""
    exit_code: int = 0


class Flag(NamedTuple):
    """A flag that only one command has; its value is in `Invocation.flags`."""

    name: str
    """`--explain`."""
    metavar: str
    """What stands for the value in the help; empty for a switch."""
    help: str


MANNERS = frozenset(("json", "grace"))
"""Settings that change how a command answers, and not what it is about."""


class Command(NamedTuple):
    """How a command is called."""

    help: str
    """One line."""
    words: str | None = None
    """What follows it, as the help shows it, with flags anywhere; the words are `Invocation.words`. None: flags and
    then a program, as without a command."""
    flags: tuple[Flag, ...] = ()
    settings: tuple[str, ...] = ("json",)
    """nvrun's settings that a command without a program takes; the others would have no meaning there."""

    @property
    def own_flags(self) -> Mapping[str, bool]:
        """Its own flags -> whether they take a value."""
        return {flag.name: bool(flag.metavar) for flag in self.flags}

    @property
    def takes(self) -> frozenset[str] | None:
        """Names of nvrun's settings that are read for it, from wherever; None: all."""
        return None if self.words is None else frozenset(self.settings)

    @property
    def configured(self) -> bool:
        """Without its settings it would be about other hosts or files than the user means: a configuration file with
        a mistake stops it. The others work without."""
        return self.takes is None or not self.takes <= MANNERS


REACH = (
    *("hosts", "hostfile", "exclude", "nodes"),
    *("fleet", "rsh", "ssh", "ssh-config", "connect-timeout", "python", "setup", "in", "chdir"),
)
"""Settings that say which hosts are meant and how they are reached."""

COMMANDS: dict[str, Command] = {
    "check": Command(
        "look at the hosts and judge them, without running anything",
        flags=(
            Flag("--list", "", "all checks and the findings they can have"),
            Flag("--checklist", "", "ten lines: each ok, failed or not checked, and why"),
            Flag("--prometheus", "FILE", "write the verdict as metrics for node_exporter's textfile collector"),
        ),
    ),
    "plan": Command(
        "what would run: ranks, bindings, variables",
        flags=(
            Flag("--topo", "FILE|-", "on a machine of which only nvidia-smi topo -m, or NCCL's topology XML, is known"),
        ),
    ),
    "facts": Command("what the hosts are like, as JSON or in short"),
    "hosts": Command("which hosts, which mode, and why"),
    "env": Command(
        "NCCL's variables: what holds on each host and who set it",
        flags=(
            Flag("--list", "", "every variable that is known, with its default and what it takes"),
            Flag("--explain", "NAME", "all that is known of one variable"),
        ),
    ),
    "lint": Command(
        "mistakes in variables and job scripts",
        "[FILE ...]",
        (Flag("--nccl", "VERSION", "the NCCL that will be loaded, as 2.28.9: what it reads differently is said too"),),
        ("from", "json"),
    ),
    "hooks": Command("hooks that there are, from where, and what they take", "[show NAME|PATH ...]"),
    "presets": Command(
        "NCCL presets that there are, and what they set", "[show NAME|PATH ...]", (), ("preset-path", "from", "json")
    ),
    "topo": Command(
        "GPUs, NICs and NUMA nodes as a tree",
        "",
        (Flag("--topo", "FILE|-", "draw the output of nvidia-smi topo -m, or NCCL's topology XML, - for stdin"),),
        (*REACH, "from", "json"),
    ),
    "explain": Command("a finding's code: what was read, why it matters, how to mend it", "CODE ..."),
    "diagnose": Command("the cause in any logs of a failed job (the latest run's)", "[PATH|RUN ...]"),
    "bundle": Command(
        "a run as one archive, secrets masked",
        "[RUN]",
        (Flag("--output", "FILE", "where to write it (./nvrun-RUN.tar.gz)"),),
    ),
    "nccl": Command("what NCCL chose in a run (the latest), and what that costs", "[PATH|RUN ...]"),
    "profile": Command("where the time of profiled steps went, and what to change", "[PATH|RUN ...]"),
    "bench": Command(
        "collectives timed and checked, against the links' limit",
        flags=(
            Flag("--sizes", "LIST|A:B", "message sizes: 8:8G (default), 8:8G:2 (a factor), 1M,25M"),
            Flag("--collectives", "LIST", "as all-reduce,all-to-all; without it all six are timed"),
            Flag("--overlap", "", "then again beside a matrix product: what each costs the other"),
            Flag("--compare", "", "two environments in turn, last on the line: default, PRESET or 'NAME=VALUE ...'"),
            Flag("--pairs", "N", "with --compare: how often each runs (10)"),
            Flag("--plot", "FILE", "the curves as a picture, by matplotlib"),
        ),
    ),
    "tune": Command(
        "search NCCL settings for a job's message sizes",
        flags=(
            Flag("--messages", "LIST", "messages of a step, all-reduce:25MiB*40,...; or --model-size N: DDP's"),
            Flag("--trace", "FILE", "messages as torch.profiler's Chrome trace has them"),
            Flag("--budget", "SECONDS", "time for the search, about (600)"),
        ),
    ),
    "report": Command("a run as one HTML page that opens offline; two runs side by side", "[RUN [RUN]]"),
    "top": Command("GPUs, NICs and ranks of a run, live", "[RUN]"),
    "runs": Command("runs of this user, the newest first", ""),
    "stop": Command("end a run on all its hosts (the only one that runs)", "[RUN]", (), ("grace", "json")),
    "clean": Command("remove what ended runs left on hosts", "", (), (*REACH, "dry-run", "json")),
    "completion": Command(
        "shell completion: bash, zsh or fish",
        "bash|zsh|fish",
        (Flag("--names", "presets|hooks|codes|runs", "what the scripts complete with: those there are, one a line"),),
        (),
    ),
}
"""By name. A module `nvrun.commands.<name>` exists for each."""
