"""The routes of the HTTP API: one table, from which routing and the OpenAPI document are made.

A new route is one handler and one row. A handler is a coroutine that gets the values of the path's
parameters, then the query (if the row has a type for it), the headers and the body (likewise). It
returns the answer's Struct (or ``Created`` of it, for 201; or something of ``streaming.py``, for
other answers), and raises ApiError to refuse. The application (``application.py``) decodes, checks
limits and encodes; it also serves the one route without a handler, produce.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from compaction.access.settings import LakeSettings
from daemon.api.admin import BODY_BYTES_MAX, AdminRoutes, Fence
from daemon.api.cursor_routes import CursorRoutes
from daemon.api.daemon_routes import DaemonRoutes
from daemon.api.diff_routes import DiffRoutes
from daemon.api.plan_routes import PlanRoutes
from daemon.api.router_routes import RouterRoutes
from daemon.api.schemas import (
    BackedUp,
    CursorDeleted,
    CursorPage,
    CursorSettings,
    CursorsQuery,
    CursorState,
    DiffAnswer,
    DiffRequest,
    Live,
    MetricsHeaders,
    Plan,
    PlanEnded,
    PlanRenewed,
    PlanRequest,
    Produced,
    ProducedSpread,
    ProduceQuery,
    ProduceRequest,
    Ready,
    Scaling,
    Status,
    TopicDeleted,
    TopicPage,
    TopicSettings,
    TopicsQuery,
    TopicState,
    Trimmed,
    TrimRequest,
    WatchAnswer,
    WatchHeaders,
    WatchQuery,
    WatchRequest,
    WidQuery,
)
from daemon.api.topic_routes import TopicRoutes
from daemon.api.watch_routes import WatchRoutes
from delivery.routers.schemas import (
    RouterDeleted,
    RouterPage,
    RouterSettings,
    RoutersQuery,
    RouterStatus,
)
from ledger.types import LeaseId

SMALL_BODY_BYTES = 1 << 20  # of all bodies but those of produce
STREAM_FORMATS = {
    "text/event-stream": "server-sent events",
    "application/x-ndjson": "a JSON object on each line",
    "application/msgpack": "a sequence of maps",
}

Handler = Callable[..., Awaitable[Any]]


class Handlers(Struct, frozen=True):
    """The objects whose methods are the handlers."""

    topics: TopicRoutes
    cursors: CursorRoutes
    routers: RouterRoutes
    reads: DiffRoutes
    watch: WatchRoutes
    plans: PlanRoutes
    daemon: DaemonRoutes
    admin: AdminRoutes


class Route(Struct, frozen=True, kw_only=True):
    """One row. ``answers`` has the type of each good answer by its status (a tuple for
    alternatives), ``errors`` the other statuses (``openapi.py`` says what they mean). ``headers``
    is a Struct of the request's headers that the handler gets, named as they are documented; they
    are found in any case. ``streams`` says by content type what a stream of it consists of,
    ``texts`` what a text is."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    summary: str
    handler: Callable[[Handlers], Handler] | None
    answers: Mapping[int, Any] = {}
    errors: tuple[int, ...] = ()
    query: Any = None
    headers: Any = None
    body: Any = None
    body_required: bool = True
    body_bytes_max: int = SMALL_BODY_BYTES
    other_content_types: tuple[str, ...] = ()
    streams: Mapping[str, str] = {}
    texts: Mapping[str, str] = {}
    # A GET that gives the client what nobody else gets then: HEAD, which has no body, is refused.
    takes: bool = False
    # For this version's own commands: not in openapi.json, since it may change with any release.
    is_internal: bool = False


