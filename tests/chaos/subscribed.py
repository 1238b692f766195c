"""The rules for subscriptions, by the word that a contradiction begins with. Pure.

The key of a message is its node, if it has no key and the subscription has ``key_fallback``.

Of each reliable subscription:

- undrained: in the end it has no lag, unless it was deleted.
- unserved: each record of its topic that its filter lets pass was acknowledged by a consumer, or
  went the way of the poison policy after enough deliveries, or was evicted.
- redone: what was acknowledged, and accepted, is not sent again. Only if all processes were killed
  then, it may be, unless the owner did something FLUSHED_MS later: it flushes while it lives, and
  its successor does before all else.
- unreasoned: a message is sent again only after a refusal or a time-out, after its connection
  ended, or after processes were killed or stopped. With ``exclusive``, what follows a
  message that was refused is sent again, too.
- overtried: no message is sent again after its last permitted failure.
- early: with ``key_shared``, a message is sent only when a consumer has dealt with the one before
  it that has the same key and partition.
- locked: with ``key_shared``, one message of a key is with consumers, whatever its partition,
  unless it is evicted.
- reordered: with ``key_shared``, what follows a message in the order of its key is not sent before
  it again, not even after a failure. With ``exclusive``, messages are sent first in their order.
- reburied: a dead letter is stored once; misburied: after enough failures, and never accepted. Each
  life of a subscription may store one.

Of every subscription:

- mistold: a message is what is kept at its offset.
- unwanted: it passes the filter of the subscription; and its key passes the filters of the
  consumer, and it has one if there are filters.
- twice: an epoch names each message once, and one connection.
- damaged: no consumer is told of gaps but of evicted records, and those that all readers see.
- unsteady: if the subscription is not reliable, each connection sees each key in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.chaos.handings import Handing, Handings, Said
from tests.chaos.history import Spot, key_of, matches, passes
from tests.chaos.known import EVICTED, Known

FLUSHED_MS = 10_000  # far more than the second after which what is finished is on disk
HELD_MS = 5_000  # a connection may be held up as long by a process that was stopped before
# A time-out may be this much earlier for whom it is late to learn of a batch: a shard stood still
# while it was on its way, or the machine.
TIMER_MS = 10_000

Rule = Callable[[Known, Handings], Iterator[str]]


def _unserved(known: Known, served: Handings) -> Iterator[str]:
    name = served.rules.subscription
    if served.ended:
        return
    if served.lag != 0:
        yield f"undrained: {name} has a lag of {served.lag} in the end"
        return
    buried, is_only = _buried(known, served), len(_lives(known, served)) == 1
    lost_line = known.renewed.get(served.rules.dead_letters, 0)
    for spot, record in _kept(known, served):
        times, has_failed = len(served.of(spot)), _has_failed(served, spot)
        is_buried = record in buried and (has_failed or is_only)
        # A letter that a deleted topic may have had, for it had come before that was gone.
        is_lost = has_failed and served.of(spot)[-1].line < lost_line
        is_dropped = has_failed and served.rules.poison == "drop"
        if spot not in served.done and not (is_buried or is_lost or is_dropped):
            yield (
                f"unserved: {record} at {spot} was never acknowledged to {name}, and was sent"
                f" {times} times"
            )


def _redone(known: Known, served: Handings) -> Iterator[str]:
    for spot, accepted in served.accepted.items():
        for said in accepted:
            for handing in served.of(spot):
                if not said.epoch or handing.epoch <= said.epoch:
                    continue
                if said.era == served.era(handing) or not _forgotten(known, served, said):
                    yield (
                        f"redone: {handing.message.record} at {spot} of"
                        f" {served.rules.subscription} was acknowledged in batch {said.epoch}, and"
                        f" came again in {handing.epoch}"
                    )


def _unreasoned(known: Known, served: Handings) -> Iterator[str]:
    for spot, found in served.took.items():
        for before, after in pairwise(found):
            if before.epoch == after.epoch or served.era(before) != served.era(after):
                continue
            failed = served.failed.get((spot, before.epoch))
            reasons = (
                failed is not None and failed.line < after.line,
                after.at_ms - before.empty_ms >= served.rules.ack_timeout_ms - TIMER_MS,
                served.parted.get(before.connection, after.line) < after.line,
                served.newest[before.connection] < after.epoch,
                _harmed(known, before, after),
                served.rules.mode == "exclusive" and _failed_earlier(served, before, after),
            )
            if not any(reasons):
                yield (
                    f"unreasoned: {after.message.record} at {spot} of"
                    f" {served.rules.subscription} was sent in batch {before.epoch}, and again in"
                    f" {after.epoch}"
                )


def _overtried(known: Known, served: Handings) -> Iterator[str]:
    for handing in served.all():
        if handing.message.attempt > served.rules.failures_max:
            yield (
                f"overtried: {handing.message.record} at {handing.spot} of"
                f" {served.rules.subscription} was sent as attempt {handing.message.attempt} of"
                f" {served.rules.failures_max}"
            )


def _early(known: Known, served: Handings) -> Iterator[str]:
    if served.rules.mode != "key_shared":
        return
    last: dict[tuple[int, str], tuple[Spot, str]] = {}
    for spot, record in _kept(known, served):
        key = key_of(record, served.rules.key_fallback)
        if key is None:
            continue
        before = last.get((spot[0], key))
        last[spot[0], key] = (spot, record)
        if before is not None and spot in served.took:
            line = min(handing.line for handing in served.of(spot))
            if not _dealt_with(served, before[0], line):
                yield (
                    f"early: {record} at {spot} was sent to {served.rules.subscription} while"
                    f" nobody had dealt with {before[1]} at {before[0]}, of the same key"
                )


def _locked(known: Known, served: Handings) -> Iterator[str]:
    if served.rules.mode != "key_shared":
        return
    for key, found in _by_key(served).items():
        for before, after in pairwise(found):
            if (
                before.spot != after.spot
                and served.era(before) == served.era(after)
                and not _dealt_with(served, before.spot, after.line)
                and before.spot[1] > known.evicted[served.rules.topic, before.spot[0]]
                and not _harmed(known, before, after)
            ):
                yield (
                    f"locked: {after.message.record} at {after.spot} of {key} was sent to"
                    f" {served.rules.subscription} while {before.message.record} at {before.spot}"
                    " was with a consumer"
                )


def _reordered(known: Known, served: Handings) -> Iterator[str]:
    name = served.rules.subscription
    if served.rules.mode == "key_shared":
        for key, found in _by_key(served).items():
            last: dict[tuple[int, int], Handing] = {}
            for handing in found:
                place = (served.era(handing), handing.spot[0])
                before = last.setdefault(place, handing)
                if handing.spot < before.spot:
                    yield (
                        f"reordered: {handing.message.record} at {handing.spot} of {key} was sent"
                        f" to {name} in batch {handing.epoch}, after {before.message.record} at"
                        f" {before.spot} in {before.epoch}"
                    )
                last[place] = max(before, handing, key=lambda each: each.spot)
    elif served.rules.mode == "exclusive":
        firsts = sorted(found[0] for found in served.took.values() if found)
        newest: dict[int, Handing] = {}
        for handing in firsts:
            earlier = newest.get(handing.spot[0])
            if earlier is not None and handing.spot < earlier.spot:
                yield (
                    f"reordered: {handing.message.record} at {handing.spot} was sent to {name}"
                    f" after {earlier.message.record} at {earlier.spot}"
                )
            else:
                newest[handing.spot[0]] = handing


def _dead_letters(known: Known, served: Handings) -> Iterator[str]:
    name = served.rules.subscription
    lives = _lives(known, served)
    if served is not lives[-1]:
        return  # the last life is judged with all before it
    spots = {
        handing.message.record: spot
        for life in lives
        for spot, handings in life.took.items()
        for handing in handings
    }
    for record, places in _buried(known, served).items():
        spot = spots.get(record)
        failed = [life for life in lives if spot is not None and _has_failed(life, spot)]
        able = [life for life in failed if spot is not None and not _taken(known, life, spot)]
        if len(places) <= len(able):
            continue
        if able:
            yield f"reburied: {record} of {name} is a dead letter at {places}"
        elif failed:
            yield f"misburied: {record} of {name} is a dead letter, and was acknowledged"
        else:
            times = [len(life.of(spot)) if spot is not None else 0 for life in lives]
            yield f"misburied: {record} of {name} is a dead letter after {times} deliveries"


def _lives(known: Known, served: Handings) -> list[Handings]:
    """All lives of the name of a subscription, in their order."""
    name = served.rules.subscription.partition("#")[0]
    return [
        life
        for life in known.subscriptions.values()
        if life.rules.subscription.partition("#")[0] == name
    ]


def _has_failed(served: Handings, spot: Spot) -> bool:
    return len(served.of(spot)) >= served.rules.failures_max


def _taken(known: Known, served: Handings, spot: Spot) -> bool:
    """Whether a message was acknowledged, and nothing may have undone that."""
    return any(not _forgotten(known, served, said) for said in served.accepted[spot])


def _mistold(known: Known, served: Handings) -> Iterator[str]:
    for handing in served.all():
        place = (served.rules.topic, handing.spot[0])
        kept = known.kept.get(place, {}).get(handing.spot[1])
        evicted = handing.spot[1] <= known.evicted[place] and kept is None
        moved = known.is_moved(handing.message.record, place, handing.spot[1])
        if kept != handing.message.record and not evicted and not moved:
            yield (
                f"mistold: {served.rules.subscription} sent {handing.message.record} of"
                f" {handing.spot}, where {kept} is kept"
            )


def _unwanted(known: Known, served: Handings) -> Iterator[str]:
    for handing in served.all():
        consuming = served.connections[handing.connection]
        record = handing.message.record
        key = key_of(record, served.rules.key_fallback)
        if consuming.filters and not any(matches(g, key) for g in consuming.filters):
            yield f"unwanted: {consuming.consumer} of {consuming.filters} got {record}"
        if not passes(served.rules.only, record):
            yield f"unwanted: {served.rules.subscription} sent {record}, which it filters out"


def _twice(known: Known, served: Handings) -> Iterator[str]:
    connections: dict[int, int] = {}
    for spot, found in served.took.items():
        for before, after in pairwise(found):
            if before.epoch == after.epoch:
                yield f"twice: {before.message.record} at {spot} is twice in batch {before.epoch}"
        for handing in found:
            if connections.setdefault(handing.epoch, handing.connection) != handing.connection:
                yield (
                    f"twice: batch {handing.epoch} of {served.rules.subscription} went to the"
                    f" connections {connections[handing.epoch]} and {handing.connection}"
                )


def _damaged(known: Known, served: Handings) -> Iterator[str]:
    for each in served.missed:
        is_declared = any(
            first <= each.gap[0] and each.gap[1] <= last for first, last in known.gaps[each.place]
        )
        # What a take-over skipped may be evicted before other readers come there.
        reasons = {*EVICTED, "recovery"} if known.take_overs else EVICTED
        is_evicted = each.reason in reasons and each.gap[1] <= known.evicted[each.place]
        if not is_evicted and not is_declared:
            yield (
                f"damaged: {served.rules.subscription} was told {each.reason} of {each.place},"
                f" {each.gap}"
            )


def _unsteady(known: Known, served: Handings) -> Iterator[str]:
    latest: dict[tuple[int, int, str | None], Handing] = {}
    for handing in sorted(served.all(), key=lambda each: (each.line, each.place)):
        key = key_of(handing.message.record, served.rules.key_fallback)
        if key is None:
            continue
        place = (handing.connection, handing.spot[0], key)
        before = latest.get(place)
        latest[place] = handing
        if before is not None and handing.spot <= before.spot:
            yield (
                f"unsteady: {served.rules.subscription} sent {handing.message.record} at"
                f" {handing.spot} after {before.message.record} at {before.spot}"
            )


def _kept(known: Known, served: Handings) -> Iterator[tuple[Spot, str]]:
    """The records that the subscription was to get and that were not evicted, in their order."""
    starts = dict(enumerate(served.rules.starts))
    for place, records in sorted(known.kept.items()):
        if place[0] == served.rules.topic:
            first = max(known.evicted[place], starts.get(place[1], 0))
            for seq, record in sorted(records.items()):
                if seq > first and passes(served.rules.only, record):
                    yield (place[1], seq), record


def _by_key(served: Handings) -> dict[str, list[Handing]]:
    """The handings of each key, in the daemon's order."""
    found: dict[str, list[Handing]] = defaultdict(list)
    for handing in served.all():
        key = key_of(handing.message.record, served.rules.key_fallback)
        if key is not None:
            found[key].append(handing)
    return found


