"""The two GPUs of one machine as two hosts `one` and `two`: a network namespace each, joined by a bridge.

Made by pyroute2, for machines that have no `ip`. They are reached by `--rsh`, and told apart by NCCL_HOSTID. Nothing of
it is undone: for machines that are thrown away, or `unshare --net --mount` with an /etc/hosts and a /run of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

HOSTS = {"one": "10.99.0.1", "two": "10.99.0.2"}


def make(folder: Path) -> list[str]:
    """The flags that reach both, one rank on each; the script behind `--rsh` is written into `folder`."""
    if not Path("/var/run/netns", next(iter(HOSTS))).exists():  # an earlier study on this machine made them
        _join()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    script = folder / "rsh.sh"
    script.write_text(
        "#!/bin/sh\n# HOST COMMAND...: on that host, with its GPU; the environment is kept\n"
        "host=$1; shift\n"
        + ("case $host in one) gpu=0;; two) gpu=1;; esac\n" if visible is None else f"gpu={visible}\n")
        + "export CUDA_VISIBLE_DEVICES=$gpu NCCL_HOSTID=$host\n"
        'exec nsenter --net=/var/run/netns/$host unshare --uts sh -c \'hostname "$0" && exec "$@"\' "$host" "$@"\n'
    )
    script.chmod(0o755)
    return ["--hosts", ",".join(HOSTS), "--rsh", f"{script} {{host}}", "--nproc-per-node", "1"]


def _join() -> None:
    from pyroute2 import IPRoute, NetNS, netns  # type: ignore[import-not-found, unused-ignore]

    with IPRoute() as ip:
        ip.link("add", ifname="nvbr", kind="bridge")
        bridge = ip.link_lookup(ifname="nvbr")[0]
        ip.link("set", index=bridge, state="up")
        for number, (name, address) in enumerate(HOSTS.items(), start=1):
            netns.create(name)
            ip.link("add", ifname=f"nv{number}", kind="veth", peer={"ifname": f"in{number}"})
            outer, inner = ip.link_lookup(ifname=f"nv{number}")[0], ip.link_lookup(ifname=f"in{number}")[0]
            ip.link("set", index=outer, master=bridge, state="up")
            ip.link("set", index=inner, net_ns_fd=name)
            with NetNS(name) as inside:
                link = inside.link_lookup(ifname=f"in{number}")[0]
                inside.addr("add", index=link, address=address, prefixlen=24)
                inside.link("set", index=link, state="up")
                inside.link("set", index=inside.link_lookup(ifname="lo")[0], state="up")
    with open("/etc/hosts", "a") as file:
        file.writelines(f"{address} {name}\n" for name, address in HOSTS.items())
