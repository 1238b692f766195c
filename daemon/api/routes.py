"""The routes of the HTTP API, and which handler serves each.

Vocabulary: a *route* is found once per distinct head and kept with it (daemon/http/head.py). A
produce route is served within one step of the loop (daemon/intake/producer.py); every other handler
is a coroutine that returns a status and a document.

This module knows paths and methods; what is done behind them is in the modules it imports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from compaction.parquet.file_bytes import LakeFileDamaged
from daemon.api.admin import AdminRoutes
from daemon.api.errors import ApiError, invalid
from daemon.api.openapi import DOCUMENT as OPENAPI
from daemon.api.plan_routes import PlanRoutes
from daemon.api.questions import read_json
from daemon.api.status import Status
from daemon.api.topic_routes import TopicRoutes, checked_name
from daemon.http.head import Head
from daemon.http.request import Request
from daemon.intake.producer import Producer, ledger_unavailable
from daemon.intake.topic_cache import Catalog
from delivery.diff import DiffReader, OffsetPastEnd
from delivery.schemas import BYTES_MAX, LIMIT_MAX, WAIT_MS_MAX, DiffRequest
from ledger.errors import LedgerError
from shards.clock import monotonic_ns
from uploader.l0 import L0Error
from uploader.l0.records import RecordsError
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.api")

SMALL_BODY_BYTES = 1 << 20  # settings and questions; only produce bodies may be larger
OFFSET_MAX = (1 << 63) - 1

Handled = Awaitable[tuple[int, Any]]
_diff_decoder = msgspec.json.Decoder(DiffRequest)


class Route(NamedTuple):
    """Where a request goes: a topic to produce to, or a coroutine that answers."""

    produce: str | None
    answer: Callable[[Request], Handled] | None


class Api:
    """The application behind one shard's HTTP front (daemon/http/application.py)."""

    def __init__(
        self, catalog: Catalog, producer: Producer, reader: DiffReader, status: Status,
        plans: PlanRoutes, admin: AdminRoutes,
    ) -> None:  # fmt: skip
        self._catalog = catalog
        self._producer = producer
        self._reader = reader
        self._status = status
        self._topics = TopicRoutes(catalog)
        self._plans = plans
        self.admin = admin
        self._tasks: set[asyncio.Task[None]] = set()
        self._fixed: dict[str, dict[str, Callable[[Request], Handled]]] = {
            "/livez": {"GET": self._live},
            "/readyz": {"GET": self._ready},
            "/openapi.json": {"GET": self._openapi},
            "/v0/status": {"GET": self._get_status},
            "/v0/topics": {"GET": self._topics.list},
            "/v0/plans": {"POST": plans.post},
            "/v0/admin/await_backup": {"POST": admin.await_backup},
            "/v0/admin/live_leases": {"GET": admin.live_leases},
            "/v0/admin/settled_commits": {"GET": admin.settled_commits},
            "/v0/admin/lake": {"GET": admin.lake},
        }

    def route(self, head: Head) -> Route:
        """Finds the handler. Raises ApiError 404, 405, 400 for a bad topic name."""
        methods = self._fixed.get(head.path)
        if methods is not None:
            return Route(None, _by_method(head, methods))
        parts = head.segments
        if parts[:2] == ("v0", "topics") and 3 <= len(parts) <= 4:
            if len(parts) == 3:
                name = checked_name(parts[2])
                if head.method == "POST":
                    _check_create(head)
                    return Route(name, None)
                topics = self._topics
                methods = {
                    "PUT": lambda request: topics.put(request, name),
                    "GET": lambda request: topics.get(request, name),
                    "DELETE": lambda request: topics.delete(request, name),
                }
                return Route(None, _by_method(head, methods, "POST"))
            if parts[3] == "diff":
                name = checked_name(parts[2])
                return Route(None, _by_method(head, {"POST": lambda r: self._diff(r, name)}))
            if parts[3] == "trim":
                name = checked_name(parts[2])
                return Route(None, _by_method(head, {"POST": lambda r: self._topics.trim(r, name)}))
        if parts[:2] == ("v0", "plans") and len(parts) == 3:
            plan, plans = parts[2], self._plans
            methods = {
                "PUT": lambda request: plans.put(request, plan),
                "DELETE": lambda request: plans.delete(request, plan),
            }
            return Route(None, _by_method(head, methods))
        raise ApiError(404, "not_found", f"there is nothing at {head.path}", {"path": head.path})

    def admit(self, head: Head, body_bytes: int | None) -> object | None:
        """Promises room for a body, before it is taken in."""
        if head.route.produce is not None:
            return self._producer.admit(head, body_bytes)
        if body_bytes is None or body_bytes > SMALL_BODY_BYTES:
            raise ApiError(
                413,
                "too_large",
                f"this request's body must say its length, of {SMALL_BODY_BYTES} bytes at most",
                {"limit_bytes": SMALL_BODY_BYTES},
                close=True,
            )
        return None

    def release(self, token: object) -> None:
        """Gives the room back."""
        if isinstance(token, int):
            self._producer.release(token)

    def handle(self, request: Request, token: object | None) -> None:
        """Serves a complete request."""
        route: Route = request.head.route
        if route.produce is not None:
            assert isinstance(token, int)  # what admit promised
            self._producer.produce(request, route.produce, token)
        elif route.answer is not None:
            task = asyncio.get_running_loop().create_task(self._serve(request, route.answer))
            self._tasks.add(task)
            request.on_close = partial(_cancel, task)
            task.add_done_callback(self._tasks.discard)

    def take(self, request: Request, body_bytes: int) -> None:
        """Serves a request whose body came with its head."""
        name = request.head.route.produce
        if name is not None:
            self._producer.take(request, name, body_bytes)
        else:
            self.handle(request, self.admit(request.head, body_bytes))

    async def _serve(self, request: Request, answer: Callable[[Request], Handled]) -> None:
        try:
            status, document = await answer(request)
            request.respond(status, msgspec.json.encode(document))
        except asyncio.CancelledError:
            request.abandon()  # its connection is gone, or the process ends
        except ApiError as error:
            request.refuse(error)
        except StoreError as error:
            request.refuse(ApiError(503, "store_unavailable", str(error), retry_after_s=1))
        except LedgerError as error:
            request.refuse(ledger_unavailable(error))
        except (L0Error, LakeFileDamaged, RecordsError) as error:
            log.error("a stored object is damaged: %s", error)
            request.refuse(ApiError(503, "object_damaged", str(error), retry_after_s=60))
        except Exception as error:  # the last resort of a task: said, never hidden
            log.error("a request failed by a bug", exc_info=error)
            request.refuse(ApiError(500, "internal", "this is a bug in headgate; see its log",
                                    close=True))  # fmt: skip

    async def finish(self) -> None:
        """Ends what still waits (long polls), for the process stops."""
        self._reader.waiters.end()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _live(self, request: Request) -> tuple[int, Any]:
        return 200, {"live": True}

    async def _ready(self, request: Request) -> tuple[int, Any]:
        obstacles = self._status.obstacles(monotonic_ns())
        if not obstacles:
            return 200, {"ready": True}
        raise ApiError(503, "not_ready", "; ".join(obstacles), retry_after_s=1)

    async def _openapi(self, request: Request) -> tuple[int, Any]:
        return 200, OPENAPI

    async def _get_status(self, request: Request) -> tuple[int, Any]:
        return 200, self._status.document(monotonic_ns())

    async def _diff(self, request: Request, name: str) -> tuple[int, Any]:
        asked = read_diff(request)
        entry = await self._catalog.entry(name)
        if asked.topic_id is not msgspec.UNSET and asked.topic_id != entry.topic_id:
            # What tells this shard of a new topic may be late, and no cursor goes backwards.
            entry = await self._catalog.entry_now(name)
        if asked.partition >= entry.partitions:
            raise invalid(
                f"partition is {asked.partition}, topic {name!r} has partitions 0 to"
                f" {entry.partitions - 1}",
                field="partition",
            )
        try:
            return 200, await self._reader.answer(entry.topic_id, asked)
        except OffsetPastEnd as error:
            raise ApiError(
                416, "offset_out_of_range",
                f"from_seq is {error.from_seq}, but the last offset (head_seq) of partition"
                f" {asked.partition} of topic {name!r} is {error.head_seq}; read on from an offset"
                " that is not greater, and send topic_id with it if the topic may have been"
                " deleted and made anew",
                {"from_seq": error.from_seq, "head_seq": error.head_seq,
                 "partition": asked.partition, "topic": name, "topic_id": entry.topic_id},
            ) from error  # fmt: skip


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _check_create(head: Head) -> None:
    create = head.query.get("create", "true")
    if create not in ("true", "false"):
        raise invalid(f"create must be true or false, not {create[:40]!r}", parameter="create")


