"""Train the small model on generated tasks, score it on held-out ones, and save it as a checkpoint.

    python -m training.train --out models/sprig-10m-b32

The schedule goes by the clock: what there is when the time is up is saved, then scored.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from training.clock import Clock
from training.data import BLOCK, EARLY, SHARES, TASK_NAMES, Feed, Sizes
from training.vocabulary import train_tokenizer

KINDS = (((1,), EARLY), ((2, 4, 8, 16), EARLY), ((BLOCK,), SHARES))  # sizes of blocks, one kind after the other


def _tasks(names: str) -> str:
    if unknown := set(names.split(",")) - set(TASK_NAMES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: no task; there are {', '.join(TASK_NAMES)}")
    return names


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument(
        "--minutes", type=float, default=4.1, help="from the start of the script to the end of training"
    )
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=4096, help="ids at most")
    parser.add_argument("--tokenizer", type=Path, help="take this vocabulary instead of making one")
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--inner", type=int, default=896)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=6, help="of 64 numbers; keys and values have a third of them")
    parser.add_argument("--tasks", type=_tasks, default=",".join(TASK_NAMES), help="to learn and to be scored on")
    parser.add_argument("--rows", type=int, default=64, help="packs a step")
    parser.add_argument("--tokens", type=int, default=512, help="tokens a pack")
    parser.add_argument("--learn", type=int, default=192, help="masks a pack, at most, that are learnt from")
    parser.add_argument("--muon", type=float, default=0.006, help="rate of the matrices")
    parser.add_argument("--adam", type=float, default=2e-3, help="rate of the embedding and the norms")
    parser.add_argument("--decay-from", type=float, default=0.55, help="part of the time from which rates fall to 0")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--check-every", type=float, default=120, help="seconds between scores on a few prompts")
    parser.add_argument("--held-out", type=int, default=150, help="prompts a task that the result is scored on")
    parser.add_argument("--examples", type=int, default=8000, help="a task, that the vocabulary is made from")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    return parser.parse_args()


def main() -> None:
    args = options()
    clock = Clock(60 * args.minutes)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.tokenizer
    if path is None:
        path = args.out / "tokenizer.json"
        train_tokenizer(args.vocabulary, n_examples=args.examples).save(str(path), pretty=False)
    kinds = [
        Sizes(args.rows, args.tokens, args.learn, blocks, {name: shares[name] for name in args.tasks.split(",")})
        for blocks, shares in KINDS
    ]
    feed = Feed(str(path), kinds, args.seed, args.workers)
    # Only now, with the feed's processes forked: they need no torch, and may not share what it holds.
    from training.run import run

    run(args, path, feed, clock)
    feed.close()


if __name__ == "__main__":
    main()
