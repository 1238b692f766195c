"""Calls that end: producing, reading to the head, and everything that is managed.

Each is a generator of steps (steps.py). Documents that the daemon answers are returned as they are,
in the shapes of its HTTP API.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headgate.batching import Batch
from headgate.errors import ConditionFailed, NotFound
from headgate.records import (
    Advance,
    Gap,
    NewRecord,
    Produced,
    Record,
    fields_of,
    gap_of,
    produced_of,
)
from headgate.steps import (
    WINDOW_S,
    Emit,
    Emitting,
    Look,
    Op,
    Request,
    asked,
    decoded,
    encoded,
    path,
)

Json = dict[str, Any]
OnGap = Callable[[Gap], object]
PAGE_RECORDS = 1000
log = logging.getLogger("headgate")


def warn_of(gap: Gap) -> None:
    """What is done about a gap unless the caller says otherwise."""
    log.warning("%s", gap)


# --- producing ------------------------------------------------------------------------------


def produce(
    topic: str, data: Any, *, key: str | None = None, tag: str | None = None,
    node: str | None = None, meta: Json | None = None, ts: int | None = None,
    partition: int | None = None, idempotency_key: str | None = None,
    expected_seq: int | None = None, advance: Advance | None = None, create: bool = True,
) -> Op[Produced]:  # fmt: skip
    """Stores a record, and returns when it is durable. ``data`` is any JSON value, or bytes."""
    record = NewRecord(data, key, tag, node, meta, ts)
    return produce_many(
        topic, [record], partition=partition, idempotency_key=idempotency_key,
        expected_seq=expected_seq, advance=advance, create=create,
    )  # fmt: skip


def produce_many(
    topic: str, records: Iterable[NewRecord], *, partition: int | None = None,
    idempotency_key: str | None = None, expected_seq: int | None = None,
    advance: Advance | None = None, create: bool = True,
) -> Op[Produced]:  # fmt: skip
    """Stores records, all or none, and returns when they are durable.

    The request is repeated with an idempotency key of its own, unless one is given. With
    ``expected_seq`` they are stored only if this is the partition's head; with ``advance`` a cursor
    moves in the same commit, or nothing is stored.
    """
    lines = [record.encoded() for record in records]
    more: Json = {"partition": partition, "expected_seq": expected_seq}
    if advance is not None:
        more["advance"] = {
            "cursor": advance.cursor, "expected": advance.expected, "next": advance.next,
            "partition": advance.partition,
        }  # fmt: skip
    key = idempotency_key or (yield Look()).fresh
    return (yield from produce_lines(topic, lines, idempotency_key=key, more=more, create=create))


def produce_lines(
    topic: str, lines: Iterable[bytes], *, idempotency_key: str, more: Mapping[str, Any] = {},
    create: bool = True, patience_s: float | None = None,
) -> Op[Produced]:  # fmt: skip
    """Stores records that are encoded already."""
    said = {name: value for name, value in more.items() if value is not None}
    said["idempotency_key"] = idempotency_key
    body = b'%b,"records":[%b]}' % (encoded(said)[:-1], b",".join(lines))
    query = {} if create else {"create": "false"}
    headers = {"Content-Type": "application/json"}
    request = Request("POST", path("topics", topic), body, query, headers)
    # A cursor tells forever what was stored, a key for as long as the daemon remembers it.
    window_s = math.inf if "advance" in said else WINDOW_S
    answer = yield from asked(request, patience_s=patience_s, window_s=window_s)
    return produced_of(decoded(answer.body))


def produce_batch(topic: str, batch: Batch, run_id: str, cursor: str | None) -> Op[None]:
    """Stores a batch of a producer. With a cursor, which counts the records, also if the answer is
    lost forever."""
    key = f"{run_id}-{batch.number}"
    if cursor is None:
        yield from produce_lines(topic, batch.lines, idempotency_key=key, patience_s=math.inf)
        return
    next_ = batch.before + len(batch.lines)
    moves = {"cursor": cursor, "expected": batch.before, "next": next_}
    try:
        yield from produce_lines(
            topic, batch.lines, idempotency_key=key, more={"advance": moves}, patience_s=math.inf
        )
    except ConditionFailed as error:
        is_stored = error.is_unsure and error.detail.get("position") == next_
        if error.code != "cursor_moved" or not is_stored:
            raise


# --- reading --------------------------------------------------------------------------------


def read(
    topic: str, *, from_seq: int | None = None, from_ts: int | None = None,
    partition: int | None = None, tag: str | None = None, node: str | None = None,
    on_gap: OnGap = warn_of,
) -> Emitting[Record]:  # fmt: skip
    """The records up to the head as it is now, one partition after the other.

    ``from_seq`` is the last offset that was read: 0, the default, for all. Another one needs the
    ``partition`` if there are several. ``on_gap`` is told of offsets that are gone; by default
    they are logged.
    """
    state = yield from topic_state(topic)
    heads = {each["partition"]: each["head_seq"] for each in state["partitions"]}
    if partition is None and from_seq and len(heads) > 1:
        raise ValueError(f"{topic} has {len(heads)} partitions: from_seq {from_seq} needs one")
    for number in sorted(heads) if partition is None else [partition]:
        place: Json = {"from_seq": from_seq or 0} if from_ts is None else {"from_ts": from_ts}
        is_read = False
        while not is_read:
            page = yield from document(
                "POST", ("topics", topic, "diff"),
                {"partition": number, "limit": PAGE_RECORDS, **place}
                | {name: is_ for name, is_ in (("tag", tag), ("node", node)) if is_ is not None},
            )  # fmt: skip
            if page.get("tombstone"):
                on_gap(gap_of(page["tombstone"], topic, number))
            for said in page["records"]:
                if said["seq"] <= heads.get(number, math.inf):
                    yield Emit(Record(**fields_of(said, topic, number)))
            place = {"from_seq": page["next_from_seq"], "topic_id": page["topic_id"]}
            is_read = page["caught_up"] or page["next_from_seq"] >= heads.get(number, 0)


# --- documents ------------------------------------------------------------------------------


def document(
    method: str, parts: tuple[str, ...], said: Mapping[str, Any] | None = None,
    query: Mapping[str, object] = {}, *, patience_s: float | None = None, silent_s: float = 0.0,
    window_s: float = math.inf,
) -> Op[Json]:  # fmt: skip
    """A request with JSON, and the document of its answer."""
    headers = {} if said is None else {"Content-Type": "application/json"}
    request = Request(method, path(*parts), said, query, headers, silent_s)
    answer: Json = decoded(
        (yield from asked(request, patience_s=patience_s, window_s=window_s)).body
    )
    return answer


def _gone(parts: tuple[str, ...], query: Mapping[str, object] = {}) -> Op[None]:
    """Deletes; that it is not there is right if an attempt had no answer."""
    try:
        yield from document("DELETE", parts, None, query)
    except NotFound as error:
        if not error.is_unsure:
            raise


def _pages(parts: tuple[str, ...], items: str, given: str, asks: str) -> Emitting[Json]:
    """All items of a list that comes in pages: ``given`` of one is ``asks`` of the next."""
    place: object = None
    while True:
        page = yield from document("GET", parts, None, {"limit": PAGE_RECORDS, asks: place})
        for each in page[items]:
            yield Emit(each)
        place = page[given]
        if place is None:
            return


def status() -> Op[Json]:
    """What the daemon is doing."""
    return document("GET", ("status",))


def topics() -> Emitting[Json]:
    """All topics by name."""
    return _pages(("topics",), "topics", "next_cursor", "cursor")


def topic_state(topic: str) -> Op[Json]:
    """A topic: its settings, and heads of its partitions."""
    return document("GET", ("topics", topic))


def create_topic(topic: str, **settings: object) -> Op[Json]:
    """Creates a topic, or changes the settings that are given, such as ``partitions=4``."""
    return document("PUT", ("topics", topic), settings)


def delete_topic(topic: str, *, force: bool = False) -> Op[None]:
    """Deletes a topic; with ``force`` also one that takes dead letters."""
    return _gone(("topics", topic), {"force": "true"} if force else {})


def trim(topic: str, before_seq: int, *, partition: int = 0) -> Op[Json]:
    """Gives up the records of a partition below an offset."""
    said = {"before_seq": before_seq, "partition": partition}
    return document("POST", ("topics", topic, "trim"), said)


def _of(topic: str, subscription: str, *rest: str) -> tuple[str, ...]:
    return ("topics", topic, "subscriptions", subscription, *rest)


def subscriptions(topic: str) -> Emitting[Json]:
    """The subscriptions of a topic by name."""
    return _pages(("topics", topic, "subscriptions"), "subscriptions", "next_after", "after")


def subscription(topic: str, subscription: str) -> Op[Json]:
    """A subscription, its consumers and what waits."""
    return document("GET", _of(topic, subscription))


def create_subscription(topic: str, subscription: str, **settings: object) -> Op[Json]:
    """Creates a subscription, or changes the settings that are given, such as ``mode="shared"``.
    ``start`` counts only when it is created."""
    return document("PUT", _of(topic, subscription), settings)


def delete_subscription(topic: str, subscription: str) -> Op[None]:
    """Deletes a subscription; its consumers' work ends."""
    return _gone(_of(topic, subscription))


