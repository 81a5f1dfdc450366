"""Summaries of ranks' traces -> findings: what costs time, and what of DDP or FSDP to change. Pure.

Thresholds are shares of the profiled time, chosen so that what is told could win more than what a run varies by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from nvrun.meanings import means
from nvrun.model import Finding, Severity
from nvrun.traces.summary import Collective, RankProfile, Timed

EXPOSED = 0.1
"""Of the time: from here on hidden communication is worth the work."""
HIDDEN = 0.03
"""Of the time: below, nothing of the network is worth a change."""
WAITING = 0.05
"""Of the time: from here on the CPU waits too much for the GPU; a warning where the GPU is idle so long as well."""
IDLE = 0.3
"""Of the time: from here on it is not the GPU that sets the pace."""
BEHIND = 0.1
"""Of a step: what others wait for one rank."""
BUCKET = 25 << 20
"""Bytes: DDP's bucket_cap_mb is 25 MiB."""
SMALL = 8 << 20
"""Bytes: an all-reduce below is dominated by latency; over NVLink 16 MB reach 209 of the 346 GB/s that 4 GB reach."""
_DDP = "torch.nn.parallel.DistributedDataParallel's documentation"
_FSDP = "FullyShardedDataParallel's and fully_shard's documentation"
_TRACE = "traces of torch.profiler: kernels of NCCL (gloo's work on CPUs) against all other work of that device"

for _code, _summary, _read, _why, _remedy, _source in (
    ("profile-communication-exposed", "ranks wait for communication that no other work hides", _TRACE,
     "a faster network, more overlap or less to send would win up to that much",
     "the findings beside it say which of these", _DDP),
    ("profile-communication-hidden", "communication costs nearly nothing: it runs beside other work", _TRACE,
     "tuning the network cannot make this job faster", "look at compute, input and waits instead", _DDP),
    ("profile-buckets-small", "gradients go in many small all-reduces", "message sizes in the traces",
     "each pays the latency of the network anew", "DDP(bucket_cap_mb=...)", _DDP),
    ("profile-bucket-late", "most gradients go in one bucket, which is full only when backward is over",
     "message sizes in the traces", "nothing is left to hide it behind", "DDP(bucket_cap_mb=...) smaller", _DDP),
    ("profile-gradients-copied", "DDP copies gradients between buckets and .grad",
     "the reducer's copy_bucket_to_grad in the traces", "each step moves all gradients once more, and holds them twice",
     "DDP(gradient_as_bucket_view=True)", _DDP),
    ("profile-unused-searched", "DDP searches the graph for unused parameters in each step",
     "the reducer's search_unused_parameters in the traces", "the CPU walks the whole graph each time",
     "DDP(static_graph=True), or find_unused_parameters=False", _DDP),
    ("profile-needless-reduction", "gradients are reduced in steps that only accumulate",
     "forward passes, all-reduces and optimizer steps in the traces", "all but the last reduction is thrown away",
     "with model.no_sync(): around all but the last backward", _DDP),
    ("profile-gradients-wide", "gradients are sent as float32", "data types in the traces",
     "half the bytes would do for most models", "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)",
     "torch.distributed.algorithms.ddp_comm_hooks"),
    ("profile-shards-late", "FSDP waits for shards that could have been fetched before", _TRACE,
     "each layer waits for its parameters", "forward_prefetch, backward_prefetch, larger units", _FSDP),
    ("profile-cpu-waits", "the CPU waits for the GPU in the middle of steps",
     "cudaStreamSynchronize and its like in the traces", "no kernels are queued meanwhile: the GPU runs dry",
     "no .item(), .cpu(), print(loss) or nonzero() in a step; log every n-th", "CUDA runtime API"),
    ("profile-copies-pageable", "the GPU is fed from memory that is not pinned", "copies in the traces",
     "such a copy holds up the CPU, and is slower", "DataLoader(pin_memory=True), .to(device, non_blocking=True)",
     "CUDA best practices guide"),
    ("profile-gpu-idle", "the GPU has nothing to do for much of the time", "gaps between kernels in the traces",
     "input, the CPU or its waits set the pace", "DataLoader workers; torch.compile or CUDA graphs for small kernels",
     "PyTorch performance tuning guide"),
    ("profile-rank-behind", "one rank is waited for by the others", "traces of several ranks side by side",
     "in a collective all wait for the last", "look what that rank alone does: its data, its GPU's clock, its host",
     "a collective ends when its last rank has come"),
):  # fmt: skip
    means(_code, _summary, read=_read, why=_why, remedy=_remedy, source=_source)


def advice(ranks: Sequence[RankProfile]) -> list[Finding]:
    """Of all ranks; what several ranks have alike is said of the one where it is most."""
    found = [*_behind(ranks)]
    most: dict[str, tuple[float, Finding]] = {}
    for rank in ranks:
        for finding, weight in _of(rank):
            if finding.code not in most or weight > most[finding.code][0]:
                most[finding.code] = weight, finding
    found += [finding for _, finding in most.values()]
    return sorted(found, key=lambda finding: -finding.severity)