ROUTES = (
    Route(
        method="GET",
        path="/livez",
        summary="200 while a shard's loop turns",
        handler=lambda handlers: handlers.daemon.live,
        answers={200: Live},
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="200 while all shards serve and no alarm prevents it; otherwise the message of"
        " the 503 `not_ready` says why",
        handler=lambda handlers: handlers.daemon.ready,
        answers={200: Ready},
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        summary="the API as OpenAPI 3.1",
        handler=lambda handlers: handlers.daemon.openapi,
        answers={200: dict[str, Any]},
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="metrics of all shards for Prometheus",
        handler=lambda handlers: handlers.daemon.metrics,
        headers=MetricsHeaders,
        texts={
            "text/plain": "Prometheus' text format (the default)",
            "application/openmetrics-text": "OpenMetrics",
        },
    ),
    Route(
        method="GET",
        path="/v0/status",
        summary="what the daemon is doing",
        handler=lambda handlers: handlers.daemon.status,
        answers={200: Status},
    ),
    Route(
        method="GET",
        path="/v0/scaling",
        summary="how much more CPU would help, 0 to 100",
        handler=lambda handlers: handlers.daemon.scaling,
        answers={200: Scaling},
    ),
    Route(
        method="GET",
        path="/v0/topics",
        summary="list topics by name, a page at a time",
        handler=lambda handlers: handlers.topics.list,
        query=TopicsQuery,
        answers={200: TopicPage},
        errors=(400, 503),
    ),
    Route(
        method="PUT",
        path="/v0/topics/{topic}",
        summary="create a topic (201), or change its settings (200)",
        handler=lambda handlers: handlers.topics.put,
        body=TopicSettings,
        body_required=False,
        answers={200: TopicState, 201: TopicState},
        errors=(400, 409, 413, 415, 503),
    ),
    Route(
        method="GET",
        path="/v0/topics/{topic}",
        summary="show a topic",
        handler=lambda handlers: handlers.topics.get,
        answers={200: TopicState},
        errors=(400, 404, 503),
    ),
    Route(
        method="DELETE",
        path="/v0/topics/{topic}",
        summary="delete a topic",
        handler=lambda handlers: handlers.topics.delete,
        answers={200: TopicDeleted},
        errors=(400, 404, 503),
    ),
    Route(
        method="POST",
        path="/v0/topics/{topic}",
        summary="produce records; answered when they are durable",
        handler=None,
        query=ProduceQuery,
        body=ProduceRequest | Annotated[list[Raw], Meta(min_length=1)],
        other_content_types=(
            "application/x-ndjson",
            "application/msgpack",
            "application/octet-stream",
        ),
        answers={200: (Produced, ProducedSpread)},
        errors=(400, 404, 409, 412, 413, 415, 422, 429, 503),
    ),
    Route(
        method="POST",
        path="/v0/topics/{topic}/trim",
        summary="give up the records of a partition below an offset",
        handler=lambda handlers: handlers.topics.trim,
        body=TrimRequest,
        answers={200: Trimmed},
        errors=(400, 404, 413, 415, 503),
    ),
    Route(
        method="POST",
        path="/v0/topics/{topic}/diff",
        summary="read the records of a partition after an offset, with a long poll",
        handler=lambda handlers: handlers.reads.diff,
        body=DiffRequest,
        body_required=False,
        answers={200: DiffAnswer},
        errors=(400, 404, 413, 415, 416, 503),
    ),
    Route(
        method="GET",
        path="/v0/topics/{topic}/watch",
        summary="stream the records of a topic as they are committed",
        handler=lambda handlers: handlers.watch.topic,
        query=WatchQuery,
        headers=WatchHeaders,
        streams=STREAM_FORMATS,
        errors=(400, 404, 406, 416, 503),
    ),
    Route(
        method="POST",
        path="/v0/watch",
        summary="describe a stream of several topics, or of some partitions",
        handler=lambda handlers: handlers.watch.post,
        body=WatchRequest,
        answers={200: WatchAnswer},
        errors=(400, 404, 413, 415, 503),
    ),
    Route(
        method="GET",
        path="/v0/watch/{wid}",
        summary="stream the records that a `wid` describes",
        handler=lambda handlers: handlers.watch.wid,
        query=WidQuery,
        headers=WatchHeaders,
        streams=STREAM_FORMATS,
        errors=(400, 404, 406, 416, 503),
    ),
    Route(
        method="GET",
        path="/v0/cursors",
        summary="list cursors by name, a page at a time",
        handler=lambda handlers: handlers.cursors.list,
        query=CursorsQuery,
        answers={200: CursorPage},
        errors=(400, 503),
    ),
    Route(
        method="PUT",
        path="/v0/cursors/{cursor}",
        summary="create a cursor (201), or put it somewhere (200)",
        handler=lambda handlers: handlers.cursors.put,
        body=CursorSettings,
        body_required=False,
        answers={200: CursorState, 201: CursorState},
        errors=(400, 409, 412, 413, 415, 503),
    ),
    Route(
        method="GET",
        path="/v0/cursors/{cursor}",
        summary="show a cursor",
        handler=lambda handlers: handlers.cursors.get,
        answers={200: CursorState},
        errors=(400, 404, 503),
    ),
    Route(
        method="DELETE",
        path="/v0/cursors/{cursor}",
        summary="delete a cursor",
        handler=lambda handlers: handlers.cursors.delete,
        answers={200: CursorDeleted},
        errors=(400, 404, 503),
    ),
    Route(
        method="GET",
        path="/v0/routers",
        summary="list routers by name, a page at a time",
        handler=lambda handlers: handlers.routers.list,
        query=RoutersQuery,
        answers={200: RouterPage},
        errors=(400, 503),
    ),
    Route(
        method="PUT",
        path="/v0/routers/{router}",
        summary="create a router (201), or change its settings (200)",
        handler=lambda handlers: handlers.routers.put,
        body=RouterSettings,
        answers={200: RouterStatus, 201: RouterStatus},
        errors=(400, 404, 409, 413, 415, 503),
    ),
    Route(
        method="GET",
        path="/v0/routers/{router}",
        summary="show a router, what it is doing and how far it has got",
        handler=lambda handlers: handlers.routers.get,
        answers={200: RouterStatus},
        errors=(400, 404, 503),
    ),
    Route(
        method="DELETE",
        path="/v0/routers/{router}",
        summary="delete a router; what it copied stays",
        handler=lambda handlers: handlers.routers.delete,
        answers={200: RouterDeleted},
        errors=(400, 404, 503),
    ),
    Route(
        method="POST",
        path="/v0/plans",
        summary="plan a bulk read; its lease holds for 5 minutes",
        handler=lambda handlers: handlers.plans.post,
        body=PlanRequest,
        answers={200: Plan},
        errors=(400, 404, 413, 415, 429, 503),
    ),
    Route(
        method="PUT",
        path="/v0/plans/{plan}",
        summary="hold a plan for another 5 minutes",
        handler=lambda handlers: handlers.plans.put,
        answers={200: PlanRenewed},
        errors=(404, 413, 503),
    ),
    Route(
        method="DELETE",
        path="/v0/plans/{plan}",
        summary="end a plan",
        handler=lambda handlers: handlers.plans.delete,
        answers={200: PlanEnded},
        errors=(404, 413, 503),
    ),
    Route(
        method="POST",
        path="/v0/admin/await_backup",
        is_internal=True,
        summary="wait until the owner's log covers the ledger as it is now",
        handler=lambda handlers: handlers.admin.await_backup,
        answers={200: BackedUp},
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/v0/admin/live_leases",
        is_internal=True,
        summary="the leases whose objects may still be committed",
        handler=lambda handlers: handlers.admin.live_leases,
        answers={200: list[LeaseId]},
    ),
    Route(
        method="GET",
        path="/v0/admin/settled_commits",
        is_internal=True,
        summary="the number of the last commit that no process asks for any more",
        handler=lambda handlers: handlers.admin.settled_commits,
        answers={200: int},
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/v0/admin/lake",
        is_internal=True,
        summary="the settings of a compaction",
        handler=lambda handlers: handlers.admin.lake,
        answers={200: LakeSettings},
    ),
    Route(
        method="POST",
        path="/v0/admin/ledger/{operation}",
        is_internal=True,
        summary="run an operation of the ledger",
        handler=lambda handlers: handlers.admin.ledger,
        query=Fence,
        body=list[Raw],
        body_bytes_max=BODY_BYTES_MAX,
        answers={200: Raw},
        errors=(400, 404, 409, 413, 415, 503),
    ),
    Route(
        method="POST",
        path="/v0/admin/catalog/{operation}",
        is_internal=True,
        summary="run an operation of the default catalog",
        handler=lambda handlers: handlers.admin.catalog,
        query=Fence,
        body=list[Raw],
        body_bytes_max=BODY_BYTES_MAX,
        answers={200: Raw},
        errors=(400, 404, 409, 413, 415, 503),
    ),
)
