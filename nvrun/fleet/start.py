"""How an agent is started on a host: one constant command, and what that command then reads. Pure.

The login shells of hosts differ (bash, tcsh, fish, ...), and what stands on a command line is in `ps` for everybody. So
every host gets the same `COMMAND`: a sh that takes its next line from standard input and runs it, byte by byte, so that
the agent's code behind it stays unread. That line wraps, from the outside in:

    bash, which sources --setup  ->  --in  ->  sh, which chooses the interpreter  ->  the loader of the agent

Each of them announces itself by a frame of stream `STAGE`, so that a host that hangs or dies tells where.

`--setup` is a file where the host has one of that name (`~/` is its home folder), otherwise shell text; it runs in the
job's working directory, without standard input, and its output is noise. It failed if it exits or its last command
fails. An interpreter that it puts in front of PATH comes before all others but that of `--python`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from nvrun.fleet.bundle import LOADER
from nvrun.model import Frozen

STAGE = b"s"
"""Stream of a frame whose payload says how far the start came (shell, setup, in, python), a space, and Slurm's name of
the node: srun's tasks share one stream."""

_SAY = r"""_nvrun_say() { printf '\n\002ffffs.%s %s\n' "$1" "${SLURMD_NODENAME-}"; }; """
_REFUSE = r"""_nvrun_refuse() { printf '\n\002ffffj.{"t":"refused","code":"%s","node":"%s","why":"%.700s"}\n'"""
_REFUSE += r""" "$1" "${SLURMD_NODENAME-}" "$2"; exit 1; }; """

_FIRST = ": nvrun; "
"""How the line that `COMMAND` reads begins: where a start file of the login shell has read it, another comes."""
COMMAND = (
    "sh",
    "-c",
    r'printf "\n\002ffffs.shell %s\n" "$SLURMD_NODENAME"; IFS= read -r line; '
    rf'case $line in "{_FIRST}"*) eval "$line";; *) printf '
    r'"\n\002ffffj.{\"t\":\"refused\",\"code\":\"host-input-read\",\"node\":\"%s\",\"why\":\"\"}\n" '
    r'"$SLURMD_NODENAME";; esac',
)

# $1 is the loader, the others are interpreters, best first: the first that has torch is taken, else the first there is.
# Its prefix's site-packages and PYTHONPATH are looked at by name; nothing is run for it.
_CHOOSE = """
_nvrun_say python;
code=$1; shift; any=;
has_torch() {
    for torch in "$1"/lib*/python3*/*-packages/torch "$1"/lib*/python3*/*-packages/torch-*.dist-info
                 "$1"/local/lib/python3*/*-packages/torch;
    do [ -e "$torch" ] && return 0; done; return 1;
};
on_path() { IFS=:; for folder in ${PYTHONPATH-}; do [ -e "$folder/torch" ] && return 0; done; return 1; };
for name; do
    path=$(command -v "$name" 2>/dev/null) && [ -x "$path" ] || continue;
    : "${any:=$path}";
    prefix=${path%/*}; prefix=${prefix%/*};
    { has_torch "$prefix" || (on_path); } && exec "$path" -I -c "$code";
done;
[ -z "$any" ] || exec "$any" -I -c "$code";
found=; IFS=:;
for folder in $PATH /usr/bin /usr/local/bin /opt/*/bin "$HOME"/*/bin; do
    for path in "$folder"/python "$folder"/python[23] "$folder"/python[23].[0-9] "$folder"/python[23].[0-9][0-9]; do
        case $found: in *" $path:"*) continue; esac;
        case $path in *[\\\\\\"]*) continue; esac;
        [ -x "$path" ] && found="$found $path:";
    done;
done;
_nvrun_refuse host-no-python "${found%:}"
"""

