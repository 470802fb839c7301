"""Write train.parquet and val.parquet of the arithmetic task: ``python scripts/prepare_data.py OUT_DIR [--train N] [--val N]``."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas

from verl_mintrl.tasks import arithmetic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=128, help="training problems")
    parser.add_argument("--val", type=int, default=16, help="validation problems")
    parser.add_argument("--terms", type=int, nargs=2, default=(2, 4), metavar=("FEWEST", "MOST"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, size, seed in (("train", args.train, args.seed), ("val", args.val, args.seed + 1_000_000)):
        partial = args.out / f"{name}.parquet.partial"
        pandas.DataFrame(arithmetic.rows(size, seed, terms=tuple(args.terms))).to_parquet(partial)
        partial.replace(args.out / f"{name}.parquet")


if __name__ == "__main__":
    main()
