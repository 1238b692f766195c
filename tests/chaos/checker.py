"""Checks a history: a pure function of its lines, which returns contradictions.

What the ``cold`` reader found is *kept*. The rules, by the word that a contradiction begins with:

- lost: a record that was acknowledged is kept.
- moved: at the offset that its answer gave, unless another daemon took over before the log had it:
  then its offset is in a gap, and it is after that.
- doubled: no record is kept twice, whether its request was answered or not.
- refused: what was always refused (answered anything but 200) is not kept; 429 and 503 promise
  that.
- foreign: what is kept was sent, to that topic and partition.
- torn: all records of a request are kept, next to each other, or none.
- resurrected: what was acknowledged before its topic was deleted is not in its namesake.
- order: requests of one connection are in a partition in the order in which they were sent.
- hole: offsets are dense from 1, except for declared gaps; a declared gap holds nothing.
- changed: whatever any reader saw at an offset is what is kept there.
- skipped: a reader is led past a kept record only if a tombstone says that it was evicted.
- evicted: a partition with a cap loses no more than the cap says.
- damaged: no reader is told that records are damaged.

`watched.py` has the rules for watchers, `copies.py` those for routers, `subscribed.py` those for
subscriptions, `pushed.py` those for push.

An evicted record counts as kept if a reader saw it; nothing is known of the others.

A request without an answer may be kept or not. Which of several attempts with one key was kept is
known only where exactly one can have been; only then it counts for the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.chaos import copies, pushed, subscribed, watched
from tests.chaos.history import Answered, Line, Page, Place, Sent, passes
from tests.chaos.known import EVICTED, LAGGED, Known


def check(lines: Iterable[Line]) -> list[str]:
    """All contradictions in a history, each a sentence."""
    known = Known(lines)
    return [
        sentence
        for rule in (
            _acknowledged,
            _once,
            _requests,
            _resurrected,
            _order,
            _dense,
            _reads,
            _evicted,
            *watched.RULES,
            *copies.RULES,
            *subscribed.RULES,
            *pushed.RULES,
        )
        for sentence in rule(known)
    ]


def _acknowledged(known: Known) -> Iterator[str]:
    for sent in known.sent.values():
        answer = known.answers.get(sent.attempt)
        if answer is None or answer.status != 200:
            continue
        for index, record in enumerate(sent.records):
            where = (sent.place, answer.first_seq + index)
            found = known.offsets.get(record, [])
            if not found and where[1] <= known.evicted[sent.place]:
                continue
            if not found:
                yield f"lost: {record} was acknowledged at {where} (attempt {sent.attempt})"
            elif where not in found and not _is_moved(known, record, answer, where):
                yield (
                    f"moved: {record} was acknowledged at {where} (attempt {sent.attempt}) and is"
                    f" kept at {found}"
                )


def _is_moved(known: Known, record: str, answer: Answered, where: tuple[Place, int]) -> bool:
    """Whether a take-over may have given it another offset: the log did not have it yet."""
    return known.is_moved(record, *where) and any(
        each.since_ms <= answer.at_ms <= each.until_ms for each in known.take_overs
    )


def _once(known: Known) -> Iterator[str]:
    places = {r: sent.place for sent in known.sent.values() for r in sent.records}
    for record, found in known.offsets.items():
        if len(found) > 1:
            yield f"doubled: {record} is kept at {found}"
        for place, seq in found:
            if places.get(record) != place:
                yield f"foreign: {record} at {(place, seq)} was sent to {places.get(record)}"


def _requests(known: Known) -> Iterator[str]:
    for records, attempts in known.attempts.items():
        found = [known.offsets[r][0] for r in records if r in known.offsets]
        if not found:
            continue
        numbers = [attempt.attempt for attempt in attempts]
        index = next(i for i, record in enumerate(records) if record in known.offsets)
        place, first = found[0][0], found[0][1] - index
        wanted = [
            seq
            for seq, record in enumerate(records, first)
            if record in known.offsets or seq > known.evicted[place]
        ]
        # Of one that a take-over moved, and that is evicted, not all was seen at both places.
        is_halved = bool(known.take_overs) and found[0][1] <= known.evicted[place]
        if [seq for _, seq in found] != wanted and not is_halved:
            yield f"torn: of {records} (attempts {numbers}) is kept {found}"
        statuses = [known.status(attempt) for attempt in attempts]
        if all(status not in (0, 200) for status in statuses):
            yield f"refused: {records} (attempts {numbers}) had only {statuses} and is at {found}"


def _resurrected(known: Known) -> Iterator[str]:
    for record, topic in known.bygone.items():
        for place, seq in known.offsets.get(record, []):
            if place[0] == topic:
                yield f"resurrected: {record} is at {(place, seq)}, in another life of its topic"


def _keeper(known: Known, attempts: list[Sent]) -> Sent | None:
    """The attempt whose records are the kept ones, if that is certain."""
    able = []
    for attempt in attempts:
        answer = known.answers.get(attempt.attempt)
        if answer is None or (answer.status == 200 and not answer.deduped):
            able.append(attempt)
            if answer is not None:
                return attempt
    return able[0] if len(able) == 1 else None


def _order(known: Known) -> Iterator[str]:
    last: dict[tuple[int, Place], tuple[int, Sent]] = {}
    keepers = {
        keeper.attempt
        for attempts in known.attempts.values()
        if (keeper := _keeper(known, attempts)) is not None
    }
    for sent in known.sent.values():
        found = known.offsets.get(sent.records[0])
        if sent.attempt not in keepers or not found:
            continue
        seq = found[0][1]
        before = last.get((sent.connection, sent.place))
        if before is not None and seq < before[0]:
            yield (
                f"order: on connection {sent.connection} {sent.records[0]} was sent after"
                f" {before[1].records[0]}, and is before it in {sent.place}: {seq} <"
                f" {before[0]}"
            )
        last[sent.connection, sent.place] = (seq, sent)


def _dense(known: Known) -> Iterator[str]:
    for place in known.ends:
        kept = known.kept[place]
        declared = {seq for gap in known.gaps[place] for seq in range(gap[0], gap[1] + 1)}
        for seq in range(1, known.end(place) + 1):
            if seq in kept and seq in declared:
                yield f"hole: {(place, seq)} was declared a gap and holds {kept[seq]}"
            elif seq not in kept and seq not in declared and seq > known.evicted[place]:
                yield f"hole: there is nothing at {(place, seq)}, and no gap is declared"


def _reads(known: Known) -> Iterator[str]:
    for page in known.pages:
        kept = known.kept.get(page.place, {})
        for seq, record in page.records:
            if kept.get(seq) != record and not known.is_moved(record, page.place, seq):
                yield (
                    f"changed: {page.reader} saw {record} at {(page.place, seq)}, where"
                    f" {kept.get(seq)} is kept"
                )
        seen = {seq for seq, _ in page.records}
        watcher = known.watchers.get(page.reader)
        filters = watcher.filters if watcher is not None else {}
        for seq in range(page.from_seq + 1, page.next_from_seq + 1):
            missing = seq in kept and seq not in seen and not _told(page, seq)
            missing = missing and seq > known.trimmed[page.place]
            if missing and passes(filters, kept[seq]):
                yield (
                    f"skipped: {page.reader} was led from {page.from_seq} to {page.next_from_seq}"
                    f" of {page.place} without {kept[seq]} at {seq}"
                )


def _told(page: Page, seq: int) -> bool:
    """Whether the page says that this offset was evicted, or that the watcher lagged."""
    return (
        page.gap is not None
        and page.reason in (*EVICTED, LAGGED)
        and page.gap[0] <= seq <= page.gap[1]
    )


def _evicted(known: Known) -> Iterator[str]:
    for page in known.pages:
        if page.gap is not None and page.reason not in (*EVICTED, LAGGED, "recovery"):
            yield f"damaged: {page.reader} was told {page.reason} of {page.place}, {page.gap}"
    for place, evicted in known.evicted.items():
        end = known.end(place)
        if evicted > max(known.trimmed[place], end - known.caps.get(place, end)):
            yield (
                f"evicted: {place} is evicted up to {evicted} of {end}, its cap is"
                f" {known.caps.get(place)} records"
            )