# $1 is the folder, $2 the setup, $3 whether its interpreter comes first, $4 where the interpreters begin.
_SETUP = """
_nvrun_say setup;
cd -- "$1" 2>/dev/null;
_nvrun_setup=$2; _nvrun_first=$3; _nvrun_at=$4; shift 4; _nvrun_run=("$@"); set --;
case $_nvrun_setup in "~/"*) _nvrun_setup=$HOME/${_nvrun_setup#"~/"}; esac;
_nvrun_before=$(type -P python3);
trap '_nvrun_refuse host-setup-failed "exit $?"' EXIT;
{ if [ -f "$_nvrun_setup" ]; then source "$_nvrun_setup"; else eval "$_nvrun_setup"; fi; } </dev/null >&2;
_nvrun_code=$?; set +eu; trap - EXIT;
[ $_nvrun_code = 0 ] || _nvrun_refuse host-setup-failed "exit $_nvrun_code";
_nvrun_now=$(type -P python3);
if [ "$_nvrun_first" ] && [ "$_nvrun_now" != "$_nvrun_before" ];
then _nvrun_run=("${_nvrun_run[@]:0:_nvrun_at}" "$_nvrun_now" "${_nvrun_run[@]:_nvrun_at}"); fi;
exec "${_nvrun_run[@]}"
"""

_IN = """
_nvrun_say in;
cd -- "$1" 2>/dev/null; shift;
command -v -- "$1" >/dev/null || _nvrun_refuse host-in-failed 'not there';
exec "$@"
"""

_NO_BASH = "command -v bash >/dev/null || _nvrun_refuse host-setup-failed 'no bash there'; "


class Start(Frozen, frozen=True, kw_only=True):
    """What is to be started on every host."""

    pythons: tuple[str, ...]
    """Interpreters in order of preference, by path or name."""
    named: bool = False
    """The user named the interpreter: nothing else is tried."""
    setup: str | None = None
    within: str | None = None
    """`--in`: shell words."""
    cwd: str = "/"
    """The job's working directory: that of `setup` and `within`, where the host has it."""
    by_hand: Mapping[str, str] = {}
    """Host -> what a person types before a command to run it there; `ssh NAME` where a host is not in it."""

    def there(self, host: str, command: str) -> str:
        """A command line for a remedy."""
        return f"{self.by_hand.get(host, f'ssh {shlex.quote(host)}')} {command}".strip()


def argv(start: Start) -> list[str]:
    """The agent's whole command, setup and all."""
    run = ["sh", "-c", _one_line(_SAY + _REFUSE + _CHOOSE), "nvrun", LOADER]
    if start.within:
        run = ["sh", "-c", _one_line(_SAY + _REFUSE + _IN), "nvrun", start.cwd, *shlex.split(start.within), *run]
    if start.setup:
        first = "" if start.named else "1"
        script = _one_line(_SAY + _REFUSE + _SETUP)
        setup = ["bash", "--noprofile", "--norc", "-c", script, "nvrun", start.cwd, start.setup, first, str(len(run))]
        run = [*setup, *run]
    return [*run, *start.pythons]


def line(start: Start) -> bytes:
    """What `COMMAND` reads first: one line of sh."""
    guard = _SAY + _REFUSE + _NO_BASH if start.setup else ""
    return f"{_FIRST}{guard}exec {' '.join(map(_word, argv(start)))}\n".encode()


def interpreters(environment: Mapping[str, str], wanted: str | None, own: str) -> tuple[str, ...]:
    """Interpreters to try, the best first: the user's word alone, else `own` (the launcher's), that of the launcher's
    active environment, python3."""
    if wanted:
        return (wanted,)
    active = [environment[name] + "/bin/python" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    return tuple(dict.fromkeys([own, *active, "python3"]))


def _word(text: str) -> str:
    """The text as one word of sh, on one line."""
    if "\n" not in text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f'"$(printf %b {shlex.quote(escaped)})"'


def _one_line(script: str) -> str:
    """Scripts above end their statements by `;`, so that lines can be joined."""
    return " ".join(script.split())


def quoted(words: Sequence[str]) -> str:
    """The command as text for a login shell of any kind."""
    return shlex.join(words)
