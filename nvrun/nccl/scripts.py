"""Where a job script, Dockerfile, YAML, Python or conf file sets variables, and to what. Pure: text in, settings out.

Nothing is run: a value that only running would tell (`$(...)`, `$X`) is marked as not known, and only its name judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from nvrun.nccl import parse
from nvrun.nccl.setting import Setting, Syntax

_NAME = (
    r"(?:(?:NCCL|TORCH|TORCHELASTIC|PYTORCH|OFI_NCCL|FI|GLOO|UCX|CUDA|NVSHMEM|HOROVOD|RDMAV)_[A-Za-z0-9_]+"
    r"|OMP_NUM_THREADS|MASTER_PORT|ENABLE_NCCL_HEALTH_CHECK)"
)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_WORD = r"(?:" + _QUOTED + r"|\$\{[^}]*\}|\$\([^)]*\)|\\.|[^\s;&|<>()\"'\\])*"
_ASSIGN = re.compile(rf"(?:(?<![\w$.{{/-])|(?<=\s-[ex]))[\"']?(?P<name>{_NAME})=(?P<value>{_WORD})")
_FLAG = re.compile(rf"(?<!\S)(?:-x\s*|-e\s*|--env[= ]\s*)(?P<quote>[\"'])(?P<name>{_NAME})=(?P<value>.*?)(?P=quote)")
_EXPORT_OPTION = re.compile(rf"--export[= ](?P<list>{_WORD})")
_CUT = re.compile(r"[ \t]+,")
_SETENV = re.compile(rf"\bsetenv\s+(?P<name>{_NAME})\s+(?P<value>{_WORD})")
_UNSET = re.compile(r"\b(?:unset|unsetenv)\s+(?P<names>[\w \t]+)")
_DOCKER_OLD = re.compile(rf"^\s*ENV\s+(?P<name>{_NAME})\s+(?P<value>\S.*)$")
_PYTHON = re.compile(
    rf"environ(?:\[\s*|\.setdefault\(\s*)[\"'](?P<name>{_NAME})[\"']\s*(?:\]\s*=|,)\s*(?P<value>{_QUOTED}|[^\s#)]+)"
)
_YAML_PAIR = re.compile(rf"^\s*-?\s*[\"']?(?P<name>{_NAME})[\"']?\s*:\s+(?P<value>{_QUOTED}|[^#\n]*?)\s*(?:#.*)?$")
_YAML_NAME = re.compile(rf"\bname:\s*[\"']?(?P<name>{_NAME})[\"']?(?P<rest>.*)$")
_YAML_VALUE = re.compile(rf"\bvalue:\s*(?P<value>{_QUOTED}|[^#,}}\n]*)")
_DEFAULT = re.compile(r"\$\{\w+:?[-=](?P<default>[^}]*)\}")


def settings_of(text: str, name: str) -> tuple[Setting, ...]:
    """Variables that the file sets, in its order, each with `name:line`. What the file unsets again is left out."""
    kind = kind_of(text, name)
    if kind == "conf":
        return tuple(
            Setting(name=variable, value=value, where=f"{name}:{line}", syntax="conf")
            for line, variable, value in parse.conf_lines(text)
        )
    found: list[Setting] = []
    for number, line in _logical_lines(text, kind):
        for match in _UNSET.finditer(line) if kind in ("shell", "csh") else ():
            gone = match["names"].split()
            found = [setting for setting in found if setting.name not in gone]
        for variable, raw in _assignments(line, kind):
            value, known = _value(raw)
            known = known and (kind != "python" or raw[0] in "\"'")  # any other expression is for Python to tell
            found.append(Setting(name=variable, value=value, where=f"{name}:{number}", syntax=kind, known=known))
    return tuple(found)


def kind_of(text: str, name: str) -> Syntax:
    """The language of a file, by its name and first line."""
    path = PurePath(name)
    first = text.split("\n", 1)[0]
    if path.name.lower().startswith(("dockerfile", "containerfile")) or path.suffix.lower() == ".dockerfile":
        return "docker"
    if path.suffix in (".yaml", ".yml"):
        return "yaml"
    if path.suffix == ".py" or ("python" in first and first.startswith("#!")):
        return "python"
    if path.suffix in (".conf", ".env") or path.name in (".env", ".nccl.conf"):
        return "conf"
    if path.suffix in (".csh", ".tcsh") or ("csh" in first and first.startswith("#!")):
        return "csh"
    return "shell"


def _logical_lines(text: str, kind: Syntax) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) with comments dropped and lines joined.

    A shell's continuation is joined, but each part keeps its own number: a `\\` at its end only means it goes on.
    YAML's `- name:` and `value:` on two lines become one.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        bare = _without_comment(line, kind)
        if (
            kind == "yaml"
            and (match := _YAML_NAME.search(bare))
            and "value" not in match["rest"]
            and number < len(lines)
        ):
            bare = f"{bare}, {lines[number].strip()}"
        yield number, bare.removesuffix("\\") if kind != "yaml" else bare


def _without_comment(line: str, kind: Syntax) -> str:
    if kind in ("shell", "csh") and re.match(r"#(SBATCH|SLURM|PBS|BSUB|\$)", line):
        return line
    kept: list[str] = []
    quote = ""
    for position, character in enumerate(line):
        if quote:
            quote = "" if character == quote and line[position - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character == "#" and (position == 0 or line[position - 1].isspace()):
            break
        kept.append(character)
    return "".join(kept)


def _assignments(line: str, kind: Syntax) -> Iterator[tuple[str, str]]:
    """(name, value as it is written) of each variable that the line sets."""
    if kind == "python":
        return ((match["name"], match["value"]) for match in _PYTHON.finditer(line))
    if kind == "yaml" and (pair := _yaml(line)):
        return iter([pair])
    if kind == "docker" and (old := _DOCKER_OLD.match(line)):
        return iter([(old["name"], old["value"])])
    return _shell(line)


def _yaml(line: str) -> tuple[str, str] | None:
    named = _YAML_NAME.search(line)
    value = _YAML_VALUE.search(line, named.end("name")) if named else None
    if named and value:
        return named["name"], value["value"].strip()
    pair = _YAML_PAIR.match(line)
    return (pair["name"], pair["value"]) if pair else None


def _shell(line: str) -> Iterator[tuple[str, str]]:
    for match in _SETENV.finditer(line):
        yield match["name"], match["value"]
    for match in _EXPORT_OPTION.finditer(line):  # srun and sbatch split this list at commas
        items = match["list"].strip("\"'").split(",")
        for item, following in zip(items, [*items[1:], "ALL"], strict=True):
            name, equals, value = item.partition("=")
            if equals and re.fullmatch(_NAME, name):
                cut = "=" not in following and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", following)
                yield name, value + "," * cut
    for match in _FLAG.finditer(line):
        yield match["name"], match["quote"] + match["value"] + match["quote"]
    rest = _FLAG.sub("", _EXPORT_OPTION.sub("", line))
    for match in _ASSIGN.finditer(rest):
        ends = bool(_CUT.match(rest, match.end()))  # `A=b , c`: the shell ends the value at the blank
        yield match["name"], match["value"] + "," * ends


def _value(raw: str) -> tuple[str, bool]:
    """(value, known) of a shell word: quotes removed, `${X:-default}` taken as its default."""
    raw = _DEFAULT.sub(lambda match: match["default"], raw)
    value = re.sub(
        r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|\\(.)", lambda m: next(g for g in m.groups() if g is not None), raw
    )
    return value, not re.search(r"[$`]|\{\{", value)