def seek(topic: str, subscription: str, to: object) -> Op[Json]:
    """Goes on at ``"earliest"``, ``"latest"``, after an offset (of several partitions a list), or
    at a time, ``{"ts": MS}``."""
    return document("POST", _of(topic, subscription, "seek"), {"to": to})


def blocked_keys(topic: str, subscription: str) -> Op[Json]:
    """The keys whose first message failed."""
    return document("GET", _of(topic, subscription, "keys"))


def repair(topic: str, subscription: str, action: str, **where: object) -> Op[Json]:
    """Does ``"retry"`` or ``"skip"`` to all blocked messages that match, such as
    ``key="test-*"``; to all of them without a condition."""
    said = {"action": action, "where": where}
    return document("POST", _of(topic, subscription, "repair"), said)


def routers() -> Emitting[Json]:
    """All routers by name."""
    return _pages(("routers",), "routers", "next_after", "after")


def router(router: str) -> Op[Json]:
    """A router, what it is doing and how far it has got."""
    return document("GET", ("routers", router))


def create_router(
    router: str, source: str, dest: str, *, start: object = None, **settings: object
) -> Op[Json]:
    """Creates a router, or changes the settings that are given, such as ``filter={"tag": "a*"}``.
    A new one begins at ``start``: ``"earliest"``, ``"now"`` or after an offset."""
    said = {"source": source, "dest": dest} | ({} if start is None else {"from": start}) | settings
    return document("PUT", ("routers", router), said)