def _of(rank: RankProfile) -> Iterator[tuple[Finding, float]]:
    exposed = rank.exposed / rank.total if rank.total else 0.0
    if rank.communication and exposed >= EXPOSED:
        yield (
            _found(
                rank,
                "profile-communication-exposed",
                f"{exposed:.0%} of the time is communication that no other work hides",
                "a faster or better tuned network, more overlap, or less to send",
                [f"{each.name}: {_ms(rank, each.exposed)} of {_ms(rank, each.seconds)} a step not hidden, "
                 f"{_each_step(rank, each.count)} calls" for each in rank.collectives[:3]],
                Severity.WARNING,
            ),
            exposed,
        )  # fmt: skip
        yield from ((finding, exposed) for finding in _reductions(rank))
        yield from ((finding, exposed) for finding in _shards(rank))
    elif rank.communication and exposed <= HIDDEN:
        message = f"communication is {rank.hidden or 0:.0%} hidden: only {exposed:.1%} of the time wait for it"
        yield _found(rank, "profile-communication-hidden", message, "leave the network as it is"), -exposed
    yield from _ddp(rank)
    yield from _waits(rank)


# -- distributed data parallel -----------------------------------------------------------------------------------------


def _reductions(rank: RankProfile) -> Iterator[Finding]:
    reduce = _collective(rank, "all_reduce")
    if reduce is None:
        return
    if reduce.bytes and reduce.sizes and rank.steps:
        calls, carried = reduce.count / rank.steps, reduce.bytes / rank.steps
        largest = max(size.bytes for size in reduce.sizes)
        evidence = [f"{size.count / rank.steps:.3g} of {_mib(size.bytes)} a step" for size in reduce.sizes[:4]]
        if calls >= 4 and largest < SMALL and carried > 2 * largest:
            cap = int(min(BUCKET, max(2 * largest, carried / 3))) >> 20 or 1
            yield _found(
                rank,
                "profile-buckets-small",
                f"gradients go in {calls:.3g} all-reduces a step, the largest of {_mib(largest)}",
                f"DDP(bucket_cap_mb={cap}): fewer and larger ones; measure, overlap ends later",
                evidence,
                Severity.WARNING,
            )
        elif largest >= BUCKET and largest > carried / 2:
            cap = max(1, min(25, largest // 4 >> 20))
            yield _found(
                rank,
                "profile-bucket-late",
                f"one all-reduce of {_mib(largest)} carries {largest / carried:.0%} of a step's gradients",
                f"DDP(bucket_cap_mb={cap}): the first buckets are then on their way while backward still runs",
                evidence,
                Severity.WARNING,
            )
    if reduce.dtypes == ("float",) and (reduce.bytes or 0) >= rank.steps * SMALL:
        yield _found(
            rank,
            "profile-gradients-wide",
            f"{_mib(rank.each_step(reduce.bytes or 0))} of float32 are reduced a step",
            "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook) halves it; compare the loss",
            [f"{reduce.name}: {_ms(rank, reduce.exposed)} a step not hidden"],
        )


def _ddp(rank: RankProfile) -> Iterator[tuple[Finding, float]]:
    copied = _mark(rank, "torch.distributed.ddp.reducer::copy_bucket_to_grad")
    if copied:
        yield (
            _found(
                rank,
                "profile-gradients-copied",
                f"DDP copies gradients from its buckets to .grad: {_ms(rank, copied.seconds)} of CPU time a step",
                "DDP(gradient_as_bucket_view=True): no copy, and their memory once less",
                [f"{copied.name}: {_each_step(rank, copied.count)} a step"],
            ),
            copied.seconds,
        )
    searched = _mark(rank, "torch.distributed.ddp.reducer::search_unused_parameters")
    if searched:
        yield (
            _found(
                rank,
                "profile-unused-searched",
                f"DDP searches for unused parameters: {_ms(rank, searched.seconds)} a step",
                "DDP(static_graph=True) where the graph stays the same; find_unused_parameters=False if all are used",
                [f"{searched.name}: {_each_step(rank, searched.count)} a step"],
            ),
            searched.seconds,
        )
    passes = rank.accumulation
    if passes and passes.needless:
        yield (
            _found(
                rank,
                "profile-needless-reduction",
                f"{passes.needless} of {passes.forwards} backward passes reduce gradients that no optimizer step uses",
                "with model.no_sync(): around forward and backward of all micro-batches but the last",
                [f"{passes.forwards} forward passes, {passes.optimizer_steps} optimizer steps"],
                Severity.WARNING,
            ),
            passes.needless,
        )


# -- fully sharded -----------------------------------------------------------------------------------------------------


def _shards(rank: RankProfile) -> Iterator[Finding]:
    gather, scatter = _collective(rank, "all_gather"), _collective(rank, "reduce_scatter")
    if gather is None or scatter is None or gather.exposed < EXPOSED / 2 * rank.total:
        return
    smallest = min((size.bytes for size in gather.sizes), default=None)
    evidence = [f"{each.name}: {_ms(rank, each.exposed)} of {_ms(rank, each.seconds)} a step not hidden, "
                f"{_each_step(rank, each.count)} calls" for each in (gather, scatter)]  # fmt: skip
    remedy = "FSDP(forward_prefetch=True, backward_prefetch=BACKWARD_PRE); fully_shard: set_modules_to_forward_prefetch"
    if smallest is not None and smallest < SMALL:
        remedy += "; wrap larger units: there are all-gathers of " + _mib(smallest)
    remedy += "; where memory allows, keep parameters after forward (SHARD_GRAD_OP, reshard_after_forward=False)"
    yield _found(
        rank,
        "profile-shards-late",
        f"{gather.exposed / rank.total:.0%} of the time wait for shards of parameters",
        remedy,
        evidence,
        Severity.WARNING,
    )


# -- CPU and GPU -------------------------------------------------------------------------------------------------------


def _waits(rank: RankProfile) -> Iterator[tuple[Finding, float]]:
    waited = sum(each.seconds for each in rank.waits)
    if rank.device != "gpu":
        return
    if waited >= WAITING * rank.total:
        items = [each for each in rank.marks if each.name.startswith("aten::")]
        evidence = [
            f"{each.name}: {_each_step(rank, each.count)} a step, {_ms(rank, each.seconds)}"
            for each in (*rank.waits[:3], *items[:3])
        ]
        yield (
            _found(
                rank,
                "profile-cpu-waits",
                f"the CPU waits {_ms(rank, waited)} a step for the GPU, which is idle {_idle(rank):.0%} of the time",
                "no .item(), .cpu(), print(loss) or nonzero() in a step: sums stay on the GPU, read every n-th step",
                evidence,
                Severity.WARNING if _idle(rank) >= WAITING else Severity.INFO,
            ),
            waited,
        )
    pageable = [each for each in rank.copies if "HtoD" in each.name and "Pageable" in each.name]
    if pageable:
        copies = _each_step(rank, sum(each.count for each in pageable))
        yield (
            _found(
                rank,
                "profile-copies-pageable",
                f"{copies} copies a step from memory that is not pinned",
                "DataLoader(pin_memory=True) and batch.to(device, non_blocking=True)",
                [f"{each.name}: {_ms(rank, each.seconds)} a step" for each in pageable],
            ),
            sum(each.seconds for each in pageable),
        )
    if _idle(rank) >= IDLE:
        yield (
            _found(
                rank,
                "profile-gpu-idle",
                f"the GPU has nothing to do for {_idle(rank):.0%} of the time",
                "more DataLoader workers; torch.compile(mode='reduce-overhead') or CUDA graphs where kernels are short",
                [f"{_ms(rank, rank.busy)} of {_ms(rank, rank.total)} a step are kernels"],
                Severity.WARNING,
            ),
            _idle(rank),
        )


# -- several ranks -----------------------------------------------------------------------------------------------------


def _behind(ranks: Sequence[RankProfile]) -> Iterator[Finding]:
    """The rank that spends least in collectives came last to them, if its own work took longer by about as much."""
    able = [rank for rank in ranks if rank.communication and rank.steps]
    if len(able) < 2 or len({rank.steps for rank in able}) > 1:
        return
    last = min(able, key=lambda rank: rank.communication)
    others = [rank for rank in able if rank is not last]
    waited = median(rank.communication for rank in others) - last.communication
    # Its own part of the time: all that is not communication, input and Python too.
    own, theirs = last.total - last.exposed, median(rank.total - rank.exposed for rank in others)
    if waited >= BEHIND * last.total and own - theirs >= waited / 2:
        yield _found(
            last,
            "profile-rank-behind",
            f"the others wait {_ms(last, waited)} a step for {_who(last)}",
            "look what it alone does: its data, its GPU's clock (nvrun report), other work on its host",
            [
                f"{_who(rank)}: {_ms(rank, rank.communication)} a step in collectives, "
                f"{_ms(rank, rank.total - rank.exposed)} without"
                for rank in sorted(able, key=lambda rank: rank.communication)[:4]
            ],
            Severity.WARNING,
        )


# -- words -------------------------------------------------------------------------------------------------------------


def _found(
    rank: RankProfile,
    code: str,
    message: str,
    remedy: str,
    evidence: Sequence[str] = (),
    severity: Severity = Severity.INFO,
) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        message=message,
        host=rank.host or None,
        subject=_who(rank),
        remedy=remedy,
        evidence=tuple(evidence),
    )


def _who(rank: RankProfile) -> str:
    return rank.trace if rank.rank is None else f"rank {rank.rank}"


def _collective(rank: RankProfile, name: str) -> Collective | None:
    return next((each for each in rank.collectives if each.name == name), None)


def _mark(rank: RankProfile, name: str) -> Timed | None:
    return next((each for each in rank.marks if each.name == name), None)


def _idle(rank: RankProfile) -> float:
    return rank.idle / rank.total if rank.total else 0.0


def _ms(rank: RankProfile, seconds: float) -> str:
    return f"{rank.each_step(seconds) * 1e3:.3g} ms"


def _each_step(rank: RankProfile, count: int) -> str:
    return f"{rank.each_step(count):.3g}"


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.3g} MiB"
