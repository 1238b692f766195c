"""How much of a subscription's lag more consumers would help with.

Vocabulary: the *lag* is the records that are not finished. The *drainable* lag is those of them
that consumers could work on simultaneously, so it says how many are worth having. It leaves out

* all but one message of each key: a key with a million messages keeps one consumer busy;
* messages that rest after a failed delivery or are stuck, with their keys: nobody gets them now;
* what no consumer that is present accepts: another one of the same kind would not either. Without
  any consumer everything counts, since the first one is worth having;
* everything, while nothing can be delivered: the store or the dispatch is held, or it is paused.

What is with consumers counts: they are needed for it. A window counts what it was told of.

Records that it was not told of yet, since the consumers have enough, count as what it was told of,
and at most as much: so the signal doubles until it is known how many keys there are. (An autoscaler
rarely does more than double either.)
"""

from __future__ import annotations


def drainable_lag(drainable: int, unfinished: int, unseen: int, *, held: bool) -> int:
    """How many messages consumers could work on simultaneously.

    A window knows of ``unfinished`` messages and counts ``drainable`` ones; it could take in
    ``unseen`` more. ``held``: nothing is delivered now.
    """
    if held:
        return 0
    if not unseen:
        return drainable
    if not drainable:
        return 1  # it takes one consumer to find out
    return drainable + min(drainable, unseen * drainable // unfinished)


def consumers_wanted(drainable: int, consumers: int, consumer_max: int) -> int:
    """How much more consumers would help, 0 to 100: the part of the drainable lag that those which
    are present cannot hold, each at most ``consumer_max`` messages. Rounded up: 0 means none."""
    more = drainable - consumers * consumer_max
    return 0 if more <= 0 else -(-100 * more // drainable)
