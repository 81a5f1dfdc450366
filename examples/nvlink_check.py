"""Which GPUs reach each other, and how: NVLink and peer access, read through nvrun's own library.

    python examples/nvlink_check.py                  this host
    nvrun --hosts a,b examples/nvlink_check.py       every host, one report each

NVML is asked, as `nvrun topo` asks it: how many links are up, at what rate, what is at their other end, what went wrong
on them, and whether peer access works for each pair. torch has no attribute for any of that but the last
(torch.cuda.can_device_access_peer). It pays before the first job on a machine, and when bandwidth is not reached: links
that are down cost it silently. `nvrun bench` measures what is really reached.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from nvrun.agent.probe import collect
from nvrun.facts import Gpu, HostFacts, decode


def describe(gpu: Gpu) -> str:
    """One line: links up, their rate, the other end, errors."""
    up = [link for link in gpu.nvlinks if link.active]
    if not gpu.nvlinks:
        return f"GPU {gpu.index} {gpu.name} {gpu.pci}: no NVLink"
    rates = [link.speed_mb_s for link in up]
    rate = "rate unknown" if None in rates else f"{sum(r for r in rates if r) / 1e3:.0f} GB/s a direction"
    ends = ", ".join(sorted({link.remote_type or "unknown" for link in up})) or "nothing"
    errors = sum((link.crc_errors or 0) + (link.replay_errors or 0) + (link.recovery_errors or 0) for link in up)
    unread = any(link.crc_errors is link.replay_errors is link.recovery_errors is None for link in up)
    line = f"GPU {gpu.index} {gpu.name} {gpu.pci}: {len(up)} of {len(gpu.nvlinks)} links up to {ends}, {rate}"
    return f"{line}, errors {'not readable' if unread else errors}"


def report(facts: HostFacts) -> Iterator[str]:
    """The lines of one host's report."""
    if facts.gpus is None:
        yield f"GPUs not readable: {facts.missing.get('gpus', 'no reason given')}"
        return
    if not facts.gpus:
        yield "no NVIDIA GPU"
    for gpu in facts.gpus:
        yield describe(gpu)
    for gpu in facts.gpus:
        for other in facts.gpus:
            if gpu.index < other.index:
                yield f"GPU {gpu.index} to GPU {other.index}: peer access {gpu.p2p.get(other.uuid, 'unknown')}"


def main() -> None:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return  # one rank a host is enough
    host = socket.gethostname()
    facts = decode(collect({"host": host, "sections": ["gpus"]}))
    print(f"{host}:")
    for line in report(facts):
        print(f"  {line}")


if __name__ == "__main__":
    main()
