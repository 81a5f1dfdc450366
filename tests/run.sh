#!/bin/sh
# Installs what the tests need and runs all of them. Arguments go to pytest: ./tests/run.sh tests/nccl -k lint
#   ./tests/run.sh -n 0                      one after the other (default: on all cores, a file of tests at a time)
#   TORCH='torch==2.13.0' ./tests/run.sh     chooses the torch to install (default: the newest)
# As root also Debian's packages for the lab: sshd, Slurm, nftables and the like; none of their services is started.
# What pytest skipped, and why, stands above its last line.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
TORCH=${TORCH:-torch}
PACKAGES="openssh-server iproute2 nftables ethtool numactl slurm-wlm munge hwloc-nox faketime chromium"

failed=""

step() { # NAME COMMAND...: run it and say how long it took; a failure is remembered
    name=$1
    shift
    begun=$(date +%s%N)
    outcome=""
    "$@" || {
        outcome=", failed"
        failed="$failed $name,"
    }
    echo "$begun $(date +%s%N)" | awk -v name="$name" -v outcome="$outcome" \
        '{ printf "== %s: %.1f s%s\n", name, ($2 - $1) / 1e9, outcome }'
}

packages() {
    missing=""
    for package in $PACKAGES; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "not installed, tests that need them are skipped:$missing"
        return 0
    fi
    export DEBIAN_FRONTEND=noninteractive
    # Debian starts a service as soon as its package is there, unless this file forbids it.
    if ! [ -e /usr/sbin/policy-rc.d ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
    fi
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

environment() {
    if ! [ -x .venv/bin/python ] || ! [ -x .venv/bin/pip ]; then
        "${PYTHON:-python3}" -m venv .venv || return 1
    fi
    wanted="$TORCH $PWD $(cksum <pyproject.toml)"
    grep -qsxF -- "$wanted" .venv/installed-test && return 0
    rm -f .venv/installed .venv/installed-test
    .venv/bin/python -m pip install -q --disable-pip-version-check "$TORCH" -e '.[test]' || return 1
    echo "$wanted" >.venv/installed-test
}

namespaces() {
    unshare --net --mount --pid --fork true 2>/dev/null ||
        unshare --user --map-root-user --net --mount --pid --fork true 2>/dev/null ||
        echo "this machine allows no network namespaces: the lab's tests are skipped"
}

audit() { # what is known today of the packages that nvrun needs: shown, and no failure, since it changes without nvrun
    [ -x .venv/audit/bin/pip-audit ] || {
        .venv/bin/python -m venv .venv/audit && timeout 60 .venv/audit/bin/pip install -q --disable-pip-version-check --retries 1 pip-audit
    } || {
        echo "packages not audited: pip-audit cannot be installed here"
        return 0
    }
    rm -f .venv/audit.json
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    timeout 30 .venv/audit/bin/pip-audit --progress-spinner off --path "$site" -f json -o .venv/audit.json 2>.venv/audit.log || true
    .venv/bin/python -c '
import json, pathlib
try:
    found = json.loads(pathlib.Path(".venv/audit.json").read_text())["dependencies"]
except (OSError, ValueError, LookupError):
    raise SystemExit("packages not audited: " + pathlib.Path(".venv/audit.log").read_text()[-300:].strip())
known = [each for each in found if "vulns" in each]
for each in known:
    for hole in each["vulns"]:
        print(each["name"], each["version"], "has", hole["id"], "mended in", ", ".join(hole["fix_versions"]) or "none yet")
print(f"audited {len(known)} packages; {len(found) - len(known)} are not known where packages come from here")
' || true
}

step packages packages
step environment environment
[ -z "$failed" ] || exit 1
step namespaces namespaces
step "ruff check" .venv/bin/ruff check -q .
step "ruff format" .venv/bin/ruff format -q --check .
step mypy .venv/bin/mypy
[ -z "${CI:-}" ] || step pip-audit audit
# Much of what tests do is wait: one more at a time than there are cores. With GPUs none: they would share them.
workers=$(($(nproc) < 8 ? $(nproc) + 1 : 8))
[ ! -e /dev/nvidiactl ] || workers=0
# Real hosts on busy cores: what failed is run once more, alone, and both are shown.
.venv/bin/python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder --durations 10 "$@" || {
    code=$?
    [ "$code" = 1 ] || exit "$code"
    echo "== the tests that failed, once more"
    .venv/bin/python -m pytest --last-failed --last-failed-no-failures none "$@" || exit
}
if [ -n "$failed" ]; then
    echo "tests passed, but these failed before:${failed%,}"
    exit 1
fi
