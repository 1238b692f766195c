"""Which of the next records of a partition are messages of a subscription, and what it passes over.

A record that the filter of the subscription leaves out is finished when it is looked at: it takes
no memory, no line in the journal and no row in the ledger, and the floor passes it with what is
before it. So a successor, which goes on at the floor, may compare some records once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from delivery.filters import Filter
from delivery.subscriptions.budget import ADMIT_LOT, Share
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from ledger.delivery.subscription_rules import SubscriptionRules
from uploader.l0.records import Record


def admit(
    window: SubscriptionWindow,
    share: Share,
    rules: SubscriptionRules,
    passing: Filter | None,
    partition: int,
    records: Sequence[Record],
) -> int:
    """Takes in the next records, or the first ones of them; returns the work of it, in messages
    admitted."""
    if passing is None:
        return _admit(window, share, rules, partition, records)[1]
    work = 0
    for passes, run in groupby(records, passing.matches):
        part = [*run]
        work += passing.cost(part)
        if not passes:
            window.pass_over(partition, len(part))
            window.counts.filtered += len(part)
            continue
        count, more = _admit(window, share, rules, partition, part)
        work += more
        if count < len(part):
            break
    return work


def _admit(
    window: SubscriptionWindow,
    share: Share,
    rules: SubscriptionRules,
    partition: int,
    records: Sequence[Record],
) -> tuple[int, int]:
    """How many were admitted, and the work of it. One that is compared with many patterns of
    consumers now counts as several."""
    if rules.takes_nodes:
        keys = [each.node if each.key is None else each.key for each in records]
    else:
        keys = [each.key for each in records]
    keys = [*share.fitting(keys)]
    count = work = len(keys)
    if not rules.reliable:  # its window finds the owner of each key now
        count, work = window.members.matched_together(keys, ADMIT_LOT)
    window.admit(partition, keys[:count])
    return count, work
