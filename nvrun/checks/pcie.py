"""What a PCIe link could do: no more than the lesser of its two ends, the device and the port above it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from nvrun.facts import PciDevice

_Number = TypeVar("_Number", int, float)


class Link(NamedTuple):
    """A PCIe link; None = not known."""

    lanes: int | None
    gt_s: float | None
    """Transfers of a lane, in GT/s."""

    @property
    def gbps(self) -> float | None:
        """What it carries one way after its line code: 8b/10b below 8 GT/s, 128b/130b from there on (PCI Express Base
        Specification, 4.2); headers take a few percent more."""
        if not self.lanes or not self.gt_s or self.lanes < 0 or self.gt_s < 0:
            return None
        return self.lanes * self.gt_s * (128 / 130 if self.gt_s >= 8 else 0.8)


def now(device: PciDevice) -> Link:
    """The link as it was trained."""
    return Link(device.link_width, device.link_speed_gt_s)


def possible(device: PciDevice, devices: Mapping[str, PciDevice]) -> Link:
    """The most that both ends can: a card of 16 lanes in a slot of 8 has lost none."""
    port = slot(device.path, devices)
    return Link(
        _lesser(device.link_width_max, port.link_width_max if port else None),
        _lesser(device.link_speed_max_gt_s, port.link_speed_max_gt_s if port else None),
    )


def slot(path: tuple[str, ...], devices: Mapping[str, PciDevice]) -> PciDevice | None:
    """The port that the last device of this path is plugged into; None where it is not shown, as in most guests."""
    return devices.get(path[-2]) if len(path) > 1 else None


def _lesser(one: _Number | None, other: _Number | None) -> _Number | None:
    return min((value for value in (one, other) if value), default=None)
