"""Lint of variables that contradict each other, the library or the host. Pure.

Each rule's docstring is what it looks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvrun.model import Finding, Severity
from nvrun.nccl import parse
from nvrun.nccl.lint_network import NETWORK_RULES
from nvrun.nccl.setting import Given, Setting, found

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


def together(given: Given) -> Iterator[Finding]:
    """What all rules say."""
    for rule in (*NETWORK_RULES, *RULES):
        yield from rule(given)


def channels(given: Given) -> Iterator[Finding]:
    """A minimum of channels above the maximum, or two names for one limit."""
    for low, high in (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")):
        least, most = given.number(low), given.number(high)
        if least is not None and most is not None and 0 < most < least:
            yield found(
                given.settings[low],
                "nccl-min-above-max",
                WARNING,
                f"{low}={least} is above {high}={most}: NCCL takes {most} for both",
                right=str(most),
            )
    for side in ("MIN", "MAX"):
        new, old = f"NCCL_{side}_CTAS", f"NCCL_{side}_NCHANNELS"
        if given.text(new) and given.text(old):
            yield found(
                given.settings[old],
                "nccl-two-names",
                INFO,
                f"{new} and {old} limit the same thing: the {'higher' if side == 'MIN' else 'lower'} value holds",
            )


def multi_node_nvlink(given: Given) -> Iterator[Finding]:
    """Multi-node NVLink demanded without what it needs."""
    if given.number("NCCL_MNNVL_ENABLE") != 1:
        return
    for name, off in (("NCCL_CUMEM_ENABLE", 0), ("NCCL_P2P_DISABLE", 1)):
        if given.number(name) == off:
            yield found(
                given.settings["NCCL_MNNVL_ENABLE"],
                "nccl-no-effect",
                WARNING,
                f"NCCL_MNNVL_ENABLE=1 cannot work with {name}={off}",
                remedy=given.settings[name].removal,
            )


def nvls(given: Given) -> Iterator[Finding]:
    """NVLink SHARP demanded without asking the hardware. Without an NVSwitch NCCL never looks for it (graph/search.cc);
    behind one whose fabric does not give it, init fails where the default would go on."""
    setting = given.settings.get("NCCL_NVLS_ENABLE")
    if setting is None or given.number("NCCL_NVLS_ENABLE") != 1:
        return
    missing = given.nvswitch is False
    yield found(
        setting,
        "nccl-nvls-unasked",
        WARNING if missing else INFO,
        "NCCL_NVLS_ENABLE=1 has no effect: no GPU here has an NVSwitch"
        if missing
        else "NCCL_NVLS_ENABLE=1 assumes NVLink SHARP without asking the GPU; 2, the default, asks",
    )


def p2p_level(given: Given) -> Iterator[Finding]:
    """A P2P level beside P2P switched off."""
    if given.number("NCCL_P2P_DISABLE") == 1 and given.text("NCCL_P2P_LEVEL"):
        yield found(
            given.settings["NCCL_P2P_LEVEL"],
            "nccl-no-effect",
            WARNING,
            "NCCL_P2P_LEVEL has no effect: NCCL_P2P_DISABLE=1 wins",
        )


def graph_ordering(given: Given) -> Iterator[Finding]:
    """CUDA graph settings that exclude each other."""
    if given.number("NCCL_GRAPH_STREAM_ORDERING") == 0 and given.number("NCCL_GRAPH_MIXING_SUPPORT") == 1:
        yield found(
            given.settings["NCCL_GRAPH_STREAM_ORDERING"],
            "nccl-no-effect",
            WARNING,
            "NCCL refuses NCCL_GRAPH_STREAM_ORDERING=0 with NCCL_GRAPH_MIXING_SUPPORT=1 and takes 1",
            remedy=given.settings["NCCL_GRAPH_MIXING_SUPPORT"].line("0"),
        )


def collnet(given: Given) -> Iterator[Finding]:
    """CollNet algorithms without CollNet."""
    algorithms = (given.text("NCCL_ALGO") or "").lower()
    if "collnet" in algorithms and "^" not in algorithms and given.number("NCCL_COLLNET_ENABLE") != 1:
        yield found(
            given.settings["NCCL_ALGO"],
            "nccl-no-effect",
            WARNING,
            "CollNet algorithms stay off without NCCL_COLLNET_ENABLE=1",
            remedy="export NCCL_COLLNET_ENABLE=1",
        )


def thresholds(given: Given) -> Iterator[Finding]:
    """Sizes that another size caps or cancels."""
    set_to = given.number("NCCL_BUFFSIZE") or 0
    buffer = set_to if set_to > 0 else 4194304  # NCCL's default; `nccl-value-range` speaks of the other
    for name in ("NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE"):
        if (given.number(name) or 0) > buffer // 8:
            yield found(
                given.settings[name],
                "nccl-chunk-capped",
                INFO,
                f"{name} is cut to 1/8 of NCCL_BUFFSIZE ({buffer // 8})",
                remedy=given.settings[name].line(str(buffer // 8)),
            )
    if (given.number("NCCL_IB_AR_THRESHOLD") or 0) > buffer:
        yield found(
            given.settings["NCCL_IB_AR_THRESHOLD"],
            "nccl-adaptive-routing-off",
            WARNING,
            f"NCCL_IB_AR_THRESHOLD above NCCL_BUFFSIZE ({buffer}) switches adaptive routing off",
        )


def debug(given: Given) -> Iterator[Finding]:
    """Log settings that print nothing, or into one file."""
    file = given.text("NCCL_DEBUG_FILE")
    if file and "%p" not in file and not file.startswith("/dev/"):
        yield found(
            given.settings["NCCL_DEBUG_FILE"],
            "nccl-debug-file-shared",
            WARNING,
            "NCCL_DEBUG_FILE without %p: the ranks of a host overwrite one another's file",
            right=f"{file}.%h.%p" if "%h" not in file else f"{file}.%p",
        )
    if not given.settings.get("NCCL_DEBUG"):
        for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
            if given.text(name):
                yield found(
                    given.settings[name],
                    "nccl-no-effect",
                    WARNING,
                    f"{name} counts only with NCCL_DEBUG",
                    remedy="export NCCL_DEBUG=INFO",
                )
    elif (
        given.settings["NCCL_DEBUG"].syntax == "conf"
        and given.settings["NCCL_DEBUG"].where.startswith(("/", "~"))
        and not given.before("2.28")
    ):
        yield found(
            given.settings["NCCL_DEBUG"],
            "nccl-debug-in-conf",
            INFO,
            "from NCCL 2.28 on NCCL_DEBUG may be looked at before the conf files are read",
            remedy=f"export NCCL_DEBUG={given.settings['NCCL_DEBUG'].value}",
        )


def identities(given: Given) -> Iterator[Finding]:
    """One identity for what must be many."""
    if given.text("NCCL_COMM_ID"):
        yield found(
            given.settings["NCCL_COMM_ID"],
            "nccl-comm-id-set",
            ERROR,
            "NCCL_COMM_ID gives every communicator of the process one id; PyTorch makes several",
        )
    if given.shared and given.text("NCCL_HOSTID"):
        yield found(
            given.settings["NCCL_HOSTID"],
            "nccl-hostid-constant",
            ERROR,
            "one NCCL_HOSTID for several hosts makes NCCL take them for one host",
        )


LEFTOVERS = {
    "NCCL_P2P_DISABLE": (1, WARNING, "P2P goes through host memory: 27 instead of 326 GB/s on 2x H200 (2026-11-29)"),
    "NCCL_P2P_USE_CUDA_MEMCPY": (1, WARNING, "118 instead of 326 GB/s on 2x H200 (2026-11-29)"),
    "NCCL_SHM_DISABLE": (1, INFO, "GPUs without P2P then talk over the network"),
    "NCCL_CHECK_POINTERS": (1, INFO, "every call checks its pointers"),
    "CUDA_LAUNCH_BLOCKING": (1, WARNING, "every kernel launch waits"),
}
"""Switches of the debugging section of NCCL's documentation, the value that acts, and what it costs."""


