"""Enters a rank's interpreter to count optimizer steps, for the hooks torch-profiler and nsys.

Stands first on PYTHONPATH and goes away at once: off sys.path, out of the environment, and the site's own
sitecustomize runs as if this one were not there. Nothing is imported that the program does not import itself: the work
begins when it imports torch.optim. What fails here never fails the rank; a line on stderr says so.

    NVRUN_TORCH_PROFILER  JSON: wait, warmup, active (steps), repeat (cycles), folder, rank, stack, memory, shapes
    NVRUN_CUDA_RANGE      JSON: first, last: steps between which cudaProfilerStart and Stop are called

Stdlib only, Python >= 3.9.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any, Callable, Dict, List, Optional

_OPTIMIZER = "torch.optim.optimizer"
_AUTOGRAD_PROFILER = "torch.autograd.profiler"


class _When:
    """Waits on sys.meta_path for one module, and calls back when it has been imported."""

    def __init__(self, name: str, call: Callable[[Any], None]) -> None:
        self._name, self._call = name, call

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _never_fails(self._call, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _never_fails(call: Callable[..., None], *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - inside a user's rank: whatever it is, the rank goes on
        sys.stderr.write("nvrun: profiling is off in this rank: %s: %s\n" % (type(error).__name__, error))


class _Steps:
    """Counts the steps of the optimizer that steps first; others (a GAN's second) do not count."""

    def __init__(self, optimizers: Any, call: Callable[[int], bool]) -> None:
        self._call = call
        self._first: Any = None
        self._count = 0
        self._handle = optimizers.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) == self._first:
            self._count += 1
            _never_fails(self._tell)

    def _tell(self) -> None:
        going_on = False
        try:
            going_on = self._call(self._count)
        finally:
            if not going_on:
                self._handle.remove()


class _Profiler:
    """torch.profiler over the schedule; the trace is written when the last active step is over, or at exit.

    A process has one profiler: a second one cancels the first, whose end is then a crash. It is the script's where the
    script has one, so this one ends for good before the script's begins."""

    def __init__(self, wish: Dict[str, Any]) -> None:
        self._wish = wish
        self._profile: Any = None
        self._written: List[str] = []
        self._inside = False
        self._off = False

    def watch(self, autograd_profiler: Any) -> None:
        """Every session, torch.profiler's too, is an `autograd.profiler.profile`, made just before it begins."""
        profile = autograd_profiler.profile
        make = profile.__init__

        @functools.wraps(make)
        def made(session: Any, *arguments: Any, **keywords: Any) -> None:
            make(session, *arguments, **keywords)
            if not self._inside and getattr(session, "enabled", True):
                _never_fails(self._give_way)

        profile.__init__ = made

    def _give_way(self) -> None:
        if not self._off:
            self._off = True
            sys.stderr.write("nvrun: torch-profiler is off in this rank from here on: the script profiles itself\n")
            self._exit()
            os.makedirs(self._wish["folder"], exist_ok=True)
            with open(os.path.join(self._wish["folder"], "own.rank%d" % self._wish["rank"]), "w"):
                pass  # its name tells the launcher why there is no trace

    def stepped(self, count: int) -> bool:
        """The first call comes behind the first step, which is the one that allocates: it is never traced."""
        wish = self._wish
        if self._off:
            return False
        if self._profile is None:
            self._start()
            return True
        self._within(self._profile.step)
        if count - 1 < (wish["wait"] + wish["warmup"] + wish["active"]) * wish["repeat"]:
            return True
        self._exit()
        return False

    def _within(self, call: Callable[[], Any]) -> None:
        """`call`, which may make sessions of our own."""
        self._inside = True
        try:
            call()
        finally:
            self._inside = False

    def _start(self) -> None:
        import atexit

        from torch import profiler

        wish = self._wish
        schedule = profiler.schedule(
            wait=wish["wait"], warmup=wish["warmup"], active=wish["active"], repeat=wish["repeat"]
        )
        self._profile = profiler.profile(schedule=schedule, on_trace_ready=self._write, with_stack=wish["stack"],
                                         profile_memory=wish["memory"], record_shapes=wish["shapes"])  # fmt: skip
        self._within(self._profile.start)
        atexit.register(_never_fails, self._exit)

    def _exit(self) -> None:
        """Also of a job shorter than its schedule: what was recorded by now is written."""
        profile, self._profile = self._profile, None
        if profile is not None:
            self._within(profile.stop)

    def _write(self, profile: Any) -> None:
        wish = self._wish
        number = ".%d" % len(self._written) if wish["repeat"] > 1 else ""
        path = os.path.join(wish["folder"], "rank%d%s.pt.trace.json.gz" % (wish["rank"], number))
        part = path[: -len(".json.gz")] + ".part.json.gz"
        os.makedirs(wish["folder"], exist_ok=True)
        profile.export_chrome_trace(part)
        os.rename(part, path)
        self._written.append(path)


class _Range:
    """cudaProfilerStart before step `first`, cudaProfilerStop behind step `last`: what nsys waits for."""

    def __init__(self, wish: Dict[str, Any]) -> None:
        self._first, self._last = wish["first"], wish["last"]

    def stepped(self, count: int) -> bool:
        from torch.cuda import profiler, synchronize

        if count == self._first - 1:
            profiler.start()  # type: ignore[no-untyped-call]
        if count >= self._last:
            synchronize()
            profiler.stop()  # type: ignore[no-untyped-call]
            return False
        return True


def _enter() -> None:
    wishes: Dict[str, Dict[str, Any]] = {}
    for name in ("NVRUN_TORCH_PROFILER", "NVRUN_CUDA_RANGE"):
        text = os.environ.pop(name, None)  # a child of this rank is none
        if text:
            wishes[name] = json.loads(text)

    steps: List[Callable[[int], bool]] = []
    if "NVRUN_TORCH_PROFILER" in wishes:
        profiler = _Profiler(wishes["NVRUN_TORCH_PROFILER"])
        sys.meta_path.insert(0, _When(_AUTOGRAD_PROFILER, profiler.watch))
        steps.append(profiler.stepped)
    if "NVRUN_CUDA_RANGE" in wishes:
        steps.append(_Range(wishes["NVRUN_CUDA_RANGE"]).stepped)

    def begin(optimizers: Any) -> None:
        for stepped in steps:
            _Steps(optimizers, stepped)

    if steps:
        sys.meta_path.insert(0, _When(_OPTIMIZER, begin))


def _leave() -> None:
    """No trace of this folder in the process or its children."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.abspath(path) != here]
    if any(paths):
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path_importer_cache.pop(here, None)


def _chain() -> None:
    """The site's own sitecustomize takes this one's place; what it raises is raised, as without nvrun."""
    spec: Optional[importlib.machinery.ModuleSpec] = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _never_fails(_enter)
    _never_fails(_leave)
    _chain()
