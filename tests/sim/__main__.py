"""``make sim SEED=n SEEDS=k STEPS=m``, or ``python -m tests.sim --seed n --seeds k --steps m``.

``SIM=--standbys`` simulates an owner and its standbys instead, ``SIM=--calm`` one that lives.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import msgspec

from tests.sim.run import Failure, simulate
from tests.sim.schedule import Violation
from tests.sim.standbys import simulate_standbys


def main() -> int:
    """Exit code 0, or 1 with the seed, the step and the end of the log on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=20_000, help="of each seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds in a row")
    parser.add_argument("--standbys", action="store_true", help="an owner and its standbys")
    parser.add_argument("--calm", action="store_true", help="the same, and the owner lives")
    asked = parser.parse_args()
    run = partial(simulate_standbys, calm=asked.calm) if asked.standbys or asked.calm else simulate
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            outcome = run(seed, asked.steps)
        except (Failure, Violation) as failure:
            notes = getattr(failure, "__notes__", ())
            sys.stderr.write("\n".join((str(failure), *notes)) + "\n")
            return 1
        sys.stdout.write(f"{msgspec.json.encode(outcome).decode()}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