def leftovers(given: Given) -> Iterator[Finding]:
    """Debugging switches left in."""
    for name, (acting, severity, cost) in LEFTOVERS.items():
        if given.number(name) == acting:
            yield _leftover(given.settings[name], severity, cost)
    if given.text("NCCL_PROTO"):
        yield _leftover(
            given.settings["NCCL_PROTO"],
            INFO,
            "NCCL chooses better by size (1 GB with LL128: 312 instead of 326 GB/s on 2x H200, 2026-11-29), and LL128"
            " where it is not supported corrupts data",
        )
    if (given.text("NCCL_LAUNCH_MODE") or "").upper() == "GROUP":
        yield _leftover(given.settings["NCCL_LAUNCH_MODE"], INFO, "deprecated since NCCL 2.9")


def _leftover(setting: Setting, severity: Severity, cost: str) -> Finding:
    return found(
        setting, "nccl-debugging-left", severity, f"{setting.name}={setting.value} is a debugging setting: {cost}"
    )


def device_order(given: Given) -> Iterator[Finding]:
    """CUDA_DEVICE_ORDER taken for more than numbering."""
    if given.text("CUDA_DEVICE_ORDER") in ("PCI_BUS_ID", "FASTEST_FIRST"):
        yield found(
            given.settings["CUDA_DEVICE_ORDER"],
            "cuda-device-order-only-numbers",
            INFO,
            "CUDA_DEVICE_ORDER only numbers the GPUs: it moves no traffic and cures no PCIe contention",
            remedy="place ranks by topology instead: nvrun binds each rank to its GPU's CPUs and NICs",
        )


