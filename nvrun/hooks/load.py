"""`--hook NAME|PATH[:option=value,...]` -> `Hook`: found, who may write it checked, read, its options understood."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

from nvrun import shipped, xdg
from nvrun.errors import UsageError
from nvrun.hooks.executable import executable
from nvrun.hooks.model import Hook, Option, Shown
from nvrun.model import Frozen
from nvrun.textfile import written_by_others

DEFAULT = ("nccl-debug", "flight-recorder")
"""Hooks that run unasked; `--hook none` leaves them out."""
MAX_BYTES = 1 << 20
"""Of a hook's file: it travels in one message."""

_WORD = re.compile(r"(?s)(?P<name>.+?)(?::(?P<options>[a-z][a-z0-9_-]*=.*))?")
_NEXT_OPTION = re.compile(r",(?=[a-z][a-z0-9_-]*=)")


class Wanted(NamedTuple):
    """One `--hook` as written."""

    name: str
    options: Mapping[str, str]
    text: str


def wanted(texts: Sequence[str]) -> list[Wanted]:
    """What shall run, in order: the default ones first, unless `none` is among `texts` or they are named themselves."""
    named = [read(text) for text in texts if text != "none"]
    names = [each.name for each in named]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--hook {name} is given twice", hint="options go together: NAME:one=1,two=2")
    unasked = [] if "none" in texts else [Wanted(name, {}, name) for name in DEFAULT if name not in names]
    return [*unasked, *named]


def read(text: str) -> Wanted:
    """`nsys:ranks=0,4-7,capture=api`: a comma begins a new option only where `name=` follows it."""
    found = _WORD.fullmatch(text)
    assert found is not None
    options: dict[str, str] = {}
    for part in _NEXT_OPTION.split(found["options"]) if found["options"] else ():
        name, _, value = part.partition("=")
        if name in options:
            raise UsageError(f"--hook {text}: {name} is given twice")
        options[name] = value
    return Wanted(found["name"], options, text)


def load(texts: Sequence[str], environ: Mapping[str, str]) -> tuple[Hook, ...]:
    """The hooks of a run. UsageError for one that is not there, that others could have written, that does not import,
    or an option that it does not have."""
    return tuple(_hook(each, *find(each.name, environ)) for each in wanted(texts))


def folders(environ: Mapping[str, str]) -> list[Path]:
    """Where hooks are looked for by name: the user's own, then those that come with nvrun. Never the working
    directory: nothing runs because it lies there."""
    return [xdg.config(environ) / "hooks", shipped.folder("hooks")]


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of the hooks in a folder."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.suffix in ("", ".py", ".sh") and not path.name.startswith((".", "_")):
            yield path.stem.replace("_", "-"), path


def find(name: str, environ: Mapping[str, str]) -> tuple[Path, bytes]:
    """The hook's file and what is in it. A word with a slash is a path."""
    if "/" in name:
        path = Path(environ["HOME"], name[2:]) if name.startswith("~/") and "HOME" in environ else Path(name)
        return path, _text(path, trusted=False)
    known: dict[str, Path] = {}
    for folder in folders(environ):
        for each, path in files(folder):
            known.setdefault(each, path)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"there is no hook {name}{meant}", hint="nvrun hooks lists them; a path has a slash: ./my-hook"
        )
    return known[name], _text(known[name], trusted=known[name].parent == shipped.folder("hooks"))


def listing(environ: Mapping[str, str]) -> list[Shown]:
    """All hooks that a name stands for."""
    known: dict[str, Shown] = {}
    for folder in folders(environ):
        for name, path in files(folder):
            if name not in known:
                known[name] = shown(name, path, _text(path, trusted=folder == shipped.folder("hooks")))
    return [known[name] for name in sorted(known)]


