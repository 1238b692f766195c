"""The application of one shard's HTTP front: finds the route, decodes, calls, answers.

A produce request is served within one step of the loop (daemon/intake/producer.py); every other
route is a coroutine of the table in ``routes.py``, and a task while it runs. The route of a head is
found once and kept with the head (daemon/http/head.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from daemon.access.access import Access
from daemon.access.audit import AuditLog
from daemon.access.rights import Rights
from daemon.access.token_file import has_token
from daemon.api.handlers.topics import Created
from daemon.api.refusals import refusal_of
from daemon.api.route import Handler, Handlers, Route
from daemon.api.streaming import EncodedJson, Streaming, Text
from daemon.http.cors import preflight_headers
from daemon.http.guard import refuse_link
from daemon.http.head import Head
from daemon.http.request import Request
from daemon.http.request_budget import Promise, RequestBudget, check_values
from daemon.http.response import JSON
from daemon.intake.foreign.requests import ForeignRequests, Translation
from daemon.intake.object_limits import ObjectLimits
from daemon.intake.producer import Producer
from daemon.schemas.api import ProduceQuery
from daemon.schemas.decoding import read_body, read_headers, read_query, refuse_unknown
from daemon.schemas.errors import ApiError
from daemon.schemas.names import check_topic_name
from delivery.reading.waiters import Waiters

# Parameters of a produce request that count before its body is there.
_EARLY = frozenset({"create", "disable_backpressure"})
# What clients of other services call a token in a URL.
_TOKEN_PARAMETERS = frozenset(
    {"access_token", "api_key", "apikey", "auth_token", "authorization", "bearer", "token",
     "x-api-key"}
)  # fmt: skip
_PRODUCE = frozenset(field.encode_name for field in msgspec.structs.fields(ProduceQuery))


class Found(NamedTuple):
    """Where a request goes: the topic to produce to, or a handler with its first arguments; or
    the ``methods`` of a path to name, for OPTIONS; or a ``foreign`` format and its arguments."""

    produce: str | None
    route: Route
    handler: Handler | None
    arguments: tuple[Any, ...]
    decoder: msgspec.json.Decoder[Any] | None
    methods: tuple[str, ...] = ()
    changes: bool = False
    foreign: type[Translation] | None = None


class _Bound(NamedTuple):
    """A row of the table, with the handler's object and a decoder."""

    route: Route
    handler: Handler | None
    decoder: msgspec.json.Decoder[Any] | None


