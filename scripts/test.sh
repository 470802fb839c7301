#!/usr/bin/env bash
# All tests: the fast ones, then those that start real training runs. With arguments: one pytest run with them.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/environment.sh

if [ $# -gt 0 ]; then
    exec .venv/bin/python -m pytest "$@"
fi
# a file's tests stay in one process; two processes with threads of their own would fight for two cores
OMP_NUM_THREADS=1 .venv/bin/python -m pytest -m "not end_to_end" -n 2 --dist loadfile
# one run at a time: verl names its sockets by Ray's job, which is the first one in every run
.venv/bin/python -m pytest -m end_to_end
