"""The program of a bench on every rank: trials one after the other, each in a process of its own.

It travels as text (`python -c TEXT SCHEDULE`), so that no host needs nvrun: standard library and torch, Python 3.9.
NCCL reads its variables once a process, therefore each trial is forked from a parent that has imported torch and
touched no GPU. The parents meet in torchrun's store between trials; a trial that fails or passes its deadline is
killed on every rank and the next one begins. Rank 0 prints one line of JSON after MARK for each thing learned.

SCHEDULE is the JSON of `nvrun.bench.model.Schedule`; lines are read back by `nvrun.bench.session`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

MARK = "nvrun-bench "
BATCHES = 7
"""Timings of a point; each is of several calls, as many as fit the point's seconds."""
MOST_CALLS = 50
BLOCK = {"cuda": 1 << 22, "cpu": 1 << 18}
"""Elements that are made or checked at once."""
CHECKED = {"cuda": 1 << 28, "cpu": 1 << 22}
"""Elements computed for one rank's check of a point; of a longer result evenly spaced blocks are checked."""
MATRIX = {"cuda": 4096, "cpu": 256}


def say(**what: object) -> None:
    """One line at once, on a line of its own whatever NCCL has printed before it."""
    sys.stdout.flush()
    os.write(1, ("\n" + MARK + json.dumps(what) + "\n").encode())


# -- the parent: forks, deadlines, meeting points -------------------------------------------------------------------


def conduct(schedule: dict[str, Any]) -> None:
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(iter(rendezvous("env://", timeout=timedelta(seconds=300))))
    deadline = schedule["deadline"]
    for number, (which, overlap) in enumerate(schedule["order"]):
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _child(schedule, number, which, overlap, rank, world)
        _wait(pid, store, number, rank, deadline)
        if store.add(f"{number}/ended", 1) == world:
            store.set(f"{number}/next", b"1")
        store.wait([f"{number}/next"], timedelta(seconds=schedule["deadline"] + 60))
        if rank == 0:
            # A rank that died is the cause; the others then complain of a closed connection, often sooner.
            reasons = [key for key in (f"{number}/died", f"{number}/failed") if store.check([key])]
            failed = store.get(reasons[0]).decode() if reasons else None
            say(trial=number, environment=which, seconds=time.monotonic() - began, failed=failed)
        if number == 0 and schedule["slowest"]:
            took = time.monotonic() - began
            deadline = min(deadline, max(schedule["least_deadline"], schedule["slowest"] * took))


def _wait(pid: int, store: Any, number: int, rank: int, deadline: float) -> None:
    """Until the trial's process is gone; it is killed at the deadline, and soon after another rank has failed."""
    key = f"{number}/failed"
    end, look = time.monotonic() + deadline, time.monotonic() + 0.5
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if status:
                if os.WIFSIGNALED(status):
                    _fail(store, f"{number}/died", f"rank {rank} ended with signal {os.WTERMSIG(status)}")
                _fail(store, key, f"rank {rank} ended with code {os.waitstatus_to_exitcode(status)}")
            return
        now = time.monotonic()
        if now > look:
            look = now + 0.5
            if store.check([key]):
                end = min(end, now + 1.0)
        if now > end:
            _fail(store, key, f"rank {rank} was not done within {deadline:g} s")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.01)


def _fail(store: Any, key: str, why: str) -> None:
    """The first reason counts."""
    store.compare_set(key, "", why)


