#!/usr/bin/env bash
# From a clean clone to a trained model on two CPU cores: environment, model, data, four updates, a summary.
# Everything it writes is under .venv, .cache and runs/quickstart. A second run installs and prepares nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/environment.sh
.venv/bin/python scripts/prepare_model.py .cache/smollm2-135m-instruct
exec .venv/bin/python scripts/quickstart.py "$@"
