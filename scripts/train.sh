#!/usr/bin/env bash
# Start a recipe with the stock entry of verl, in whatever environment `python` belongs to.
#
#   scripts/train.sh RECIPE MODEL TRAIN.parquet VAL.parquet [hydra overrides ...]
#   scripts/train.sh mintrl_gated Qwen/Qwen3-1.7B train.parquet test.parquet trainer.n_gpus_per_node=4
set -euo pipefail
if [ $# -lt 4 ]; then
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
recipes=$(cd "$(dirname "$0")/../recipes" && pwd)
recipe=$1 model=$2 train=$3 val=$4
shift 4
exec python -m verl.trainer.main_ppo --config-dir "$recipes" --config-name "$recipe" \
    actor_rollout_ref.model.path="$model" data.train_files="$train" data.val_files="$val" "$@"
