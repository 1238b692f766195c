"""A row of the table of routes (``routes.py``), and the objects whose methods are handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from daemon.access.token_file import Scope
from daemon.api.handlers.admin import AdminRoutes
from daemon.api.handlers.consumers import ConsumerRoutes
from daemon.api.handlers.cursors import CursorRoutes
from daemon.api.handlers.daemon import DaemonRoutes
from daemon.api.handlers.diffs import DiffRoutes
from daemon.api.handlers.plans import PlanRoutes
from daemon.api.handlers.routers import RouterRoutes
from daemon.api.handlers.subscriptions import SubscriptionRoutes
from daemon.api.handlers.topics import TopicRoutes
from daemon.api.handlers.watch import WatchRoutes
from daemon.api.overviews import OverviewRoutes
from daemon.http.head import Head
from daemon.intake.foreign.requests import Translation
from daemon.intake.producer import BodyReader

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
    overviews: OverviewRoutes
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
    # Without a handler, records are produced: what reads them, if not in produce's own formats.
    reader: Callable[[Head], BodyReader | None] | None = None
    # Without a handler: records come in this format of others, not in produce's own.
    foreign: type[Translation] | None = None
    # Its refusals, once it is known what is asked.
    error: Any = None
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
    # Who may ask: whoever has one of these scopes, for the topic of the path if it names one.
    scopes: tuple[Scope, ...] = ()
    # It shows or changes what belongs to no single topic: only for tokens of all topics.
    concerns_all_topics: bool = False
    # The handler gets the sender's Rights after the path, the query and the headers, to check the
    # topics that it learns of later.
    gets_rights: bool = False
    # What a PUT creates, if it is not there: a limit of tokens (daemon/config/limits.py).
    creates: str = ""
    # For everybody, without a token.
    is_open: bool = False
    # Of an internal route to {operation}: those that change nothing worth a line of the audit log.
    reading: frozenset[str] = frozenset()

    def changes(self, values: Sequence[Any]) -> bool:
        """Whether a request with these values of its path changes something other than records: it
        has a line of the audit log, and is limited."""
        if self.method == "GET":
            return False
        if self.reading:
            return values[0] not in self.reading
        if self.is_internal:
            return self.scopes == (Scope.ADMIN,)
        return not {Scope.MANAGE, Scope.PUSH}.isdisjoint(self.scopes)
