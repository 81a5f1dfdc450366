"""A study on a machine with two GPUs, by hand, in parts of nine minutes at most.

    python -m tests.gpu.study correctness OUT [STEP ...]    examples, diagnosis, profiler, monitor, the ladder
    python -m tests.gpu.study figures OUT [STEP ...]        tune, the grid, the cost of capture
    python -m tests.gpu.study layers OUT [STEP ...]         what nvrun sets by itself, presets, compression

Each step has a deadline of its own, and one that fails stops no other. After every step OUT/PART.json has the results
so far, and OUT/PART.tar.gz what every command printed and the run folders. Without a GPU it is a rehearsal: gloo, small
sizes, the same steps; then it wants `unshare --net --mount` with a /run and an /etc/hosts of its own, see two_hosts.py.

NVLink multicast stays as the user has set it: with a GPU the study runs only where it is off, and no step sweeps it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/gpu"
GPU = Path("/dev/nvidiactl").exists()
KEPT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
SECONDS = 525
"""A part, whatever its steps do."""
LARGEST = 6 << 20
"""Bytes of a file that is kept; the report's charts are in larger ones, and drawn from what is kept."""


@dataclass(frozen=True)
class Done:
    code: int
    """124: ended at its deadline."""
    out: str
    err: str
    seconds: float
    folder: Path
    """Where it ran; its runs are below."""

    @property
    def run(self) -> Path:
        return (self.folder / "nvrun-runs/latest").resolve()

    def result(self) -> Any:
        """What was printed as JSON; None where nothing was."""
        try:
            return json.loads(self.out)
        except ValueError:
            return None


class Study:
    """Where results go, and how long there is."""

    def __init__(self, part: str, out: Path) -> None:
        self.part, self.out = part, out
        self.work = Path(tempfile.mkdtemp(prefix=f"study-{part}-"))
        self.end = time.monotonic() + SECONDS
        self.step_end = self.end
        self.results: dict[str, Any] = {"gpu": GPU, "date": time.strftime("%Y-%m-%d"), "runs": {}}
        self._lock = threading.Lock()
        self.two_hosts: list[str] = []

    @property
    def left(self) -> float:
        """Seconds of the present step."""
        return max(1.0, self.step_end - time.monotonic())

    def run(
        self,
        name: str,
        argv: list[str],
        timeout: float | None = None,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """A command in a folder of its own (or that of another, `cwd`); ended at the step's deadline at the latest."""
        folder = self.work / (cwd or name)
        folder.mkdir(parents=True, exist_ok=True)
        variables = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "XDG_CONFIG_HOME": str(self.work / "config"),
            "XDG_STATE_HOME": str(self.work / "state"),
            "NVRUN_GRACE": "3",
            **(env or {}),
        }
        if GPU:
            assert all(variables.get(each) == value for each, value in KEPT.items())
        begun = time.monotonic()
        out, err = (folder / f"{name}.{kind}" for kind in ("stdout", "stderr"))
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                argv, cwd=folder, env=variables, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                code = process.wait(min(timeout or self.left, self.left))
            except subprocess.TimeoutExpired:
                code = 124
                end_group(process)
        seconds = round(time.monotonic() - begun, 2)
        told, complained = out.read_text(errors="replace"), err.read_text(errors="replace")
        with self._lock:
            self.results["runs"][name] = {"exit": code, "seconds": seconds, "last": complained.splitlines()[-2:]}
        print(f"{name}: exit {code}, {seconds} s", flush=True)
        return Done(code, told, complained, seconds, folder)

    def nvrun(self, name: str, *arguments: str, **how: Any) -> Done:
        return self.run(name, [sys.executable, "-m", "nvrun", *arguments], **how)

    def ranks(self, *words: str) -> list[str]:
        """Two ranks of ranks.py."""
        return ["--nproc-per-node", "2", str(HERE / "ranks.py"), *words]

    def step(self, name: str, seconds: float, work: Callable[[Study], Any]) -> None:
        """One step and what came of it, kept at once."""
        begun = time.monotonic()
        self.step_end = min(self.end, begun + seconds)
        try:
            found = work(self) if self.end - begun > 15 else "no time was left"
        except Exception as error:  # noqa: BLE001 - one step's failure must not cost the others their time
            found = {"failed": f"{type(error).__name__}: {error}", "at": traceback.format_exc().splitlines()[-6:]}
        self.results[name] = found
        print(f"== {name}: {time.monotonic() - begun:.0f} s\n{json.dumps(found, default=str)[:1500]}", flush=True)
        self.keep()

    def keep(self) -> None:
        logs = [path.read_text(errors="replace") for path in self.work.rglob("nccl.*.log")]
        off = sum("NCCL_NVLS_ENABLE set by environment to 0" in log for log in logs)
        self.results["multicast"] = {"NCCL logs": len(logs), "in which it is off": off}
        (self.out / f"{self.part}.json").write_text(json.dumps(self.results, indent=1, default=str))
        part = self.work.with_suffix(".part")
        with tarfile.open(part, "w:gz", compresslevel=5) as archive:
            for path in sorted(self.work.rglob("*")):
                if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST:
                    archive.add(path, str(path.relative_to(self.work)))
        (self.out / f"{self.part}.tar.gz").write_bytes(part.read_bytes())


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends what was started and waits until nothing of its group is left: the next step wants the GPUs."""
    for number, patience in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 4.0)):
        end, sent = time.monotonic() + patience, False
        while time.monotonic() < end:
            process.poll()
            try:
                os.killpg(process.pid, 0 if sent else number)  # once: a second one would be "now" to nvrun
            except ProcessLookupError:
                return
            sent = True
            time.sleep(0.2)


def together(*works: Callable[[], Any]) -> list[Any]:
    """All at once, each in a thread; what failed is its exception, as text."""
    found: list[Any] = [None] * len(works)

    def one(at: int) -> None:
        try:
            found[at] = works[at]()
        except Exception as error:  # noqa: BLE001 - kept as a result
            found[at] = f"failed: {type(error).__name__}: {error}"

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    from tests.gpu import correctness, figures, layers

    parts = {"correctness": correctness.STEPS, "figures": figures.STEPS, "layers": layers.STEPS}
    if len(sys.argv) < 3 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    if GPU and any(os.environ.get(name) != value for name, value in KEPT.items()):
        sys.exit(f"this study runs only with {KEPT} in the environment")
    out = Path(sys.argv[2]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    steps = parts[sys.argv[1]]
    assert sum(seconds for seconds, _ in steps.values()) <= SECONDS
    study = Study(sys.argv[1], out)
    wanted = sys.argv[3:] or list(steps)
    for at, name in enumerate(wanted):
        # What earlier steps left over is for all that are still to come.
        rest = [steps[each][0] for each in wanted[at:]]
        spare = max(0.0, study.end - time.monotonic() - sum(rest)) / len(rest)
        study.step(name, steps[name][0] + spare, steps[name][1])


if __name__ == "__main__":
    main()
