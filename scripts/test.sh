#!/usr/bin/env bash
# All tests: the fast ones, then those that start real training runs. With arguments: one pytest run with them.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/environment.sh

if [ $# -gt 0 ]; then
    exec .venv/bin/python -m pytest "$@"
fi
.venv/bin/python -m pytest -m "not end_to_end"
.venv/bin/python -m pytest -m end_to_end
