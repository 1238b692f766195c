"""Routers: which topics are copied into which, and how far each copy has got.

Lifecycle of a router: created -> changed, any number of times -> deleted, and its cursor with it.
Its row goes later (``space/leftovers.py``). It is bound to topic ids: a topic that is created again
under the same name is not its source. What a router does is decided in ``delivery/routers/``.

- Each router has a cursor of the kind ``router``; its position in a partition of the source is the
  last offset that was dealt with. ``from`` is resolved to offsets in the transaction that creates
  the router, so no commit falls between the two.
- Routers form no cycle (``copy_paths.py``).
- ``slot`` is the router's place in the shared segment; no two live routers have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ledger import changes, cursors, notes, reads, topics
from ledger.delivery import copy_paths
from ledger.delivery.record_filter import RecordFilter
from ledger.errors import (
    RouterBound,
    RouterCycle,
    RouterMissing,
    RoutersFull,
    RouterStartRefused,
    TopicMissing,
)
from ledger.tx import ReadTx, WriteTx
from ledger.types import ROUTERS_MAX, Offset, PartitionState, TokenName, Topic

# A note: the last id whose row is not there any more (ledger/space/leftovers.py).
LAST_ID_NOTE = "last_router_id"

Start = Literal["earliest", "now"] | Offset | list[Offset]
"""Before the first record that can be read, after the last one, or after an offset; a list has the
offset of each partition."""


class Router(Struct, frozen=True):
    """A router. Ids are never used twice."""

    router_id: int
    name: str
    filter: RecordFilter
    created_ms: int
    deleted_ms: int | None
    source_id: int
    dest_id: int
    cursor_id: int
    slot: int
    paused: bool
    token: TokenName | None = None


class RouterView(Struct, frozen=True):
    """A router with its topics and, by partition of the source, (position, state) as of one
    moment."""

    router: Router
    source: Topic
    dest: Topic
    partitions: list[tuple[int, PartitionState]]

    @property
    def lag(self) -> int:
        """Offsets of the source that are not dealt with."""
        return sum(max(0, state.head_seq - position) for position, state in self.partitions)


_COLUMNS = (
    "router_id, name, config, created_ms, deleted_ms, source_id, dest_id, cursor_id, slot, paused,"
    " token"
)
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(RecordFilter)
_token_decoder = msgspec.json.Decoder(TokenName)


def create(
    tx: WriteTx,
    name: str,
    source_name: str,
    dest_name: str,
    filter_: RecordFilter,
    start: Start,
    paused: bool,
    now_ms: int,
    token: TokenName | None = None,
) -> Router:
    """A new router; there is none of this name. ``token``: with which it is set up.

    Raises TopicMissing, RouterCycle, RoutersFull, RouterStartRefused, CursorsFull.
    """
    source, dest = _topic(tx, source_name), _topic(tx, dest_name)
    _check_cycle(tx, source, dest)
    slot = _free_slot(tx)
    cursor, _ = cursors.create(tx, cursor_name(name), "router", now_ms)
    settings = _resolve(name, start, reads.partition_states(tx, source.topic_id))
    cursors.set_positions(tx, cursor.name, "router", settings)
    (last,) = tx.execute("SELECT coalesce(max(router_id), 0) FROM routers").fetchone()
    router = Router(
        1 + max(last, notes.number(tx, LAST_ID_NOTE)), name, filter_, now_ms, None,
        source.topic_id, dest.topic_id, cursor.cursor_id, slot, paused, token,
    )  # fmt: skip
    tx.execute(
        f"INSERT INTO routers ({_COLUMNS}, changed)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            router.router_id, name, _encoder.encode(filter_).decode(), now_ms, None,
            router.source_id, router.dest_id, router.cursor_id, slot, paused, _text(token),
            changes.following(tx),
        ),
    )  # fmt: skip
    return router


def alter(
    tx: WriteTx,
    name: str,
    source_name: str | None,
    dest_name: str | None,
    filter_: RecordFilter | None,
    paused: bool | None,
    token: TokenName | None = None,
) -> Router:
    """Changes what is given, and the token with which it was set up last. Topics may be named only
    if the router is bound to them.

    Raises RouterMissing, RouterBound.
    """
    present = _live(tx, name)
    for field, topic_name, bound_id in (
        ("source", source_name, present.source_id),
        ("dest", dest_name, present.dest_id),
    ):
        if topic_name is not None:
            named = topics.find(tx, topic_name)
            if named is None or named.topic_id != bound_id:
                bound = topics.by_id(tx, bound_id)
                assert bound is not None  # rows of topics stay
                raise RouterBound(name, field, topic_name, bound.name, named is not None)
    changed = msgspec.structs.replace(
        present,
        filter=present.filter if filter_ is None else filter_,
        paused=present.paused if paused is None else paused,
        token=token,
    )
    if changed != present:
        tx.execute(
            "UPDATE routers SET config = ?, paused = ?, token = ?, changed = ? WHERE router_id = ?",
            (
                _encoder.encode(changed.filter).decode(), changed.paused, _text(token),
                changes.following(tx), present.router_id,
            ),
        )  # fmt: skip
    return changed


def delete(tx: WriteTx, name: str, now_ms: int) -> Router:
    """The deleted router. Copies on their way are void, because its cursor is gone.

    Raises RouterMissing.
    """
    present = _live(tx, name)
    cursors.delete(tx, cursor_name(name), "router", now_ms)
    tx.execute(
        "UPDATE routers SET deleted_ms = ?, changed = ? WHERE router_id = ?",
        (now_ms, changes.following(tx), present.router_id),
    )
    return msgspec.structs.replace(present, deleted_ms=now_ms)


def find(tx: ReadTx, name: str) -> Router | None:
    """The live router of this name."""
    sql = f"SELECT {_COLUMNS} FROM routers WHERE name = ? AND deleted_ms IS NULL"
    row = tx.execute(sql, (name,)).fetchone()
    return None if row is None else _router(row)


def page(tx: ReadTx, after_name: str = "", limit: int = ROUTERS_MAX) -> list[Router]:
    """Live routers after ``after_name`` by name."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM routers WHERE deleted_ms IS NULL AND name > ?"
        " ORDER BY name LIMIT ?",
        (after_name, limit),
    )
    return [_router(row) for row in rows]


