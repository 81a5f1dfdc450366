"""What the hosts' monitors wrote, as typed values. Pure but for `read`."""

from __future__ import annotations

from nvrun.monitor.samples import GpuKnown, GpuRead, Header, HostSamples, RankRead, Sample, parse, rates, read

__all__ = ["GpuKnown", "GpuRead", "Header", "HostSamples", "RankRead", "Sample", "parse", "rates", "read"]
