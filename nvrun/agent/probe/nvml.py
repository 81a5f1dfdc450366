"""How NVML is asked, and how its addresses are written."""

from __future__ import annotations

from typing import Any


class Reader:
    """Calls NVML and keeps why a call failed, under the name of the field that it was for."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.unread: dict[str, str] = {}

    def read(self, field: str, function: str, *arguments: Any) -> Any:
        """The function's value, or None."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError, AttributeError) as error:
            self.unread[field] = words(error)
            return None

    def fields(self, handle: Any, wanted: list[tuple[int, int]]) -> list[int | None]:
        """NVML field values given as (field, scope): numbers, None for each that this GPU does not have."""
        try:
            values = self.nvml.nvmlDeviceGetFieldValues(handle, wanted)
        except (self.nvml.NVMLError, AttributeError):
            return [None] * len(wanted)
        return [int(value.value.ullVal) if value.nvmlReturn == 0 else None for value in values]


def words(error: Exception) -> str:
    """`Not Supported`, `GPU is lost`; a function that this driver or pynvml lacks says its name."""
    return str(error) or type(error).__name__


def pci_address(bus_id: str) -> str:
    """NVML's `00000000:1B:00.0` as sysfs writes it, `0000:1b:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
