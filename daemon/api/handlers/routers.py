"""Handlers of ``/v0/routers``: create, change, show, list, delete.

Settings and positions are the ledger's; what a router is doing now is told by its owner through the
shared segment, so any shard answers. Every change of routers changes a shared word, by which their
owners notice it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TypeVar

from msgspec import UNSET

from daemon.access.rights import Rights
from daemon.api.handlers.pages import visible_page
from daemon.api.handlers.topics import Created
from daemon.intake.topic_cache import unknown_topic
from daemon.schemas.errors import ApiError, invalid
from daemon.schemas.names import check_router_name
from delivery.changes import DeliveryChanges
from delivery.filters import FilterError, filter_of
from delivery.ledger_thread import LedgerThread
from delivery.routers.schemas import (
    RouterDeleted,
    RouterPage,
    RouterSettings,
    RoutersQuery,
    RouterStatus,
    status_of,
)
from delivery.tokens import TokensInForce
from ledger.delivery import routers
from ledger.delivery.record_filter import NO_FILTER, RecordFilter
from ledger.delivery.routers import RouterView
from ledger.errors import (
    CursorsFull,
    RouterBound,
    RouterCycle,
    RouterMissing,
    RoutersFull,
    RouterStartRefused,
    TopicMissing,
)
from ledger.tx import WriteTx
from shards.boards.rowboard import router_board
from shards.clock import wall_ms
from shards.segment import Segment

log = logging.getLogger("headgate.routers")

T = TypeVar("T")


class RouterRoutes:
    """The routers of the daemon."""

    def __init__(
        self,
        segment: Segment,
        changes: DeliveryChanges,
        ledger: LedgerThread,
        tokens: TokensInForce,
    ) -> None:
        self._tokens = tokens
        self._board = router_board(segment)
        self._ledger = ledger
        self._changes = changes

    async def put(self, name: str, rights: Rights, asked: RouterSettings) -> RouterStatus | Created:
        """Creates a router, or changes what is given. Raises ApiError."""
        check_router_name(name)
        wanted = None if asked.filter is UNSET else asked.filter or NO_FILTER
        check_filter(wanted)
        rights.check_topics(*(end for end in (asked.source, asked.dest) if end is not UNSET))

        def change(tx: WriteTx) -> tuple[RouterView | None, bool]:
            present = routers.view(tx, name)
            creates = present is None
            if present is not None and not _covers(rights, present):
                raise ApiError(
                    403,
                    "forbidden",
                    f"the topics of {rights.who} do not include both ends of router {name!r};"
                    " choose another name, or use a token for both",
                )
            if creates:
                if asked.source is UNSET or asked.dest is UNSET:
                    raise RouterMissing(name)
                routers.create(
                    tx, name, asked.source, asked.dest, wanted or NO_FILTER,
                    "now" if asked.start is UNSET else asked.start, asked.paused is True, wall_ms(),
                    rights.token,
                )  # fmt: skip
            else:
                routers.alter(
                    tx, name, asked.source or None, asked.dest or None, wanted,
                    None if asked.paused is UNSET else asked.paused, rights.token,
                )  # fmt: skip
            return routers.view(tx, name), creates

        try:
            view, created = await self._changes.make(change)
        except RouterMissing as error:
            missing = "source" if asked.source is UNSET else "dest"
            raise ApiError(
                404,
                "unknown_router",
                f"{error}; to create it, give source and dest (there is no {missing})",
                {"router": name, "field": missing},
            ) from error
        except TopicMissing as error:
            raise unknown_topic(error.name) from error
        except RouterStartRefused as error:
            raise invalid(str(error), field="from", router=name) from error
        except RouterCycle as error:
            raise ApiError(
                409,
                "router_cycle",
                str(error),
                {"router": name, "path": error.path},
                names=error.path,
            ) from error
        except RouterBound as error:
            raise ApiError(
                409, "router_bound", str(error), {"router": name, "field": error.field}
            ) from error
        except RoutersFull as error:
            limit = {"limit_routers": error.maximum}
            raise ApiError(409, "routers_full", str(error), limit) from error
        except CursorsFull as error:
            limit = {"limit_cursors": error.maximum}
            raise ApiError(409, "cursors_full", str(error), limit) from error
        assert view is not None  # of the same transaction
        if not created:
            return self._status(view)
        log.info("router %s from topic %s to topic %s was created", name, view.source.name,
                 view.dest.name)  # fmt: skip
        return Created(self._status(view))

    async def get(self, name: str, rights: Rights) -> RouterStatus:
        """One router. Raises ApiError 404."""
        view = await self._ledger.read(routers.view, check_router_name(name))
        if view is None or not _covers(rights, view):
            raise _unknown(RouterMissing(name))
        return self._status(view)

    async def list(self, query: RoutersQuery, rights: Rights) -> RouterPage:
        """A page of routers, by name."""
        views, more = await visible_page(
            partial(self._ledger.read, routers.views), lambda view: view.router.name, _ends,
            rights, query.after, query.limit,
        )  # fmt: skip
        return RouterPage([self._status(view) for view in views], more)

    async def delete(self, name: str, rights: Rights) -> RouterDeleted:
        """Deletes a router; its copies stay. Raises ApiError 404."""

        def delete(tx: WriteTx) -> None:
            view = routers.view(tx, name)
            if view is not None and not _covers(rights, view):
                raise RouterMissing(name)
            routers.delete(tx, name, wall_ms())

        try:
            check_router_name(name)
            await self._changes.make(delete)
        except RouterMissing as error:
            raise _unknown(error) from error
        log.info("router %s was deleted", name)
        return RouterDeleted(name)

    def _status(self, view: RouterView) -> RouterStatus:
        row = self._board.read(view.router.slot, view.router.router_id)
        return status_of(view, row, self._tokens.why_gone(view.router.token))


def check_filter(wanted: RecordFilter | None) -> None:
    """Raises ApiError 400 for a pattern or a condition that cannot be used."""
    passing = filter_of(wanted)
    try:
        if passing is not None:
            passing.check()
    except FilterError as error:
        raise invalid(f"filter.{error}", field=f"filter.{error.field}") from error


def _covers(rights: Rights, view: RouterView) -> bool:
    """Whether both ends are among the topics of the sender."""
    return all(map(rights.covers, _ends(view)))


def _ends(view: RouterView) -> tuple[str, str]:
    return view.source.name, view.dest.name


def _unknown(error: RouterMissing) -> ApiError:
    return ApiError(404, "unknown_router", str(error), {"router": error.name})
