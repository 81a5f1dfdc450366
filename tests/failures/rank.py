"""A rank that comes to grief, rank 1 first; /tmp/up says that it is past its start.

raise      an exception
eat        memory, until the kernel ends it
shout      3 MB to stderr, then an exception
disagree   an all-reduce of another size than rank 0's
reduce     all-reduces for ever, each of which may take 4 s
sleep      nothing
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path


def main(what: str) -> None:
    second = os.environ["RANK"] == "1"
    if what in ("disagree", "reduce"):
        import torch
        from torch import distributed

        distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
        distributed.all_reduce(torch.ones(8))
        Path("/tmp/up").touch()
        while what == "reduce":
            distributed.all_reduce(torch.ones(8))
            time.sleep(0.02)
        distributed.all_reduce(torch.ones(1 << 20 if second else 4))
    Path("/tmp/up").touch()
    if second and what == "eat":
        eaten = []
        while True:
            eaten.append(b"x" * (1 << 24))
    if second and what == "shout":
        for number in range(30_000):
            print(f"{number:08d} {'x' * 90}", file=sys.stderr)
        raise KeyError("weights")
    if second and what == "raise":
        raise ValueError("this rank fails on purpose")
    time.sleep(60)


main(sys.argv[1])