class RouteTable:
    """Routes by path and method."""

    def __init__(
        self,
        routes: Iterable[Route],
        handlers: Handlers,
        access: Access,
        *,
        options: bool,
        admin_over_tcp: bool = False,
    ) -> None:
        self._access = access
        self._options = options
        self._admin_over_tcp = admin_over_tcp
        self._by_path: dict[tuple[str, ...], dict[str, _Bound]] = {}
        self._open: set[tuple[bytes, ...]] = set()
        for route in routes:
            if route.is_open:
                self._open.add(tuple(part.encode() for part in route.path[1:].split("/")))
            methods = self._by_path.setdefault(tuple(route.path[1:].split("/")), {})
            is_decoded = route.handler is not None and route.body is not None
            methods[route.method] = _Bound(
                route,
                None if route.handler is None else route.handler(handlers),
                msgspec.json.Decoder(route.body) if is_decoded else None,
            )

    def find(self, head: Head) -> Found:
        """Raises ApiError 401 and 403 for a sender who may not do this, 404, 405, 400 for a bad
        topic name or query, or a token in it, 403 for what is not for pages of a browser, or not
        for TCP."""
        _refuse_token(head)
        rights = self._authenticate(head)
        for pattern, methods in self._by_path.items():
            values = _match(pattern, head)
            if values is None:
                continue
            bound = methods.get("GET" if head.method == "HEAD" else head.method)
            if bound is not None and bound.route.takes:
                refuse_link(head)
                if head.method == "HEAD":
                    bound = None
            if any(each.route.is_internal for each in methods.values()):
                self._check_admin(head)
            routes = [each.route for each in methods.values()] if bound is None else [bound.route]
            _check_rights(rights, routes, pattern, values)
            if self._options and head.method == "OPTIONS" and not routes[0].is_internal:
                return Found(None, routes[0], None, (), None, tuple(methods))
            if bound is None:
                raise ApiError(
                    405,
                    "method_not_allowed",
                    f"{head.path} allows {', '.join(methods)}, got {head.method}",
                    {"allow": list(methods)},
                )
            route, handler, decoder = bound
            if handler is None and route.foreign is None:
                read_query({k: head.query[k] for k in _EARLY & head.query.keys()}, ProduceQuery)
                return Found(values[0], route, None, (), None)
            changes = route.changes(values)
            if route.query is not None:
                if route.method == "GET":  # without a misspelled filter it would send everything
                    refuse_unknown(head.query, route.query)
                values = (*values, read_query(head.query, route.query, "field"))
            if route.headers is not None:
                read = read_headers(head.headers, route.headers)
                head.target_bytes += sum(
                    len(value) for value in msgspec.structs.astuple(read) if type(value) is str
                )
                values = (*values, read)
            if route.gets_rights:
                values = (*values, rights)
            return Found(
                None, route, handler, values, decoder, changes=changes, foreign=route.foreign
            )
        path = head.path[:255]
        raise ApiError(404, "not_found", f"there is nothing at {path}", {"path": path})

    def _authenticate(self, head: Head) -> Rights:
        """The sender's rights, which the head keeps. Raises ApiError 401, 400."""
        is_preflight = (
            self._options and head.method == "OPTIONS" and "origin" in head.headers
        )  # browsers send no token with it
        if not (head.is_local or is_preflight or head.raw_segments in self._open):
            head.is_brief = "ticket" in head.query
            head.rights = (
                self._access.of_ticket(head.headers, head.segments, head.query)
                if head.is_brief
                else self._access.of(head.headers, head.client_names)
            )
        return head.rights

    def _check_admin(self, head: Head) -> None:
        """Raises ApiError 403 for a request of a page, and over TCP unless that was allowed."""
        if "origin" in head.headers or head.is_followed_link:
            raise ApiError(403, "not_for_pages", f"{head.path} is not for pages of a browser")
        if not (head.is_local or self._admin_over_tcp):
            raise ApiError(
                403,
                "admin_over_tcp",
                f"{head.path} is not served over TCP, since its callers can change the ledger:"
                " run the command on the daemon's machine with its --data directory, or set"
                " admin_over_tcp = true for the daemon",
            )


def _refuse_token(head: Head) -> None:
    """Raises ApiError 400 for a token in the URL, which logs and histories would show, ours too."""
    detail: dict[str, Any] = {}
    if has_token(head.path):
        where = "the path"
    else:
        for name, value in head.query.items():
            if has_token(name):
                where = "the name of a query parameter"
                break
            if name.lower() in _TOKEN_PARAMETERS or has_token(value):
                where, detail = f"the query parameter {name[:80]!r}", {"parameter": name[:80]}
                break
        else:
            return
    raise ApiError(
        400,
        "token_in_url",
        f"{where} has a token, which logs would show: send it as `Authorization: Bearer TOKEN`, or"
        " for a stream send a ticket; revoke the token if it was sent over a network",
        detail,
    )


def _check_rights(
    rights: Rights, routes: Sequence[Route], pattern: tuple[str, ...], values: tuple[str, ...]
) -> None:
    """Raises ApiError 403 unless one of these routes of a path, and its topic, are among the
    rights."""
    if any(route.is_open for route in routes):
        return
    rights.check_scope(*dict.fromkeys(scope for route in routes for scope in route.scopes))
    if all(route.concerns_all_topics for route in routes):
        rights.check_all_topics()
    if "{topic}" in pattern:
        rights.check_topics(values[0])


def _to_produce(query: dict[str, str]) -> dict[str, str]:
    """The parameters that a produce request may have, and the first of those that it may not."""
    known = {name: value for name, value in query.items() if name in _PRODUCE}
    unknown = next((name for name in query if name not in _PRODUCE), None)
    return known if unknown is None else {**known, unknown: query[unknown]}