def _child(schedule: dict[str, Any], number: int, which: int, overlap: bool, rank: int, world: int) -> NoReturn:
    code, store = 1, None
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlives its parent
        os.environ.update(schedule["environments"][which])
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        limit = timedelta(seconds=schedule["deadline"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
        Trial(schedule, number, PrefixStore(f"trial{number}", store), rank, world).run(overlap)
        code = 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks are to hear of it
        traceback.print_exc()
        last = (str(error).strip() or "no message").splitlines()[0][:300]
        if store is not None:
            _fail(store, f"{number}/failed", f"rank {rank}: {type(error).__name__}: {last}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# -- the child: one trial ---------------------------------------------------------------------------------------------


class Trial:
    """One process group and all points of the schedule on it."""

    def __init__(self, schedule: dict[str, Any], number: int, store: Any, rank: int, world: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch: Any = torch
        self.dist: Any = dist
        self.schedule, self.number, self.rank, self.world = schedule, number, rank, world
        self.kind = "cuda" if torch.cuda.is_available() and dist.is_nccl_available() else "cpu"
        self.device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if self.kind == "cuda" else "cpu")
        if self.kind == "cuda":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        self.backend = "nccl" if self.kind == "cuda" else "gloo"
        limit = timedelta(seconds=schedule["deadline"] + 30)
        dist.init_process_group(self.backend, store=store, rank=rank, world_size=world, timeout=limit)
        self.groups = self._groups()
        self.allowed = self._allowed_bytes()

    def run(self, overlap: bool) -> None:
        """Every point in every scope; with `overlap` the points beside a matrix product instead."""
        if self.number == 0 and self.rank == 0:
            nccl = ".".join(map(str, self.torch.cuda.nccl.version())) if self.kind == "cuda" else None
            say(backend=self.backend, world=self.world, torch=self.torch.__version__, nccl=nccl,
                scopes={scope: len(members) for scope, (members, _) in self.groups.items()})  # fmt: skip
        most = self.schedule.get("most_bytes", {}).get(self.backend, float("inf"))
        wanted = (overlap and self.schedule.get("beside")) or self.schedule["points"]
        chosen = [point for point in wanted if point[1] <= most]
        points = [(*point, scope) for scope in self.groups for point in chosen]
        fits, longest = [], (0, 0)
        for point in sorted(points, key=lambda point: int(point[1])):
            sends, receives = self.elements(*point)
            both = max(longest[0], sends), max(longest[1], receives)
            if 4 * sum(both) <= self.allowed:
                fits.append(point)
                longest = both
        self.sent, self.received = (
            self.torch.zeros(elements, dtype=self.torch.float32, device=self.device) for elements in longest
        )
        for collective, nbytes, scope in points:
            found: dict[str, Any] = {"trial": self.number, "collective": collective, "bytes": nbytes, "scope": scope}
            if (collective, nbytes, scope) not in fits:
                found["skipped"] = f"needs more than the {self.allowed} bytes of memory that a rank may take"
            else:
                call = Call(self, collective, nbytes, scope)
                found["bytes"] = call.nbytes
                try:
                    found.update(self._beside_matmul(call) if overlap else self._point(call))
                except RuntimeError as error:  # the same on every rank: the backend lacks the collective
                    if "support" not in str(error).lower() and "implement" not in str(error).lower():
                        raise
                    found["skipped"] = str(error).splitlines()[0][:200]
            if self.rank == 0:
                say(**found)
        self.dist.destroy_process_group()

    def _groups(self) -> dict[str, tuple[list[int], Any]]:
        """Scope -> (global ranks, group) of this rank: all; of its node; of its place on every node."""
        mine = self.torch.tensor([int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])], device=self.device)
        places = [self.torch.empty_like(mine) for _ in range(self.world)]
        self.dist.all_gather(places, mine)
        nodes = [place.tolist() for place in places]
        found: dict[str, tuple[list[int], Any]] = {"all": (list(range(self.world)), None)}
        several = len({node for node, _ in nodes}) > 1 and len({local for _, local in nodes}) > 1
        for scope, part in (("node", 0), ("across", 1)):
            if scope in self.schedule["scopes"] and several:
                for key in sorted({place[part] for place in nodes}):
                    members = [rank for rank in range(self.world) if nodes[rank][part] == key]
                    group = self.dist.new_group(members)
                    if self.rank in members:
                        found[scope] = (members, group)
        sizes = self._gathered([float(len(found[scope][0])) for scope in found])
        return {scope: found[scope] for at, scope in enumerate(found) if min(row[at] for row in sizes) > 1}

    def _allowed_bytes(self) -> int:
        if self.kind == "cuda":
            free = 0.8 * self.torch.cuda.mem_get_info(self.device)[0] - (1 << 30)
        else:
            with open("/proc/meminfo") as file:
                available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
            free = 0.4 * available / int(os.environ["LOCAL_WORLD_SIZE"])
        return int(max(0, min(row[0] for row in self._gathered([free]))))

    def elements(self, collective: str, nbytes: int, scope: str) -> tuple[int, int]:
        """float32 elements of the send and of the receive buffer; every rank's part is equally long."""
        ranks = len(self.groups[scope][0])
        part, whole = max(1, nbytes // 4 // ranks), max(1, nbytes // 4)
        return {
            "all_reduce": (0, whole),
            "all_gather": (part, part * ranks),
            "reduce_scatter": (part * ranks, part),
            "broadcast": (0, whole),
            "all_to_all": (part * ranks, part * ranks),
            "send_recv": (whole, whole),
        }[collective]

    def _gathered(self, values: list[float]) -> list[list[float]]:
        """Every rank's row of numbers."""
        mine = self.torch.tensor(values, dtype=self.torch.float64, device=self.device)
        rows = [self.torch.empty_like(mine) for _ in range(self.world)]
        self.dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def _slowest(self, values: list[float]) -> list[float]:
        """Element by element the greatest of all ranks: a collective is over when its last rank is done."""
        return [max(column) for column in zip(*self._gathered(values))]  # noqa: B905 - Python 3.9

    def seconds(self, run: Callable[[], object], count: int) -> float:
        """Seconds for one call of `count`, which begin when all ranks are there."""
        self.dist.all_reduce(self.torch.zeros(1, device=self.device))
        if self.kind == "cpu":
            begun = time.perf_counter()
            for _ in range(count):
                run()
            return (time.perf_counter() - begun) / count
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / count

    def _point(self, call: Call) -> dict[str, Any]:
        wrong, share = self._checked(call)
        for _ in range(2):
            call.run()
        (pilot,) = self._slowest([self.seconds(call.run, 2)])
        batches = BATCHES if pilot * BATCHES < 4 * self.schedule["seconds"] else 3
        count = int(max(1, min(MOST_CALLS, self.schedule["seconds"] / batches / max(pilot, 1e-7))))
        times = []
        for _ in range(batches):
            call.refill()
            times.append(self.seconds(call.run, count))
        return {"seconds": self._slowest(times), "calls": count, "wrong": wrong, "checked": share}

    def _checked(self, call: Call) -> tuple[int, float]:
        wrong, share = call.check()
        return int(sum(row[0] for row in self._gathered([float(wrong)]))), share

    # -- beside a matrix product

    def _beside_matmul(self, call: Call) -> dict[str, Any]:
        wrong, share = self._checked(call)
        n = MATRIX[self.kind]
        dtype = self.torch.bfloat16 if self.kind == "cuda" else self.torch.float32
        left, right = (self.torch.randn(n, n, device=self.device, dtype=dtype) for _ in range(2))
        out = self.torch.empty(n, n, device=self.device, dtype=dtype)

        def product() -> None:
            self.torch.mm(left, right, out=out)

        for run in (call.run, product, call.run, product):
            run()
        one_call, one_product = self._slowest([self.seconds(call.run, 2), self.seconds(product, 5)])
        calls, products = self.schedule.get("load") or (
            int(max(1, min(200, 0.02 / one_call))),
            int(max(1, max(0.02, one_call) / one_product)),
        )
        rows: list[float] = []
        for _ in range(5):
            alone = self.seconds(call.run, calls) * calls
            compute = self.seconds(product, products) * products
            rows += [alone, compute, *self._together(call, calls, product, products)]
        rows = self._slowest(rows)
        names = ("alone", "matmul_alone", "together", "matmul_together")
        return {"overlap": {name: rows[at::4] for at, name in enumerate(names)}, "load": [calls, products],
                "wrong": wrong, "checked": share}  # fmt: skip

    def _together(self, call: Call, calls: int, product: Callable[[], None], products: int) -> tuple[float, float]:
        """Seconds until the calls, and until the products, are done, both begun at once."""
        self.dist.all_reduce(self.torch.zeros(1, device=self.device))
        if self.kind == "cpu":
            ended: list[float] = []
            begun = time.perf_counter()

            def communicate() -> None:
                for _ in range(calls):
                    call.run()
                ended.append(time.perf_counter() - begun)

            beside = threading.Thread(target=communicate)
            beside.start()
            for _ in range(products):
                product()
            compute = time.perf_counter() - begun
            beside.join()
            return ended[0], compute
        start, over, computed = (self.torch.cuda.Event(enable_timing=True) for _ in range(3))
        side = self.torch.cuda.Stream()
        start.record()
        side.wait_event(start)
        for _ in range(calls):
            call.run()
        over.record()
        with self.torch.cuda.stream(side):
            for _ in range(products):
                product()
            computed.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(over) / 1e3, start.elapsed_time(computed) / 1e3


class Call:
    """One collective of one size: `run` does it, `check` compares what arrives with what was sent."""

    def __init__(self, trial: Trial, collective: str, nbytes: int, scope: str) -> None:
        self.trial, self.torch, self.dist = trial, trial.torch, trial.dist
        self.collective = collective
        self.members, self.group = trial.groups[scope]
        self.me = self.members.index(trial.rank)
        sends, receives = trial.elements(collective, nbytes, scope)
        self.send, self.recv = trial.sent[:sends], trial.received[:receives]
        self.nbytes = 4 * max(sends, receives)
        """The size by which nccl-tests counts: of the longer buffer."""
        self.run = self._bound()

    def _bound(self) -> Callable[[], object]:
        """The collective itself, with as little of our own around it as can be: a short one takes 40 us."""
        dist, group, members, me = self.dist, self.group, self.members, self.me
        if self.collective == "all_reduce":
            return partial(dist.all_reduce, self.recv, group=group)
        if self.collective == "all_gather":
            newest = self._newest("all_gather_single", "all_gather_into_tensor")
            return partial(newest, self.recv, self.send, group=group)
        if self.collective == "reduce_scatter":
            newest = self._newest("reduce_scatter_single", "reduce_scatter_tensor")
            return partial(newest, self.recv, self.send, group=group)
        if self.collective == "broadcast":
            return partial(dist.broadcast, self.recv, src=members[0], group=group)
        if self.collective == "all_to_all":
            return partial(dist.all_to_all_single, self.recv, self.send, group=group)
        after, before = members[(me + 1) % len(members)], members[me - 1]

        def to_the_next() -> None:
            """Each rank to the next and from the one before, as nccl-tests has it."""
            pair = [
                dist.P2POp(dist.isend, self.send, after, group=group),
                dist.P2POp(dist.irecv, self.recv, before, group=group),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        return to_the_next

    def _newest(self, *names: str) -> Any:
        """torch 2.13 renamed two functions and warns of the old names."""
        return next(getattr(self.dist, name) for name in names if hasattr(self.dist, name))

    def refill(self) -> None:
        """Sums in place grow from call to call; infinities would be timed otherwise."""
        if self.collective == "all_reduce":
            self.recv.uniform_(-1, 1)

    def check(self) -> tuple[int, float]:
        """(elements that are wrong, share of the result that was compared). Small random integers add up exactly in
        any order; the output holds NaN before, and nowhere after."""
        block, length = BLOCK[self.trial.kind], len(self.send)
        for low in range(0, length, block):
            high = min(low + block, length)
            self.send[low:high] = self._random(self.me, low, high)
        self.recv.fill_(float("nan"))
        if self.collective == "all_reduce" or (self.collective == "broadcast" and self.me == 0):
            for low in range(0, len(self.recv), block):
                high = min(low + block, len(self.recv))
                self.recv[low:high] = self._random(self.me, low, high)
        self.run()
        blocks = [
            (low, min(low + block, start + count), ranks, source + low - start)
            for start, count, ranks, source in self._origins()
            for low in range(start, start + count, block)
        ]
        work = sum((high - low) * len(ranks) for low, high, ranks, _ in blocks)
        stride = -(-work // CHECKED[self.trial.kind])
        chosen = blocks[::stride]
        if stride > 1 and chosen[-1] != blocks[-1]:
            chosen.append(blocks[-1])
        wrong = 0
        for low, high, ranks, source in chosen:
            expected = sum(self._random(rank, source, source + high - low) for rank in ranks)
            wrong += int((self.recv[low:high] != expected).sum())
        for low in range(0, len(self.recv), 1 << 26):
            wrong += int(self.torch.isnan(self.recv[low : low + (1 << 26)]).sum()) if stride > 1 else 0
        return wrong, sum(high - low for low, high, _, _ in chosen) / len(self.recv)

    def _origins(self) -> list[tuple[int, int, list[int], int]]:
        """(place in the result, length, ranks whose data is added up there, place in their data)."""
        ranks, count = len(self.members), len(self.recv)
        every, part = list(range(ranks)), count // ranks
        return {
            "all_reduce": [(0, count, every, 0)],
            "all_gather": [(rank * part, part, [rank], 0) for rank in every],
            "reduce_scatter": [(0, count, every, self.me * count)],
            "broadcast": [(0, count, [0], 0)],
            "all_to_all": [(rank * part, part, [rank], self.me * part) for rank in every],
            "send_recv": [(0, count, [self.me - 1 if self.me else ranks - 1], 0)],
        }[self.collective]

    def _random(self, rank: int, low: int, high: int) -> Any:
        """Integers from -128 to 127 that depend on rank, place and the run's seed: splitmix64 over the place."""
        x = self.torch.arange(low, high, dtype=self.torch.int64, device=self.trial.device)
        x = (x + (rank + 1) * 0x51ED27F9 + self.trial.schedule["seed"]) * -0x61C8864680B583EB
        x = (x ^ (x >> 30)) * -0x40A7B892E31B1A47
        x = (x ^ (x >> 27)) * -0x6B2FB644ECCEEE15
        return ((x ^ (x >> 31)) & 0xFF).to(self.torch.float32) - 128


if __name__ == "__main__":
    conduct(json.loads(sys.argv[1]))
