"""Reasons why an ordinary user cannot read something, where the host is set up so: no fault, and no news."""

KERNEL_LOG = "the kernel log needs root here (kernel.dmesg_restrict)"
