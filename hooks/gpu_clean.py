"""Ends what earlier runs left on the hosts' GPUs, before the job; says what still holds them after it.

By default only processes of this user that carry the mark of an nvrun run whose supervisor is gone; `which=mine` ends
all of this user's processes on the GPUs. Another user's are never touched, and named. Needs nvidia-smi on the hosts.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Annotated, Any, Literal

from nvrun.hooks import Completed, Frozen, HookFailed, Job, Option
from nvrun.options import choice

# Runs in the job's own interpreter on each host: which=mine|leftover, look|end. Prints one JSON document.
ON_HOST = r"""
import json, os, signal, subprocess, sys, time

def environ(pid):
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = [part.split(b"=", 1) for part in file.read().split(b"\0") if b"=" in part]
        return dict(pairs)
    except OSError:
        return {}

def parent(pid):
    with open("/proc/%d/stat" % pid) as file:
        return int(file.read().rpartition(")")[2].split()[1])

def name(pid):
    with open("/proc/%d/comm" % pid) as file:
        return file.read().strip()

def left_over(pid):
    # Up to the first ancestor without the run's mark: init or systemd has adopted what a dead run left. Anything else
    # (a supervisor that lives) means that the run goes on.
    mark = environ(pid).get(b"NVRUN_MARK")
    if not mark:
        return False
    while environ(pid).get(b"NVRUN_MARK") == mark:
        pid = parent(pid)
        if pid <= 1:
            return True
    return name(pid) == "systemd"

def on_gpus():
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=20)
    if said.returncode:
        sys.exit("nvidia-smi: " + said.stdout.strip())
    found = {}
    for line in said.stdout.splitlines():
        pid, _, memory = line.partition(",")
        if pid.strip().isdigit() and os.path.exists("/proc/" + pid.strip()):
            found[int(pid)] = memory.strip()
    return found

def alive(pids):
    return [pid for pid in pids if os.path.exists("/proc/%d" % pid)]

which, action = sys.argv[1:]
ended, left, others = [], [], []
for pid, memory in on_gpus().items():
    try:
        entry = {"pid": pid, "name": name(pid), "mib": memory}
        mine = os.stat("/proc/%d" % pid).st_uid == os.getuid()
        (others if not mine else ended if which == "mine" or left_over(pid) else left).append(entry)
    except OSError:
        continue
if action == "end":
    for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for pid in alive(entry["pid"] for entry in ended):
            os.kill(pid, number)
        until = time.monotonic() + seconds
        while alive(entry["pid"] for entry in ended) and time.monotonic() < until:
            time.sleep(0.05)
print(json.dumps({"ended": ended, "left": left, "others": others,
                  "stuck": alive(entry["pid"] for entry in ended) if action == "end" else []}))
"""


class Options(Frozen, frozen=True, kw_only=True):
    which: Annotated[
        Literal["leftover", "mine"],
        Option(choice("leftover", "mine"), "leftover|mine", "what dead nvrun runs left, or all processes of this user"),
    ] = "leftover"


def around(job: Job, options: Options) -> Generator[None, None, None]:
    failed = []
    for host, done in _run(job, options.which, "end").items():
        found = _answer(done)
        if found is None:
            failed.append(f"{host}: {done.words}")
            continue
        for each in found["ended"]:
            job.say(f"gpu-clean: {host}: ended {_named(each)}")
        if found["stuck"]:
            failed.append(f"{host}: {found['stuck']} cannot be ended (uninterruptible wait); it may need a reboot")
        for each in found["others"]:
            job.warn(f"gpu-clean: {host}: another user's process {_named(each)} is on a GPU", host=host)
    if failed:
        raise HookFailed("; ".join(failed))
    yield
    for host, done in _run(job, options.which, "look").items():
        found = _answer(done)
        for each in (*found["ended"], *found["left"]) if found else ():
            job.warn(f"gpu-clean: {host}: {_named(each)} is still on a GPU after the job", host=host)


def _run(job: Job, which: str, action: str) -> Mapping[str, Completed]:
    script = 'exec "$NVRUN_PYTHON" -I - "$@"'
    return job.on_hosts(["sh", "-c", script, "sh", which, action], stdin=ON_HOST, timeout=40.0)


def _answer(done: Completed) -> Any:
    try:
        return json.loads(done.stdout) if done.ok else None
    except ValueError:
        return None


def _named(each: Mapping[str, Any]) -> str:
    return f"{str(each['name'])[:40]!r} (pid {each['pid']}, {each['mib']} MiB)"
