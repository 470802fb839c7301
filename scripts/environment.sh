#!/usr/bin/env bash
# Create .venv for CPUs: the pinned lists and this package, editable. Up to date: does nothing and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
log=$venv/install.log
stamp=$venv/installed
wanted=$({ pwd; cat requirements-cpu.txt requirements-dev.txt requirements-tau2.txt setup.py pyproject.toml; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0

fail() {
    echo "environment: $1" >&2
    exit 1
}

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || fail "the pinned wheels are for Linux on x86_64, this is $(uname -s) on $(uname -m)."
python=
for candidate in python3.11 python3.12 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11 or 3.12 not found; install it so that python3.11 or python3.12 is on PATH."
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module; install it (Debian: python3-venv)."
command -v cc >/dev/null || fail "no C compiler found; install one (Debian: gcc), pycosat is compiled."

echo "environment: installing into $venv with $python, minutes the first time" >&2
"$venv/bin/python" -c 'import pip' 2>/dev/null || "$python" -m venv --clear "$venv"
rm -f "$stamp"
: >"$log"

install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps "$@" >>"$log" 2>&1 && return
    grep -v 'is ignored' "$log" | tail -n 20 >&2
    fail "pip install $* failed; the end of $log is above."
}

install "$(grep '^setuptools==' requirements-cpu.txt)"
install --no-build-isolation -r requirements-cpu.txt -r requirements-dev.txt -r requirements-tau2.txt
install --no-build-isolation -e .
"$venv/bin/python" -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' 2>>"$log" ||
    fail "torch is not the CPU build (+cpu); have pip's index configuration offer it, remove $venv and start again."
echo "$wanted" >"$stamp"