def shown(name: str, path: Path, data: bytes) -> Shown:
    """What a hook's file says of itself."""
    if path.suffix != ".py":
        comments = [line[1:].strip() for line in data.decode(errors="replace").splitlines() if line.startswith("#")]
        about = "\n".join(line for line in comments if not line.startswith("!"))
        return Shown(
            name=name, source=str(path), kind="executable", help=about.split("\n")[0], default=False, about=about
        )
    module = _module(name, path, data)
    about = inspect.getdoc(module) or ""
    return Shown(
        name=name,
        source=str(path),
        kind="python",
        help=about.split("\n")[0],
        default=name in DEFAULT,
        options=_options(module),
        defaults={each: getattr(module.Options(), each) for each in _options(module)},
        about=about,
    )


def _hook(asked: Wanted, path: Path, data: bytes) -> Hook:
    where = f"--hook {asked.text}"
    name = asked.name if "/" not in asked.name else path.stem.replace("_", "-")
    if path.suffix != ".py":
        ours = path.parent == shipped.folder("hooks")
        if not ours and not os.access(path, os.X_OK):
            raise UsageError(f"{where}: {path} is neither a Python file (.py) nor executable", hint=f"chmod +x {path}")
        return Hook(name=name, source=str(path), around=executable(name, data, asked.options, where).around)
    module = _module(name, path, data)
    hook = Hook(
        name=name,
        source=str(path),
        settings=_settings(module, asked.options, where),
        contribute=getattr(module, "contribute", None),
        wrap=getattr(module, "wrap", None),
        around=getattr(module, "around", None),
    )
    if not (hook.contribute or hook.wrap or hook.around):
        raise UsageError(f"{where}: {path} has none of contribute, wrap, around", hint="hooks/README.md shows a hook")
    return hook


def _module(name: str, path: Path, data: bytes) -> ModuleType:
    """The file as a module of its own, out of the bytes that were checked."""
    module = ModuleType("nvrun_hook_" + name.replace("-", "_"))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where type hints of its classes are looked up
    try:
        exec(compile(data, str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {error.msg}") from None
    except Exception as error:  # noqa: BLE001 - a hook's own code: whatever it raises, the user is told where
        line = _line_in(error, str(path))
        raise UsageError(f"{path}{line}: {type(error).__name__}: {error}") from None
    return module


def _line_in(error: BaseException, path: str) -> str:
    lines = (
        [frame.lineno for frame in inspect.getinnerframes(error.__traceback__) if frame.filename == path]
        if (error.__traceback__)
        else []
    )
    return f":{lines[-1]}" if lines else ""


def _options(module: ModuleType) -> dict[str, Option]:
    kind = getattr(module, "Options", None)
    if kind is None:
        module.Options = Frozen  # type: ignore[attr-defined]  # what a hook without options is given
        return {}
    hints: Mapping[str, Any] = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def _settings(module: ModuleType, given: Mapping[str, str], where: str) -> Any:
    known = _options(module)
    values: dict[str, Any] = {}
    for name, text in given.items():
        field = name.replace("-", "_")
        if field not in known:
            names = ", ".join(each.replace("_", "-") for each in known) or "none"
            raise UsageError(f"{where}: there is no option {name}; there are: {names}")
        try:
            values[field] = known[field].read(text)
        except ValueError as error:
            raise UsageError(f"{where}: {name}: expected {error}, got {text!r}") from None
    return module.Options(**values)


def _text(path: Path, *, trusted: bool) -> bytes:
    """The file's bytes; refused where somebody else could have written them. What came with nvrun is as trusted as
    nvrun itself."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
        folder = path.resolve().parent.stat()
    except OSError as error:
        raise UsageError(f"hook {path}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"hook {path}: not a file")
    if len(data) > MAX_BYTES:
        raise UsageError(f"hook {path}: longer than {MAX_BYTES >> 20} MiB")
    if not trusted:
        for what, found in ((path, status), (path.resolve().parent, folder)):
            if why := written_by_others(found):
                raise UsageError(f"hook {path} is refused: {what} {why}", hint=f"chmod go-w {what}")
    return data
