"""A rank that says what it was given, and can die or sum up, as its arguments ask.

say            one JSON line: rank, local rank, world, arguments, attempt
sum            an all-reduce over gloo with every rank, said as `sum N of WORLD attempt A`
die:RANK:TIMES that rank dies in its first attempts
"""

from __future__ import annotations

import json
import os
import sys
import time


def attempt() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def add_up() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(f"sum {int(ones.item())} of {dist.get_world_size()} attempt {attempt()}", flush=True)
    for action in sys.argv[1:]:
        name, *values = action.split(":")
        if name == "die" and dist.get_rank() == int(values[0]) and attempt() < int(values[1]):
            os._exit(9)
    time.sleep(0.5)
    dist.all_reduce(ones)
    dist.destroy_process_group()


def main() -> None:
    env = os.environ
    if "say" in sys.argv:
        said = {"rank": env["RANK"], "local": env["LOCAL_RANK"], "world": env["WORLD_SIZE"], "argv": sys.argv[1:]}
        with open("/proc/self/status") as status:
            cpus = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))
        said |= {"cpus": cpus, "role": env["ROLE_NAME"], "file": __file__, "name": __name__}
        print(json.dumps(said), flush=True)
    if "sum" in sys.argv:
        add_up()


if __name__ == "__main__":
    main()