def delete_router(router: str) -> Op[None]:
    """Deletes a router; what it copied stays."""
    return _gone(("routers", router))


def cursors() -> Emitting[Json]:
    """All cursors by name."""
    return _pages(("cursors",), "cursors", "next_after", "after")


def cursor(cursor: str, *, partition: int = 0) -> Op[int]:
    """Where a cursor is. Raises NotFound."""
    state = yield from document("GET", ("cursors", cursor))
    return next((at["seq"] for at in state["positions"] if at["partition"] == partition), 0)


def put_cursor(cursor: str, seq: int | None = None, *, partition: int = 0) -> Op[Json]:
    """Creates a cursor, and puts it at ``seq`` if given, also back. That is not repeated if its
    outcome is unknown, since others may have moved the cursor on: raises OutcomeUnknown."""
    positions = [] if seq is None else [{"partition": partition, "seq": seq}]
    window_s = math.inf if seq is None else 0.0
    return document("PUT", ("cursors", cursor), {"positions": positions}, window_s=window_s)


def delete_cursor(cursor: str) -> Op[None]:
    """Deletes a cursor."""
    return _gone(("cursors", cursor))


def position(cursor_name: str) -> Op[int]:
    """Where a cursor is; it is created if it does not exist."""
    try:
        return (yield from cursor(cursor_name))
    except NotFound as error:
        if error.code != "cursor_unknown":
            raise
    yield from put_cursor(cursor_name)
    return 0