def view(tx: ReadTx, name: str) -> RouterView | None:
    """The live router of this name with its topics and positions."""
    router = find(tx, name)
    return None if router is None else _view(tx, router)


def views(tx: ReadTx, after_name: str = "", limit: int = ROUTERS_MAX) -> list[RouterView]:
    """Live routers after ``after_name`` by name, with their topics and positions."""
    return [_view(tx, router) for router in page(tx, after_name, limit)]


def owned(
    tx: ReadTx, shard: int, shards: int, after: int = 0, also: Iterable[int] = ()
) -> tuple[int, list[RouterView]]:
    """The routers of a shard that changed after a change number, deleted ones included, and those
    with the ids ``also`` whose rows are there; and the number of the last change.

    Ids are given one after the other, so the remainder spreads routers evenly.
    """
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM routers WHERE changed > ? AND router_id % ? = ?"
        " ORDER BY router_id",
        (after, shards, shard),
    )
    found = {router.router_id: router for router in map(_router, rows.fetchall())}
    for router_id in also:
        sql = f"SELECT {_COLUMNS} FROM routers WHERE router_id = ?"
        row = None if router_id in found else tx.execute(sql, (router_id,)).fetchone()
        if row is not None:
            found[router_id] = _router(row)
    return changes.latest(tx), [_view(tx, router) for router in found.values()]


def cursor_name(router_name: str) -> str:
    """The name of a router's cursor."""
    return f"router/{router_name}"


def _check_cycle(tx: ReadTx, source: Topic, dest: Topic) -> None:
    names = copy_paths.cycle(tx, source.topic_id, dest.topic_id)
    if names is not None:
        raise RouterCycle(names)


def _free_slot(tx: ReadTx) -> int:
    taken = {row[0] for row in tx.execute("SELECT slot FROM routers WHERE deleted_ms IS NULL")}
    if len(taken) >= ROUTERS_MAX:
        raise RoutersFull(ROUTERS_MAX)
    return next(slot for slot in range(ROUTERS_MAX) if slot not in taken)


def _resolve(name: str, start: Start, states: Sequence[PartitionState]) -> list[cursors.Setting]:
    if isinstance(start, str):
        is_now = start == "now"
        seqs = [state.head_seq if is_now else state.earliest_seq - 1 for state in states]
    else:
        seqs = [start] if isinstance(start, int) else start
        if len(seqs) != len(states):
            raise RouterStartRefused(
                name,
                f"has {len(seqs)} offsets, but its source has {len(states)} partitions; give a list"
                f" with the offset of each",
            )
        for seq, state in zip(seqs, states, strict=True):
            if seq > state.head_seq:
                raise RouterStartRefused(
                    name,
                    f"is {seq} for partition {state.partition} of the source, whose last offset is"
                    f" {state.head_seq}",
                )
    return [
        cursors.Setting(state.partition, seq)
        for seq, state in zip(seqs, states, strict=True)
        if seq
    ]


def _view(tx: ReadTx, router: Router) -> RouterView:
    source, dest = topics.by_id(tx, router.source_id), topics.by_id(tx, router.dest_id)
    assert source is not None and dest is not None  # rows of topics stay
    at = {each.partition: each.seq for each in cursors.positions(tx, router.cursor_id)}
    states = reads.partition_states(tx, router.source_id)
    return RouterView(
        router, source, dest, [(at.get(state.partition, 0), state) for state in states]
    )


def _live(tx: ReadTx, name: str) -> Router:
    router = find(tx, name)
    if router is None:
        raise RouterMissing(name)
    return router


def _topic(tx: ReadTx, name: str) -> Topic:
    topic = topics.find(tx, name)
    if topic is None:
        raise TopicMissing(name)
    return topic


def _router(row: Any) -> Router:
    (
        router_id, name, config, created_ms, deleted_ms, source_id, dest_id, cursor_id, slot,
        paused, token,
    ) = row  # fmt: skip
    return Router(
        router_id, name, _decoder.decode(config), created_ms, deleted_ms, source_id, dest_id,
        cursor_id, slot, bool(paused), None if token is None else _token_decoder.decode(token),
    )  # fmt: skip


def _text(token: TokenName | None) -> str | None:
    return None if token is None else _encoder.encode(token).decode()
