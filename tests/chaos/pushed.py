"""The rules for push subscriptions, by the word that a contradiction begins with. Pure.

- undrained: in the end it has no lag, unless it was deleted.
- undelivered: each record of its topic was in a POST that the receiver answered 2xx, or was refused
  often enough for the poison policy, or was evicted. Failures of the receiver end nothing; one of a
  record alone may be the record's if another POST was answered 2xx since the record's last one.
- renamed: all POSTs of a record have the same ``ce-id``; confused: no other record has it.
- outrun: with ``key_shared``, a record arrives first when the one before it that has the same key,
  or node if that counts as one, and partition was answered 2xx, or refused often enough. With
  ``exclusive``, the one before it in its partition.
- repeated: what was answered 2xx comes again only if the sender may not know the answer, or if
  processes were killed or stopped about then. A sender knows an answer if it has sent another POST
  on the connection: it closes one on which it has waited too long. On a busy machine it may be long
  until the owner, who may not be there yet, knows it too: this ends HELD_MS after the owner has
  answered a question of later, and when it says that it has finished the record.
- overtried: while nothing is killed or stopped, no record comes again after its last permitted
  refusal that the sender knows.
- overstepped: in no window of WINDOWS_MS more POSTs arrive than the rate allows, a burst of BURST_S
  of it or one POST for each sender, and those that may have been held up on their way.
- lingering: while nothing is killed or stopped, no POST arrives LINGERING_MS after it was about to
  be deleted.
- mistold: what arrives is a record of the topic.
- reburied: a dead letter is stored once; misburied: after enough refusals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.chaos.history import Spot, key_of
from tests.chaos.known import Known
from tests.chaos.posts import Post, Posts

FLUSHED_MS = 10_000  # far more than the second after which what is finished is on disk
HELD_MS = 5_000  # a POST or a report may be held up as long by a process that was stopped
LINGERING_MS = 30_000  # a sender that is not told goes on as long as there are records
SLOW_MS = 500  # an answer this long before its time-out may come too late
WINDOWS_MS = (1_000, 10_000)
BURST_S = 0.05
END = 1 << 62

Rule = Callable[[Known, Posts], Iterator[str]]


def _undelivered(known: Known, posts: Posts) -> Iterator[str]:
    name = posts.rules.subscription
    if posts.ended_ms is not None:
        return
    if posts.lag != 0:
        yield f"undrained: {name} has a lag of {posts.lag} in the end"
        return
    buried = _buried(known, posts)
    for spot, record in _kept(known, posts):
        if posts.succeeded(record, END) or record in buried:
            continue
        counted = posts.counted_max(record, END)
        if posts.rules.poison != "drop" or counted < posts.rules.failures_max:
            statuses = [
                reply.status if (reply := posts.replies.get(post.number)) is not None else 0
                for post in posts.of(record)
            ]
            yield (
                f"undelivered: {record} at {spot} of {name} was never answered 2xx, but {statuses}"
            )


def _is_moved(known: Known, record: str, posts: Posts, event_id: str) -> bool:
    if not known.take_overs:
        return False
    partition, seq = map(int, event_id.split("-")[-2:])
    return known.is_moved(record, (posts.rules.topic, partition), seq)


def _named(known: Known, posts: Posts) -> Iterator[str]:
    owners: dict[str, str] = {}
    for record, found in posts.posts.items():
        ids = sorted({post.id for post in found})
        # A record that a take-over has moved to another offset has another id there.
        lasting = [each for each in ids if not _is_moved(known, record, posts, each)]
        if len(lasting) > 1:
            yield f"renamed: {record} of {posts.rules.subscription} had the ids {ids}"
        for each in ids:
            other = owners.setdefault(each, record)
            if other != record or not each:
                yield f"confused: {record} and {other} had the id {each!r}"


def _outrun(known: Known, posts: Posts) -> Iterator[str]:
    if posts.rules.mode not in ("key_shared", "exclusive"):
        return
    last: dict[tuple[int, str], tuple[Spot, str]] = {}
    for spot, record in _kept(known, posts):
        is_exclusive = posts.rules.mode == "exclusive"
        key = "" if is_exclusive else key_of(record, posts.rules.key_fallback)
        if key is None:
            continue
        before = last.get((spot[0], key))
        last[spot[0], key] = (spot, record)
        found = posts.of(record)
        if before is None or not found:
            continue
        first, earlier = found[0], before[1]
        together = any(
            post.number == first.number and post.place < first.place for post in posts.of(earlier)
        )
        if not together and not _dealt_with(posts, earlier, first.line):
            yield (
                f"outrun: {record} at {spot} was sent to {posts.rules.subscription} while"
                f" {earlier} at {before[0]}, before it, had not been dealt with"
            )


def _repeated(known: Known, posts: Posts) -> Iterator[str]:
    spots = {record: spot for spot, record in _kept(known, posts)}
    for record, found in posts.posts.items():
        for before, after in pairwise(found):
            reply = posts.replies.get(before.number)
            if before.number == after.number:
                yield f"repeated: {record} is twice in a POST of {posts.rules.subscription}"
            elif (
                reply is not None
                and reply.is_success
                and reply.line < after.line
                and (heard_ms := known.heard_ms(reply)) is not None
                and reply.at_ms - before.at_ms < posts.rules.timeout_ms - SLOW_MS
                and not _undone(
                    known,
                    before,
                    min(after.at_ms, _told_ms(posts, before, spots.get(record), heard_ms)),
                )
            ):
                yield (
                    f"repeated: {record} of {posts.rules.subscription} was answered"
                    f" {reply.status} at {reply.at_ms} ms, and came again at {after.at_ms}"
                )


def _overtried(known: Known, posts: Posts) -> Iterator[str]:
    harms_ms = _harms_ms(known)
    for record, found in posts.posts.items():
        for post in found:
            refusals = posts.refusals(record, post.line)
            since = [
                reply
                for reply in refusals
                if known.heard_ms(reply) is not None
                and not any(reply.at_ms - HELD_MS <= at_ms <= post.at_ms for at_ms in harms_ms)
            ]
            if len(since) >= posts.rules.failures_max and posts.rules.poison != "block":
                yield (
                    f"overtried: {record} of {posts.rules.subscription} was refused"
                    f" {len(since)} times, and came again"
                )


def _overstepped(known: Known, posts: Posts) -> Iterator[str]:
    rules = posts.rules
    held = rules.senders * (rules.connections_max + 1)
    for window_ms in WINDOWS_MS:
        most = rules.rate_max * (window_ms / 1e3 + BURST_S) + held
        first = 0
        for last, at_ms in enumerate(posts.times_ms):
            while posts.times_ms[first] <= at_ms - window_ms:
                first += 1
            if last - first + 1 > most:
                yield (
                    f"overstepped: {last - first + 1} POSTs of {rules.subscription} within"
                    f" {window_ms} ms before {at_ms}; {most:.0f} are the most"
                )
                break


def _lingering(known: Known, posts: Posts) -> Iterator[str]:
    ended_ms = posts.ended_ms
    late_ms = (
        [] if ended_ms is None else [at for at in posts.times_ms if at > ended_ms + LINGERING_MS]
    )
    for at_ms in late_ms[:1]:
        if not any(ended_ms is None or ended_ms <= harm <= at_ms for harm in _harms_ms(known)):
            yield (
                f"lingering: {posts.rules.subscription} was deleted at {ended_ms} ms, and sent a"
                f" POST at {at_ms}"
            )


def _mistold(known: Known, posts: Posts) -> Iterator[str]:
    kept = {record for _, record in _kept(known, posts)}
    for record in posts.posts:
        if record not in kept:
            yield (
                f"mistold: {posts.rules.subscription} sent {record}, which {posts.rules.topic}"
                " does not hold"
            )


def _dead_letters(known: Known, posts: Posts) -> Iterator[str]:
    name = posts.rules.subscription
    for record, places in _buried(known, posts).items():
        if len(places) > 1:
            yield f"reburied: {record} of {name} is a dead letter at {places}"
        counted = posts.counted_max(record, END)
        if counted < posts.rules.failures_max:
            yield f"misburied: {record} of {name} is a dead letter after {counted} that may count"


def _kept(known: Known, posts: Posts) -> Iterator[tuple[Spot, str]]:
    """The records of the subscription's topic that were not evicted, in their order."""
    for place, records in sorted(known.kept.items()):
        if place[0] == posts.rules.topic:
            for seq, record in sorted(records.items()):
                if seq > known.evicted[place]:
                    yield (place[1], seq), record


