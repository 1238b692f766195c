"""A row of the table of routes (``routes.py``), and the objects whose methods are handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from daemon.api.admin import AdminRoutes
from daemon.api.consumer_routes import ConsumerRoutes
from daemon.api.cursor_routes import CursorRoutes
from daemon.api.daemon_routes import DaemonRoutes
from daemon.api.diff_routes import DiffRoutes
from daemon.api.plan_routes import PlanRoutes
from daemon.api.router_routes import RouterRoutes
from daemon.api.subscription_routes import SubscriptionRoutes
from daemon.api.topic_routes import TopicRoutes
from daemon.api.watch_routes import WatchRoutes

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
    subscriptions: SubscriptionRoutes
    consumers: ConsumerRoutes
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
    # How others see whether the daemon works: answered when it refuses other requests for want of
    # memory or connections.
    is_probe: bool = False
    # For this version's own commands: not in openapi.json, since it may change with any release.
    is_internal: bool = False