def _dealt_with(served: Handings, spot: Spot, line: int) -> bool:
    """Whether a consumer may have dealt with a message, or the poison policy, before a line."""
    done = served.done.get(spot)
    if done is not None and done.line < line:
        return True
    if served.rules.poison == "block":
        return False
    return served.failures_before(spot, line) >= served.rules.failures_max


def _failed_earlier(served: Handings, before: Handing, after: Handing) -> bool:
    """Whether a message before this one was refused meanwhile, or timed out: what follows it comes
    back."""
    return any(
        spot[0] == before.spot[0]
        and spot < before.spot
        and said.line < after.line
        and epoch <= before.epoch
        and not any(epoch < handing.epoch <= before.epoch for handing in served.of(spot))
        for (spot, epoch), said in served.failed.items()
    ) or any(
        spot[0] == before.spot[0]
        and spot < before.spot
        and any(
            handing.epoch <= before.epoch
            and after.at_ms - handing.empty_ms >= served.rules.ack_timeout_ms - TIMER_MS
            for handing in handings
        )
        and (spot not in served.done or served.done[spot].line > before.line)
        for spot, handings in served.took.items()
    )


def _harmed(known: Known, before: Handing, after: Handing) -> bool:
    """Whether processes were killed or stopped between two handings."""
    from_ms = before.empty_ms - HELD_MS
    return any(from_ms <= harm.at_ms <= after.at_ms for harm in known.harms)


