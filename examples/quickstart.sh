#!/bin/sh
# Makes .venv, installs nvrun into it and trains a small model on this machine with two ranks.
#   TORCH='torch==2.13.0' ./examples/quickstart.sh     chooses the torch to install (default: the newest)
#   PYTHON=python3.12 ./examples/quickstart.sh         chooses the interpreter of a new .venv (default: python3)
# A second call installs nothing and only trains.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
TORCH=${TORCH:-torch}

if ! [ -x .venv/bin/python ] || ! [ -x .venv/bin/pip ]; then
    "${PYTHON:-python3}" -m venv .venv || {
        echo "quickstart: no virtual environment without Python's venv module: apt install python3-venv" >&2
        exit 1
    }
fi

# What is installed is written down, so that nothing is asked of the network twice.
wanted="$TORCH $PWD $(cksum <pyproject.toml)"
if ! grep -qsxF -- "$wanted" .venv/installed .venv/installed-test; then
    rm -f .venv/installed .venv/installed-test
    echo "quickstart: installing $TORCH and nvrun into $PWD/.venv" >&2
    # Without NumPy torch prints a warning in every rank.
    .venv/bin/python -m pip install -q --disable-pip-version-check "$TORCH" numpy -e .
    echo "$wanted" >.venv/installed
fi

exec .venv/bin/nvrun --nproc-per-node 2 examples/train_ddp.py
