"""Code inside a rank's interpreter, the script unchanged: `hooks/inside/sitecustomize.py` on its PYTHONPATH."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Mapping

from nvrun import shipped
from nvrun.hooks.model import HookFailed, Job, log_folder
from nvrun.plan import HostPlan, Plan

# The rank's own PYTHONPATH, whoever set it, with one folder more; sh becomes the program, so the pid stays.
_ENTER = 'PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; exec "$@"'


def prefix(plan: Plan, host: HostPlan, folder: str, name: str, wish: Mapping[str, object]) -> tuple[str, ...]:
    """What stands before the program of a rank that is to be entered. `folder` is the hook's own among the logs; the
    file inside takes the variable `name` out of the environment and does what `wish` says."""
    where = posixpath.join(log_folder(host, plan), folder, "inside")
    return ("env", f"{name}={json.dumps(wish)}", "sh", "-c", _ENTER, where)


def put(job: Job, folder: str, hosts: Collection[str]) -> None:
    """The file that enters is on those hosts, in a folder of the user's alone."""
    source = (shipped.folder("hooks") / "inside" / "sitecustomize.py").read_text()
    where = f'"$NVRUN_FOLDER/{folder}/inside"'
    script = f"umask 077; mkdir -p {where} && cat >{where}/sitecustomize.py"
    failed = [done for done in job.on_hosts(["sh", "-c", script], hosts=hosts, stdin=source).values() if not done.ok]
    if failed:
        raise HookFailed("; ".join(f"{done.host}: {done.words}" for done in failed))


def take_away(job: Job, folder: str, hosts: Collection[str]) -> dict[str, list[str]]:
    """Removes it again -> host -> names in the hook's folder there, of the hosts that answer."""
    script = f'rm -rf "$NVRUN_FOLDER/{folder}/inside"; ls "$NVRUN_FOLDER/{folder}"'
    done = job.on_hosts(["sh", "-c", script], hosts=hosts)
    return {host: each.stdout.splitlines() for host, each in done.items() if each.ok}
