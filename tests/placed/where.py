"""A rank that says where it is: `rank CPULIST POLICY`."""

import os
import time


def field(path: str, name: str) -> str:
    with open(path) as file:
        return next((line.split()[1] for line in file if line.startswith(name)), "?")


def policy() -> str:
    try:
        with open("/proc/self/numa_maps") as file:
            return next((line.split()[1] for line in file if "stack" in line.split()), "?")
    except FileNotFoundError:
        return "?"


print(f"rank {os.environ['RANK']} {field('/proc/self/status', 'Cpus_allowed_list:')} {policy()}", flush=True)
time.sleep(float(os.environ.get("STAY", "0")))
