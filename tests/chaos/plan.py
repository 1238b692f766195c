"""What is done to the daemon, and when: a function of the seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum

from msgspec import Struct


class Act(Enum):
    """What a step does."""

    KILL_SHARD = "kill a shard"
    KILL_SHARDS = "kill all shards"
    KILL_SUPERVISOR = "kill the supervisor, start again"
    KILL_EVERYTHING = "kill everything, start again"
    STOP_SHARD = "stop a shard for a while"
    STOP_SUPERVISOR = "stop the supervisor for a while"
    KILL_COMMAND = "kill the compaction or collection at work"
    STOP_COMMAND = "stop the compaction or collection at work for a while"
    RESTART = "stop in good order, start again"
    RELOAD = "reload a configuration with other commit windows"

    KILL_OWNER = "kill the owner, start again"
    STOP_OWNER = "stop the owner until it is superseded"
    CUT_OWNER = "cut the owner off from the store until it is superseded"
    CUT_STANDBY = "cut the standby off from the store for a while"
    KILL_STANDBY = "kill the standby, start again"
    HAND_OVER = "hand over"


# Shares of the steps. A shard's death is what the design is about; a restart takes seconds.
WEIGHTS = {
    Act.KILL_SHARD: 60,
    Act.KILL_SHARDS: 8,
    Act.KILL_SUPERVISOR: 7,
    Act.KILL_EVERYTHING: 7,
    Act.STOP_SHARD: 12,
    Act.STOP_SUPERVISOR: 3,
    Act.KILL_COMMAND: 4,
    Act.STOP_COMMAND: 12,
    Act.RESTART: 3,
    Act.RELOAD: 6,
}
OF_PAIR = (
    Act.KILL_OWNER, Act.STOP_OWNER, Act.CUT_OWNER, Act.CUT_STANDBY, Act.KILL_STANDBY,
    Act.HAND_OVER,
)  # fmt: skip
PAUSE_MS = (30, 900)  # from within one commit to several after the last step
PAIR_PAUSE_MS = (500, 5_000)  # entries of the owner's log are 5 s apart
PAIR_STOP_MS = (1_000, 12_000)  # beyond the 7 s of silence after which a standby asks
STOP_MS = (50, 3_500)  # up to beyond the 2 s after which a stopped lease holder is killed


class Step(Struct, frozen=True):
    """The act after ``pause_ms``, on ``shard`` if it concerns one, for ``stop_ms`` if it stops."""

    pause_ms: int
    act: Act
    shard: int
    stop_ms: int


def steps(seed: int, shards: int) -> Iterator[Step]:
    """An endless sequence of steps."""
    rng = random.Random(seed)
    acts, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        yield Step(
            pause_ms=rng.randint(*PAUSE_MS),
            act=rng.choices(acts, weights)[0],
            shard=rng.randrange(shards),
            stop_ms=rng.randint(*STOP_MS),
        )


def pair_steps(seed: int) -> Iterator[Step]:
    """An endless sequence of steps of a pair: each act in turn, in another order each time."""
    rng = random.Random(seed)
    while True:
        for act in rng.sample(OF_PAIR, len(OF_PAIR)):
            yield Step(
                pause_ms=rng.randint(*PAIR_PAUSE_MS), act=act, shard=0,
                stop_ms=rng.randint(*PAIR_STOP_MS),
            )  # fmt: skip
