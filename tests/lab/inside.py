"""The first process inside the lab's namespaces: sets the lab up, says "ready", reaps, and ends it with its stdin.

Reads one JSON line (what `lab.Lab` wrote), touches nothing outside its own mount and network namespaces. When this
process ends, the kernel kills every process of the lab; when its stdin closes (whoever started the lab is gone), it
ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

STATE = Path("/run/lab")


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()
    make_file_system(spec)
    make_ssh(spec)
    make_bridge(spec["gateway"], spec["prefix"])
    holders = {place["name"]: start_place(place, spec) for place in spec["places"]}
    wait_until_ready(spec["places"], holders)
    write_known_hosts(spec)
    print("ready", flush=True)
    while True:
        os.wait()


def end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def shell(script: str) -> None:
    subprocess.run(["sh", "-euc", script], check=True)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


# ---------------------------------------------------------------------------------------------------- file system


def make_file_system(spec: dict[str, Any]) -> None:
    """A /run, homes, accounts and name resolution of the lab's own; the rest is the machine's."""
    mount("-t", "tmpfs", "-o", "mode=755", "lab", "/run")
    for directory in ("lab", "lab/keep", "lab/etc", "home", "sshd"):
        Path("/run", directory).mkdir()
    if Path("/sys/fs/cgroup").is_dir():
        (STATE / "cgroup").mkdir()
        mount("--rbind", "/sys/fs/cgroup", STATE / "cgroup")
    (root_home, _), (home, uid) = homes(spec)
    needed = [Path(path) for path in spec["needed"]]
    cover(root_home, needed)
    while closed := next((p for path in needed for p in path.parents if not p.stat().st_mode & 0o001), None):
        cover(closed, needed)

    user = spec["user"]
    home.mkdir()
    os.chown(home, uid, uid)
    add_account("passwd", f"{user}:x:{uid}:{uid}::{home}:/bin/bash")
    add_account("group", f"{user}:x:{uid}:")
    # "*" is "no password"; "!" would be a locked account, which sshd refuses even with a key
    replace("shadow", f"root:*:19000::::::\nsshd:*:19000::::::\n{user}:*:19000::::::\n", mode=0o640)
    replace("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    if Path("/etc/slurm").is_dir():  # empty here until somebody starts Slurm
        (STATE / "slurm").mkdir()
        mount("--bind", STATE / "slurm", "/etc/slurm")
    (STATE / "hosts").write_text(spec["etc_hosts"])
    replace("hosts", spec["etc_hosts"])
    for place in spec["places"]:
        (STATE / place["name"]).mkdir()
    for name, text in spec["scripts"].items():
        (STATE / name).write_text(text)
        (STATE / name).chmod(0o755)


def cover(directory: Path, needed: list[Path]) -> None:
    """Put an empty, traversable directory over one that is private, with what the lab needs of it still in place."""
    kept = sorted({directory / path.relative_to(directory).parts[0] for path in needed if directory in path.parents})
    for number, path in enumerate(kept):
        (STATE / "keep" / str(number)).mkdir(exist_ok=True)
        mount("--bind", path, STATE / "keep" / str(number))
    mount("-t", "tmpfs", "-o", "mode=755", "lab", directory)
    for number, path in enumerate(kept):
        path.mkdir()
        mount("--move", STATE / "keep" / str(number), path)


def add_account(file: str, line: str) -> None:
    replace(file, Path("/etc", file).read_text().rstrip("\n") + f"\n{line}\n")


def replace(file: str, text: str, mode: int = 0o644) -> None:
    """Bind a file of the lab's own over /etc/FILE."""
    own = STATE / "etc" / file
    own.write_text(text)
    own.chmod(mode)
    mount("--bind", own, Path("/etc", file))


# ------------------------------------------------------------------------------------------------------------ ssh


def homes(spec: dict[str, Any]) -> list[tuple[Path, int]]:
    """Root's home and the ordinary user's, with their owners' uids."""
    return [(Path(home), uid) for home, uid in spec["homes"]]


def make_ssh(spec: dict[str, Any]) -> None:
    """One key pair that every account of the lab may log in with, and a host key for each host."""
    keys = [(STATE / "id_ed25519", "lab")]
    keys += [(STATE / place["name"] / "host_key", place["name"]) for place in spec["places"] if place["daemon"]]
    shell("\n".join(f"ssh-keygen -q -t ed25519 -N '' -C {comment} -f {path}" for path, comment in keys))
    (STATE / "sshd_config").write_text(spec["sshd_config"])
    for home, uid in homes(spec):
        directory = home / ".ssh"
        directory.mkdir(mode=0o700)
        for name in ("id_ed25519", "id_ed25519.pub"):
            (directory / name).write_text((STATE / name).read_text())
        (directory / "config").write_text(spec["ssh_config"])
        for path in (directory, *directory.iterdir()):
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.chown(path, uid, uid)


def write_known_hosts(spec: dict[str, Any]) -> None:
    lines = []
    for place in spec["places"]:
        if place["daemon"]:
            kind, key, *_ = (STATE / place["name"] / "host_key.pub").read_text().split()
            lines.append(f"{place['name']},{place['address']} {kind} {key}\n")
    for home, uid in homes(spec):
        path = home / ".ssh" / "known_hosts"
        path.write_text("".join(lines))
        path.chmod(0o600)
        os.chown(path, uid, uid)


# --------------------------------------------------------------------------------------------------------- places


def make_bridge(gateway: str, prefix: int) -> None:
    shell(f"""
        echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
        ip link set lo up
        ip link add br0 type bridge
        ip address add {gateway}/{prefix} dev br0
        ip link set br0 up""")


def start_place(place: dict[str, Any], spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "NAME": place["name"],
        "PORT": place["port"],
        "ADDRESS": f"{place['address']}/{spec['prefix']}",
        "GATEWAY": spec["gateway"],
        "OWN_PIDS": "1" if place["own_pids"] else "",
        "DAEMON": place["daemon"],
        "KEPT": "\n".join(place["kept"]),
    }
    script = ["sh", str(Path(__file__).with_name("host.sh")), *place["private"]]
    return subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", *script], env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr
    )


def wait_until_ready(places: list[dict[str, Any]], holders: dict[str, subprocess.Popen[bytes]]) -> None:
    """Every place has its network, and each host's sshd accepts connections."""
    deadline = time.monotonic() + 50
    for place in places:
        while not is_ready(place):
            if holders[place["name"]].poll() is not None:
                raise RuntimeError(f"host {place['name']} could not be made")
            if time.monotonic() > deadline:
                raise TimeoutError(f"host {place['name']} is not up after 50 s")
            time.sleep(0.01)


def is_ready(place: dict[str, Any]) -> bool:
    if not (STATE / place["name"] / "pid").exists():
        return False
    if not place["daemon"]:
        return True
    try:
        socket.create_connection((place["address"], 22), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
