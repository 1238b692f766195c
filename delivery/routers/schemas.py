"""The requests and answers about routers: each JSON shape once (``daemon/schemas/api.py``)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from ledger.delivery.record_filter import RecordFilter
from ledger.delivery.routers import RouterView, Start
from ledger.types import Offset
from shards.boards.figures import RouterCounters, RouterCounts, values_of
from shards.boards.rowboard import RouterRow, RowPhase

State = Literal["running", "paused", "held", "stopped"]


class RouterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a router copies. ``source`` and ``dest`` are needed when it is created, and never
    change. Later, what is not given stays as it is."""

    source: (
        Annotated[str, Meta(max_length=255, description="the topic whose records are copied")]
        | UnsetType
    ) = UNSET
    dest: (
        Annotated[str, Meta(max_length=255, description="the topic that gets the copies")]
        | UnsetType
    ) = UNSET
    filter: (
        Annotated[RecordFilter, Meta(description="which records are copied; null or empty: all")]
        | UnsetType
        | None
    ) = UNSET
    start: (
        Annotated[
            Start,
            Meta(
                description="where a new router begins: `earliest`, `now`, or after an offset"
                " (a list with one for each partition)"
            ),
        ]
        | UnsetType
    ) = field(default=UNSET, name="from")
    paused: Annotated[bool, Meta(description="copies nothing while it is")] | UnsetType = UNSET


class RouterPosition(Struct, frozen=True):
    """How far a router has got in a partition of its source."""

    partition: int
    position: Annotated[Offset, Meta(description="the last offset that is dealt with")]
    head_seq: Annotated[Offset, Meta(description="the last offset of the source")]


class RouterStatus(RouterCounters, frozen=True, kw_only=True):
    """A router and what it is doing. Counts are since the daemon started."""

    router: str
    router_id: Annotated[int, Meta(description="never used twice; a new router has another")]
    source: str
    dest: str
    filter: RecordFilter
    paused: bool
    state: Annotated[
        State,
        Meta(
            description="`paused` by request; `held` while it can copy nothing (`reason` says"
            " why); `stopped` if a topic is gone"
        ),
    ]
    reason: Annotated[str, Meta(description="why it is held or stopped; otherwise empty")]
    positions: list[RouterPosition]
    source_id: int
    dest_id: int
    created_ms: Annotated[int, Meta(description="epoch milliseconds")]


class RoutersQuery(Struct, frozen=True):
    """Which routers to list."""

    after: Annotated[str, Meta(description="`next_after` of the previous page")] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000, description="routers in the page")] = 100


class RouterPage(Struct, frozen=True):
    """Routers in the order of their names."""

    routers: list[RouterStatus]
    next_after: Annotated[str | None, Meta(description="asks for the next page; null: no more")]


class RouterDeleted(Struct, frozen=True):
    """The router is deleted. What it copied stays; its name can be used again."""

    router: str
    deleted: bool = True


def status_of(view: RouterView, row: RouterRow | None, barred: str = "") -> RouterStatus:
    """A router as clients see it; ``row`` is what its owner tells of it, ``barred`` why it may not
    copy until it is set up again."""
    router = view.router
    told = row or RouterRow()
    phase, reason = told.phase, told.reason
    # What the ledger knows is newer than what the owner tells.
    gone = gone_topic(view)
    if gone:
        phase, reason = RowPhase.STOPPED, gone
    elif router.paused:
        phase, reason = RowPhase.PAUSED, ""
    elif barred:
        phase, reason = RowPhase.HELD, barred
    elif phase is RowPhase.PAUSED or (phase is RowPhase.HELD and not view.lag):
        phase, reason = RowPhase.RUNNING, ""
    return RouterStatus(
        router=router.name,
        router_id=router.router_id,
        source=view.source.name,
        dest=view.dest.name,
        filter=router.filter,
        paused=router.paused,
        state=_STATES[phase],
        reason=reason,
        positions=[
            RouterPosition(state.partition, position, state.head_seq)
            for position, state in view.partitions
        ],
        lag=view.lag,
        **values_of(RouterCounts, told),
        source_id=router.source_id,
        dest_id=router.dest_id,
        created_ms=router.created_ms,
    )


def gone_topic(view: RouterView) -> str:
    """Why a router is stopped for good; empty if its topics live."""
    for what, topic in (("source", view.source), ("destination", view.dest)):
        if topic.deleted_ms is not None:
            return (
                f"its {what}, the topic {topic.name!r} (id {topic.topic_id}), was deleted; delete"
                f" the router"
            )
    return ""


_STATES: dict[RowPhase, State] = {
    RowPhase.RUNNING: "running",
    RowPhase.PAUSED: "paused",
    RowPhase.HELD: "held",
    RowPhase.STOPPED: "stopped",
}