def _match(pattern: tuple[str, ...], head: Head) -> tuple[Any, ...] | None:
    """The values of the pattern's parameters. Raises ApiError 400 for a bad topic name.

    Only these may be percent-encoded: a proxy that refuses a path must see it as it is served.
    """
    if len(pattern) != len(head.segments):
        return None
    for part, raw in zip(pattern, head.raw_segments, strict=True):
        if not part.startswith("{") and part.encode() != raw:
            return None
    return tuple(
        check_topic_name(segment) if part == "{topic}" else segment
        for part, segment in zip(pattern, head.segments, strict=True)
        if part.startswith("{")
    )


class Api:
    """The application (daemon/http/application.py)."""

    def __init__(
        self,
        routes: Iterable[Route],
        handlers: Handlers,
        producer: Producer,
        waiters: Waiters,
        access: Access | None = None,
        *,
        options: bool = False,
        admin_over_tcp: bool = False,
        audit: AuditLog | None = None,
        objects: ObjectLimits | None = None,
    ) -> None:
        """``options``: OPTIONS is answered, for browsers that ask before a request.
        ``admin_over_tcp``: the admin API is not only for the Unix socket."""
        self._access = access or Access(None)
        self._router = RouteTable(
            routes, handlers, self._access, options=options, admin_over_tcp=admin_over_tcp
        )
        self._producer = producer
        self._waiters = waiters
        self._tasks: dict[asyncio.Task[None], Request] = {}
        self._budget = RequestBudget()
        self._foreign = ForeignRequests(producer, self._budget)
        self._audit = audit
        self._objects = objects

    def route(self, head: Head) -> Found:
        """Finds the handler, and keeps of the query only what is read later. Raises ApiError 404,
        405, 400."""
        found = self._router.find(head)
        if found.route.reader is not None:
            head.reader = found.route.reader(head)
        head.query = {} if found.produce is None else _to_produce(head.query)
        if found.produce is not None and head.reader is None and self._producer.is_usual(head):
            head.shortcut = self._producer.take_usual
        return found

    def is_probe(self, route: Any) -> bool:
        """Whether it shows whether the daemon works."""
        return isinstance(route, Found) and route.route.is_probe

    def admit(self, request: Request, body_bytes: int | None) -> object | None:
        """Promises space for a body, before it is taken in."""
        found: Found = request.head.route
        if found.foreign is None:
            return self._admit(request, found, body_bytes)
        try:
            return self._admit(request, found, body_bytes)
        except ApiError as error:
            raise found.foreign.refusal(error, request.head.content_type) from error

    def _admit(self, request: Request, found: Found, body_bytes: int | None) -> object | None:
        rights = request.head.rights
        if rights.allowance is not None:
            rights.allowance.take(request.connection, body_bytes or 0, is_setting=found.changes)
        if rights.tally is not None:
            rights.tally.requests += 1
            rights.tally.bytes_in += body_bytes or 0
        if found.produce is not None or found.foreign is not None:
            return self._producer.admit(request, body_bytes)
        limit = found.route.body_bytes_max
        if body_bytes is None or body_bytes > limit:
            got = "an unknown length" if body_bytes is None else f"{body_bytes} bytes"
            raise ApiError(
                413,
                "too_large",
                f"the body of this request must have a Content-Length of at most {limit} bytes,"
                f" got {got}",
                {"limit_bytes": limit},
                close=True,
            )
        return self._budget.promise(
            request.head.target_bytes, body_bytes, is_probe=found.route.is_probe
        )

    def release(self, token: object) -> None:
        """Gives promised space back."""
        if isinstance(token, Promise):
            self._budget.release(token)
        elif isinstance(token, int):
            self._producer.admission.release(token)

    def handle(self, request: Request, token: object | None) -> None:
        """Serves a complete request."""
        request.head.rights.check_live()  # its body may have been long on its way
        found: Found = request.head.route
        if found.produce is not None:
            assert isinstance(token, int)  # what admit promised
            self._producer.produce(request, found.produce, token)
            return
        if found.foreign is not None:
            assert isinstance(token, int)
            translation = found.foreign(request.head.content_type, *found.arguments)
            self._foreign.take(request, translation, token)
            return
        if found.methods:
            request.respond(204, headers=preflight_headers(found.methods))
            return
        assert isinstance(token, Promise)
        task = asyncio.get_running_loop().create_task(self._serve(request, found))
        self._tasks[task] = request
        self._budget.promise_again(token)
        request.on_close = partial(_cancel, task)
        task.add_done_callback(partial(self._served, request, token))

    def take(self, request: Request, body_bytes: int) -> None:
        """Serves a request whose body came with its head."""
        name = request.head.route.produce
        if name is not None:
            rights = request.head.rights
            if rights.allowance is not None:
                rights.allowance.take(request.connection, body_bytes)
            if rights.tally is not None:
                rights.tally.requests += 1
                rights.tally.bytes_in += body_bytes
            self._producer.take(request, name, body_bytes)
        else:
            token = self.admit(request, body_bytes)
            try:
                self.handle(request, token)
            finally:
                self.release(token)

    def _served(self, request: Request, token: Promise, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        request.on_close = None  # its answer may wait for long, and keeps no task
        self.release(token)

    async def _serve(self, request: Request, found: Found) -> None:
        try:
            if found.route.creates and self._objects is not None:
                await self._check_room(self._objects, found, request)
            if found.changes and self._audit is not None:
                with self._audit.change(request.asked):
                    answer = await _changed(found, request)
            else:
                answer = await call(found, request)
            if isinstance(answer, Streaming):
                request.stream(answer.content_type, answer.start)
            elif isinstance(answer, Text):
                _respond(
                    request, answer.body, content_type=answer.content_type, headers=answer.headers
                )
            elif isinstance(answer, EncodedJson):
                _respond(request, answer.body)
            elif isinstance(answer, Created):
                _respond(request, msgspec.json.encode(answer.document), 201)
            else:
                _respond(request, msgspec.json.encode(answer))
        except asyncio.CancelledError:
            request.abandon()  # the connection is lost, or the process ends
        except Exception as error:  # noqa: BLE001 - every error of a task is logged and answered
            request.refuse(refusal_of(error))

    async def _check_room(self, objects: ObjectLimits, found: Found, request: Request) -> None:
        rights = request.head.rights
        if rights.allowance is not None:
            partitions = next(
                (getattr(each, "partitions", 1) for each in body_of(found, request)), 1
            )
            name = "/".join(found.arguments[: found.route.path.count("{")])
            await objects.check(
                rights, found.route.creates, name, 1 if partitions is UNSET else partitions
            )

    def refused(self, request: Request, error: ApiError) -> None:
        """A line of a request that its sender had no right to."""
        if self._audit is not None:
            self._audit.refused(request.asked, error)

    def follow_tokens(self) -> bool:
        """Reads the tokens again if they have changed. Returns whether rights have ended; requests
        that were made with them and have no answer are refused."""
        if not self._access.look():
            return False
        for task, request in list(self._tasks.items()):
            try:
                request.head.rights.check_live()
            except ApiError as error:
                request.give_up(error)
                task.cancel()
        return True

    async def finish(self) -> None:
        """Ends long polls and waits for their answers, before the process stops."""
        self._waiters.end()
        if self._tasks:
            await asyncio.wait(self._tasks)


def body_of(found: Found, request: Request) -> tuple[Any, ...]:
    """The body that the route's handler gets, if any. Raises ApiError 400 and 415."""
    if found.decoder is None:
        return ()
    if not request.body and not found.route.body_required:
        return (found.route.body(),)
    check_values(request.body)
    return (read_body(request.head.content_type, request.body, found.decoder),)


async def call(found: Found, request: Request) -> Any:
    """What the route's handler answers."""
    assert found.handler is not None
    return await found.handler(*found.arguments, *body_of(found, request))


async def _changed(found: Found, request: Request) -> Any:
    """What a change is answered with. Raises ApiError, which the audit log tells."""
    try:
        return await call(found, request)
    except Exception as error:
        raise refusal_of(error) from error


def _respond(
    request: Request,
    body: bytes,
    status: int = 200,
    *,
    content_type: str = JSON,
    headers: tuple[tuple[str, str], ...] = (),
) -> None:
    rights = request.head.rights
    if rights.allowance is not None:
        rights.allowance.charge_out(len(body))
    if rights.tally is not None:
        rights.tally.bytes_out += len(body)
    request.connection.reader = rights
    request.respond(status, body, content_type=content_type, headers=headers)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
