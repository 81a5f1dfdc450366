"""What a hook is made of and what it may give. Pure types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from nvrun.errors import NvrunError
from nvrun.facts import HostFacts
from nvrun.model import EnvVar, Finding, Frozen, RunResult
from nvrun.plan import Echoed, HostPlan, LastCommand, Plan


class HookFailed(NvrunError):
    """A before-part that cannot do its work: the run does not start (exit 78, as a preflight that refuses)."""

    exit_code = 78


class Option(NamedTuple):
    """Metadata of one field of a hook's `Options`."""

    read: Callable[[str], Any]
    """Text -> value; ValueError saying what was expected (`nvrun.options` has readers)."""
    metavar: str
    """What stands for the value in the help."""
    help: str


class Contribution(Frozen, frozen=True, kw_only=True):
    """What a hook adds to the plan, before anything runs."""

    env: Mapping[int, tuple[EnvVar, ...]] = {}
    """Node -> variables of all its ranks; the user's own values win."""
    prefix: Mapping[int, tuple[str, ...]] = {}
    """Rank -> what stands before its program, behind numactl; `env NAME=VALUE` for variables of the hook's own."""
    last: Mapping[int, tuple[LastCommand, ...]] = {}
    """Rank -> commands that its host runs while the rank still lives, before it is told to end."""
    echo: Mapping[int, tuple[Echoed, ...]] = {}
    """Node -> lines of log files there that the console shows too."""
    findings: tuple[Finding, ...] = ()

    def __add__(self, other: Contribution) -> Contribution:
        """Both; a later hook's prefix stands behind an earlier one's."""
        return Contribution(
            env=_joined(self.env, other.env),
            prefix=_joined(self.prefix, other.prefix),
            last=_joined(self.last, other.last),
            echo=_joined(self.echo, other.echo),
            findings=(*self.findings, *other.findings),
        )


def _joined(one: Mapping[int, tuple[Any, ...]], two: Mapping[int, tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    return {key: (*one.get(key, ()), *two.get(key, ())) for key in (*one, *two)}


class Completed(Frozen, frozen=True, kw_only=True):
    """How a command ended on one host."""

    host: str
    code: int | None = None
    """Exit status, -n for signal n; None where it never ran or nobody knows, and then `trouble` says why."""
    stdout: str = ""
    stderr: str = ""
    cut_bytes: int = 0
    """Output beyond the limit of 64 KiB a stream."""
    seconds: float = 0.0
    trouble: str = ""
    """Why it could not be run, or did not end in time."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.trouble

    @property
    def words(self) -> str:
        """How it failed, in one line with the last thing it said."""
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()[-1:]
        how = self.trouble or f"exit code {self.code}"
        return f"{how}: {said[0][:200]}" if said else how


class Job(Protocol):
    """The job as a hook sees it."""

    findings: list[Finding]
    """What hooks have found so far."""
    facts: Mapping[int, HostFacts]
    """Node -> what its host was like before the launch; empty in a before-part."""
    result: RunResult | None
    """How it ended; None in a before-part, and where it never got to an end."""

    @property
    def plan(self) -> Plan:
        """In a before-part without bindings and variables, which come with the facts."""

    def on_hosts(
        self,
        argv: Sequence[str],
        *,
        hosts: Collection[str] | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        program: bytes | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Completed]:
        """Host -> how the command ended there; all hosts at once, in the job's directory and environment.

        It is told NVRUN_RUN_ID, NVRUN_HOST, NVRUN_NODE_RANK, NVRUN_NODE_COUNT, NVRUN_RANKS (on that host),
        NVRUN_FOLDER (the host's log folder), NVRUN_PYTHON (the job's interpreter), and in an after-part
        NVRUN_EXIT_CODE and NVRUN_ENDED_BY. `program` takes argv[0]'s place: it travels along, into a folder of its
        own. Nothing is raised for a command that fails; `timeout` is in seconds.
        """

    def look(self) -> dict[int, HostFacts]:
        """Node -> facts read anew, of the hosts that answer."""

    def changes(self) -> Sequence[Finding]:
        """In an after-part: what is no longer on the hosts as it was before the launch. After a failure nvrun has
        looked at the hosts concerned by itself, and tells of those in `result.changed`: only the others are looked at
        here."""

    def say(self, line: str) -> None:
        """A line on the console."""

    def warn(self, message: str, *, host: str | None = None) -> None:
        """A finding that changes nothing of how the job ended."""

    def find(self, finding: Finding) -> None:
        """A finding for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A hook with its options, ready to run."""

    name: str
    source: str
    """Its file."""
    settings: Any = None
    contribute: Callable[[Plan, Mapping[int, HostFacts], Any], Contribution] | None = None
    wrap: Callable[[Plan, Any], Mapping[int, Sequence[str]]] | None = None
    around: Callable[[Job, Any], Generator[None, None, None] | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A hook as `nvrun hooks` lists it."""

    name: str
    source: str
    kind: str
    """`python` or `executable`."""
    help: str
    default: bool
    """It runs unless `--hook none`."""
    options: Mapping[str, Option] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    """All that its docstring says."""


def log_folder(host: HostPlan, plan: Plan) -> str:
    """Where a host's logs go, as that host names it; in a plan alone the name it would have."""
    return host.folder or f"nvrun-runs/{plan.run_id}/logs/{host.host.name}"


def asked(plan: Plan, ranks: Sequence[int] | str) -> list[tuple[HostPlan, int]]:
    """`chosen`; none where the nvrun of another node has them. HookFailed where the job has none of them."""
    wanted = chosen(plan, ranks)
    if not wanted and plan.whole:
        raise HookFailed(f"ranks: the job has {plan.world_size} ranks, none of them chosen")
    return wanted


def chosen(plan: Plan, ranks: Sequence[int] | str) -> list[tuple[HostPlan, int]]:
    """(host, rank) of the ranks that an option named; those that the run does not have are passed over."""
    return [(host, rank.rank) for host in plan.hosts for rank in host.ranks if ranks == "all" or rank.rank in ranks]
