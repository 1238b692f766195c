"""What a standby serves: that it lives and is not ready, status, metrics, the page, stale reads.

It has no shards and no segment to serve from, so it has an application of its own. All else is
refused with 503 ``standby``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from daemon import page
from daemon.access.access import Access
from daemon.access.token_file import Scope
from daemon.api.figures.status import version
from daemon.api.handlers.stale import StaleReads, behind
from daemon.api.refusals import refusal_of
from daemon.http.head import Head
from daemon.http.request import Request
from daemon.http.response import JSON
from daemon.schemas.api import DiffRequest
from daemon.schemas.decoding import read_body
from daemon.schemas.errors import ApiError
from daemon.schemas.names import check_topic_name
from daemon.schemas.standby import StandbyFigures, StandbyStatus
from daemon.schemas.status import Live
from delivery.tasks import Tasks
from shards.clock import boottime_ns, monotonic_ns
from uploader.ownership.standby import StandbyView

_OPEN = frozenset({("",), ("livez",), ("readyz",)})
_SERVED = _OPEN | {("v0", "status"), ("metrics",)}
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_DIFF_BYTES_MAX = 4 << 10
_READS_MAX = 16  # at the same time; an answer may have 8 MiB
_diffs = msgspec.json.Decoder(DiffRequest)
# Name, kind, what it says; of StandbyFigures.
_METRICS: tuple[tuple[str, str, Callable[[StandbyFigures], float]], ...] = (
    ("headgate_ready", "whether /readyz answers 200", lambda _: 0),
    ("headgate_standby", "1: this daemon is a standby", lambda _: 1),
    (
        "headgate_standby_able",
        "whether the standby could take over now",
        lambda figures: figures.able,
    ),
    (
        "headgate_standby_behind_seconds",
        "time since the standby has found nothing new in the owner's log",
        lambda figures: figures.behind_ms / 1e3,
    ),
    (
        "headgate_standby_silence_seconds",
        "for how long the owner has shown no sign of life",
        lambda figures: figures.silent_ms / 1e3,
    ),
    (
        "headgate_standby_commits",
        "commits in the standby's ledger",
        lambda figures: figures.commits,
    ),
)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _is_diff(head: Head) -> bool:
    # Only the topic may be percent-encoded, as in the routes of an owner.
    segments = head.raw_segments
    return len(segments) == 4 and segments[:2] == (b"v0", b"topics") and segments[3] == b"diff"


class StandbyApi:
    """The application (daemon/http/application.py) of a standby, whose thread's ``view`` it
    shows."""

    def __init__(self, access: Access, view: Callable[[], StandbyView], reads: StaleReads) -> None:
        self._access = access
        self._view = view
        self._reads = reads
        self._tasks = Tasks()
        self._started_ns = monotonic_ns()

    def status(self) -> StandbyStatus:
        """``/v0/status``."""
        view, now_ns = self._view(), boottime_ns()
        owner = view.owner
        figures = StandbyFigures(
            able=not view.trouble,
            trouble=view.trouble,
            owner=None if owner is None else f"{owner.host} (pid {owner.pid}, {owner.data_dir})",
            commits=view.commits,
            entries=view.entries,
            behind_ms=0 if not view.caught_up_ns else (now_ns - view.caught_up_ns) // 1_000_000,
            silent_ms=view.silent_ns // 1_000_000,
            answered_ms=(now_ns - view.answered_ns) // 1_000_000 if view.answered_ns else None,
        )
        uptime_s = (monotonic_ns() - self._started_ns) // 1_000_000_000
        return StandbyStatus(version(), uptime_s, figures)

    def route(self, head: Head) -> tuple[str, ...]:
        """Raises ApiError 401 and 403 for a sender who may not see it, 503 for what it does not
        serve."""
        if head.segments not in _OPEN and not head.is_local:
            head.rights = self._access.of(head.headers, head.client_names)
            head.rights.check_scope(*((Scope.METRICS,) if head.segments in _SERVED else Scope))
        if head.method == "POST" and _is_diff(head):
            head.rights.check_scope(Scope.READ)
            head.rights.check_topics(check_topic_name(head.segments[2]))
            return head.segments
        if head.segments not in _SERVED or head.method not in ("GET", "HEAD"):
            raise self._refusal()
        return head.segments

    def is_probe(self, route: object) -> bool:
        """All but reads."""
        return route in _SERVED

    def admit(self, request: Request, body_bytes: int | None) -> None:
        """Nothing is promised: no body is worth it."""
        limit = 0 if request.head.route in _SERVED else _DIFF_BYTES_MAX
        if body_bytes is None or body_bytes > limit:
            raise ApiError(
                413, "too_large",
                f"the body of this request must have a Content-Length of at most {limit} bytes",
                {"limit_bytes": limit}, close=True,
            )  # fmt: skip

    def release(self, token: object) -> None:
        """Nothing was promised."""

    def refused(self, request: Request, error: ApiError) -> None:
        """A standby has no audit log: its owner has."""

    def handle(self, request: Request, token: object | None) -> None:
        """Answers."""
        match request.head.route:
            case ("",):
                request.respond(
                    200, page.BODY, content_type=page.CONTENT_TYPE, headers=page.HEADERS
                )
            case ("livez",):
                request.respond(200, msgspec.json.encode(Live()), content_type=JSON)
            case ("readyz",):
                request.refuse(self._refusal())
            case ("metrics",):
                request.respond(200, self._metrics(), content_type=_TEXT)
            case ("v0", "status"):
                request.respond(200, msgspec.json.encode(self.status()), content_type=JSON)
            case _:
                self._begin_read(request)

    def take(self, request: Request, body_bytes: int) -> None:
        """The same, for a request that came with its body."""
        self.admit(request, body_bytes)
        self.handle(request, None)

    def _begin_read(self, request: Request) -> None:
        request.head.rights.check_live()
        asked = (
            read_body(request.head.content_type, request.body, _diffs)
            if request.body
            else DiffRequest()
        )
        if not asked.stale:
            raise self._refusal(', or read with "stale": true')
        if not self._view().caught_up_ns:
            raise behind("has not read the owner's log yet")
        if len(self._tasks) >= _READS_MAX:
            raise ApiError(
                503, "standby", f"{_READS_MAX} reads are under way, which is the limit",
                retry_after_s=1,
            )  # fmt: skip
        task = self._tasks.start(self._read(request, asked))
        request.on_close = partial(_cancel, task)

    async def _read(self, request: Request, asked: DiffRequest) -> None:
        rights = request.head.rights
        caught_up_ns = self._view().caught_up_ns
        try:
            answer = await self._reads.diff(request.head.route[2], asked)
            rights.check_live()
        except asyncio.CancelledError:
            request.abandon()
        except Exception as error:  # noqa: BLE001 - every error of a task is answered
            request.refuse(refusal_of(error))
        else:
            stale_ms = (boottime_ns() - caught_up_ns) // 1_000_000
            body = msgspec.json.encode(replace(answer, stale_ms=stale_ms))
            request.connection.reader = rights
            request.respond(200, body, content_type=JSON)
        finally:
            request.on_close = None

    async def finish(self) -> None:
        """Ends the reads that are under way."""
        self._tasks.cancel()
        await self._tasks.wait()

    def _refusal(self, more: str = "") -> ApiError:
        owner = self._view().owner
        where = "" if owner is None else f" of the daemon on {owner.host}"
        return ApiError(
            503, "standby",
            f"this daemon is a standby{where}: send to the owner, or to a load balancer that asks"
            f" /readyz{more}", retry_after_s=1,
        )  # fmt: skip

    def _metrics(self) -> bytes:
        figures = self.status().standby
        lines = []
        for name, says, value in _METRICS:
            kind = "gauge"
            lines += [f"# HELP {name} {says}", f"# TYPE {name} {kind}",
                      f"{name} {float(value(figures)):g}"]  # fmt: skip
        return "\n".join([*lines, ""]).encode()