def _forgotten(known: Known, served: Handings, said: Said) -> bool:
    """Whether a death of all processes may have undone what was accepted."""
    if said.era < len(known.take_overs):
        return said.at_ms >= known.take_overs[said.era].since_ms
    deaths = sum(harm.whole for harm in known.harms)
    return said.era < deaths and served.alive_ms[said.era] - said.at_ms < FLUSHED_MS


def _buried(known: Known, served: Handings) -> dict[str, list[Spot]]:
    """The dead letters of a subscription, and where they are."""
    found: dict[str, list[Spot]] = defaultdict(list)
    for place, records in known.kept.items():
        if place[0] == served.rules.dead_letters:
            for seq, record in records.items():
                found[record].append((place[1], seq))
    return found


OF_RELIABLE: tuple[Rule, ...] = (
    _unserved, _redone, _unreasoned, _overtried, _early, _locked, _reordered, _dead_letters,
)  # fmt: skip
OF_ALL: tuple[Rule, ...] = (_mistold, _unwanted, _twice, _damaged)


def _subscriptions(known: Known) -> Iterator[str]:
    for served in known.subscriptions.values():
        for rule in (*OF_ALL, *(OF_RELIABLE if served.rules.reliable else (_unsteady,))):
            yield from rule(known, served)


RULES = (_subscriptions,)