def openmp(given: Given) -> Iterator[Finding]:
    """More OpenMP threads than the host has CPUs for."""
    text = given.text("OMP_NUM_THREADS") or ""
    cpus = len(given.facts.cpus.allowed) if given.facts and given.facts.cpus else 0
    if not text.strip().isdecimal() or not cpus:
        return
    threads, gpus = int(text), len((given.facts.gpus if given.facts else None) or ())
    if threads > cpus or threads * gpus > cpus:
        several = f" in each of {gpus} ranks" if threads <= cpus else ""
        yield found(
            given.settings["OMP_NUM_THREADS"],
            "omp-threads-too-many",
            WARNING if threads > cpus else INFO,
            f"OMP_NUM_THREADS={threads}{several} is more than the {cpus} CPUs that the job may use there",
            remedy=f"{given.settings['OMP_NUM_THREADS'].removal}; --omp auto gives each rank its own cores",
            host=given.facts.host if given.facts else None,
        )


def watchdog(given: Given) -> Iterator[Finding]:
    """PyTorch watchdog settings that cancel each other."""
    blocking = (given.text("TORCH_NCCL_BLOCKING_WAIT") or "").lower() in parse.TORCH_TRUE
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DESYNC_DEBUG"):
        if blocking and (given.text(name) or "0").lower() not in parse.TORCH_FALSE:
            yield found(
                given.settings[name],
                "torch-no-effect",
                WARNING,
                f"{name} has no effect: TORCH_NCCL_BLOCKING_WAIT switches the watchdog off",
                remedy=given.settings["TORCH_NCCL_BLOCKING_WAIT"].removal,
            )
    dump = (given.text("TORCH_NCCL_DUMP_ON_TIMEOUT") or "").lower() in parse.TORCH_TRUE
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if dump and given.number(name) == 0:
            yield found(
                given.settings[name],
                "torch-no-effect",
                WARNING,
                f"TORCH_NCCL_DUMP_ON_TIMEOUT has nothing to dump with {name}=0",
                right="2000",
            )
    if given.number("TORCH_NCCL_ASYNC_ERROR_HANDLING") == 1:
        yield found(
            given.settings["TORCH_NCCL_ASYNC_ERROR_HANDLING"],
            "torch-dump-lost",
            INFO,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 can end a rank before its flight recorder is written",
            right="3",
        )


RULES = (
    channels,
    multi_node_nvlink,
    nvls,
    p2p_level,
    graph_ordering,
    collnet,
    thresholds,
    debug,
    identities,
    leftovers,
    device_order,
    openmp,
    watchdog,
)