def _by_method(
    head: Head, methods: dict[str, Callable[[Request], Handled]], *others: str
) -> Callable[[Request], Handled]:
    found = methods.get("GET" if head.method == "HEAD" else head.method)
    if found is None:
        allow = [*methods, *others]
        raise ApiError(
            405,
            "method_not_allowed",
            f"{head.path} knows {', '.join(allow)}, not {head.method}",
            {"allow": allow},
        )
    return found


def read_diff(request: Request) -> DiffRequest:
    """The question of a diff, each value in its range. Raises ApiError."""
    asked = read_json(request, _diff_decoder, "a diff") if request.body else DiffRequest()
    given = (asked.from_seq is not msgspec.UNSET, asked.from_ts is not msgspec.UNSET, asked.tail)
    if sum(given) > 1:
        raise invalid("give one of from_seq, from_ts and tail", field="from_seq")
    if asked.topic_id is not msgspec.UNSET and asked.from_seq is msgspec.UNSET:
        raise invalid(
            "topic_id says of which topic from_seq is an offset: give from_seq with it, or neither",
            field="topic_id",
        )
    ranges = (
        ("from_seq", 0 if asked.from_seq is msgspec.UNSET else asked.from_seq, 0, OFFSET_MAX),
        ("topic_id", 1 if asked.topic_id is msgspec.UNSET else asked.topic_id, 1, OFFSET_MAX),
        ("from_ts", 0 if asked.from_ts is msgspec.UNSET else asked.from_ts, 0, OFFSET_MAX),
        ("partition", asked.partition, 0, OFFSET_MAX),
        ("limit", asked.limit, 1, LIMIT_MAX),
        ("max_bytes", asked.max_bytes, 1, BYTES_MAX),
        ("wait_ms", asked.wait_ms, 0, WAIT_MS_MAX),
    )
    for field, value, low, high in ranges:
        if not low <= value <= high:
            raise invalid(f"{field} is {value}; it must be between {low} and {high}", field=field)
    return asked
