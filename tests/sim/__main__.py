"""``make sim SEED=n STEPS=m``, or ``python -m tests.sim --seed n --steps m``."""

from __future__ import annotations

import argparse
import sys

import msgspec

from tests.sim.run import Failure, simulate


def main() -> int:
    """Exit code 0, or 1 with the seed, the step and the end of the log on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=20_000, help="of each seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds in a row")
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            outcome = simulate(seed, asked.steps)
        except Failure as failure:
            sys.stderr.write(f"{failure}\n")
            return 1
        rate = f"{outcome.steps / outcome.wall_s:.0f} steps/s"
        sys.stdout.write(f"{msgspec.json.encode(outcome).decode()} {rate}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