def _dealt_with(posts: Posts, record: str, line: int) -> bool:
    """Whether a record was delivered before a line, or may have gone the way of its policy."""
    if posts.succeeded(record, line):
        return True
    counted = posts.counted_max(record, line)
    return posts.rules.poison != "block" and counted >= posts.rules.failures_max


def _harms_ms(known: Known) -> list[int]:
    return [each.at_ms for each in known.harms] + [each.at_ms for each in known.unheard]


def _told_ms(posts: Posts, post: Post, spot: Spot | None, heard_ms: int) -> int:
    """Until when the owner may not know that a record was delivered, what its sender knew then. If
    it had finished it before this POST, a take-over has forgotten that."""
    finished_ms = posts.finished_ms(spot) if spot is not None else None
    answered_ms = posts.answered_ms(heard_ms)
    held_ms = answered_ms + HELD_MS if answered_ms is not None else END
    return held_ms if finished_ms is None or finished_ms < post.at_ms else min(finished_ms, held_ms)


def _undone(known: Known, before: Post, until_ms: int) -> bool:
    """Whether deaths and stops may be why a record comes again, that was delivered by a POST and
    that the owner knew of at some time."""
    deaths = [harm.at_ms for harm in known.harms if harm.whole]
    return (
        any(before.at_ms - HELD_MS <= harm_ms <= until_ms for harm_ms in _harms_ms(known))
        or any(0 <= death_ms - until_ms < FLUSHED_MS for death_ms in deaths)
        or any(
            before.at_ms <= each.until_ms and each.since_ms <= until_ms for each in known.take_overs
        )
    )


def _buried(known: Known, posts: Posts) -> dict[str, list[Spot]]:
    """The dead letters of a subscription, and where they are."""
    found: dict[str, list[Spot]] = defaultdict(list)
    topics = {record for _, record in _kept(known, posts)}
    for place, records in known.kept.items():
        if posts.rules.dead_letters and place[0] == posts.rules.dead_letters:
            for seq, record in records.items():
                if record in topics:
                    found[record].append((place[1], seq))
    return found


def _pushes(known: Known) -> Iterator[str]:
    for posts in known.pushes.values():
        for rule in OF_PUSH:
            yield from rule(known, posts)


OF_PUSH: tuple[Rule, ...] = (
    _undelivered, _named, _outrun, _repeated, _overtried, _overstepped, _lingering, _mistold,
    _dead_letters,
)  # fmt: skip
RULES = (_pushes,)
