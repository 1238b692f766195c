"""HTTP calls to a daemon, on one connection that is kept alive.

Vocabulary: a *refusal* is an answer with an error body, ``{"error": {"code", "message",
"detail"}}``. *Unreachable* means no answer: nothing listens, the connection ended, or time ran
out.

Every call must be *repeatable*, because it is sent again when a connection ends without an answer,
and after 504, which tells as little: it changes nothing, or does not change it twice (reads, PUT,
DELETE, a produce with an idempotency key).

*Patience* is how long a call is repeated. It counts the time of the attempts and the time between
them. After NOTICE_MS the caller is told what the call waits for. A Client belongs to one thread;
after a failed connection the next attempt opens another.

Errors of the daemon say what to do with a method and a path, which is right for a caller that sent
one; here they name the command instead.
"""

from __future__ import annotations

import http.client
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from commands.output import duration_text
from compaction.access.connection import (
    FAILURES,
    DaemonAddress,
    DaemonAnswer,
    DaemonConnection,
    reason_of,
)
from daemon.schemas.api import ErrorAnswer
from shards.clock import monotonic_ns

_NAME = r"([^\s/,;)]+)"
_COMMANDS = [
    (re.compile(route), command)
    for route, command in (
        (r"GET /v0/status", "`headgate status`"),
        (
            rf"PUT /v0/topics/{_NAME}/subscriptions/{_NAME}",
            r"`headgate subscriptions create \1 \2`",
        ),
        (rf"PUT /v0/topics/{_NAME}(?!/)", r"`headgate topics create \1`"),
        (rf"PUT /v0/cursors/{_NAME}", r"`headgate cursors create \1`"),
        (r"GET \.\.\./keys", "`headgate subscriptions keys`"),
        (r"POST /v0/watch", "`headgate watch`"),
    )
]


def in_commands(message: str) -> str:
    """The message of an error, for the user of a command."""
    for route, command in _COMMANDS:
        message = route.sub(command, message)
    return message


NOTICE_MS = 2_000  # a terminal that stays silent for longer looks stuck
TIMEOUT_MIN_S = 0.1  # of the last attempt, when little patience is left
RECONNECT_WAIT_MS = 100  # the first wait after a lost connection; doubles up to the one below
RECONNECT_WAIT_MAX_MS = 2_000
RETRY_AFTER_MS = 1_000  # after a 429 or 503 without a usable Retry-After
SILENCE_S = 40.0  # an answer without an end says something every 15 s

Shape = TypeVar("Shape")


class Unreachable(Exception):
    """No answer from ``url``. The daemon may have received the request."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no answer from {url}: {reason}")
        self.url = url
        self.reason = reason


class Refused(Exception):
    """The daemon refused. ``status`` is the HTTP status; the rest is the body of the error, with
    commands for the routes that its message names."""

    def __init__(self, status: int, code: str, message: str, detail: dict[str, Any]) -> None:
        self.message = in_commands(message)
        super().__init__(self.message)
        self.status = status
        self.code = code
        self.detail = detail


class UnknownAnswer(Exception):
    """An answer that is not of this API: another program or another version listens there."""


def topic_path(topic: str, *rest: str) -> str:
    """``/v0/topics/{topic}/...``, quoted."""
    return "/".join(["/v0/topics", *(quote(part, safe=":") for part in (topic, *rest))])


class Client:
    """Calls the daemon at ``url``. ``sleep_ms`` waits between attempts; ``say`` is told what the
    call waits for, from another thread. ``environ`` has the token and the authorities."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        sleep_ms: Callable[[float], None] = lambda wait_ms: time.sleep(wait_ms / 1000),
        now_ms: Callable[[], float] = lambda: monotonic_ns() / 1e6,
        notice_ms: float = NOTICE_MS,
        say: Callable[[str], None] = lambda text: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        try:
            parts = urlsplit(url)
            scheme, host, _ = parts.scheme, parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not a URL: {error}") from error
        if scheme not in ("http", "https") or not host:
            raise ValueError(f"{url!r} is not the URL of a daemon, like http://127.0.0.1:7440")
        self.url = url
        self._environ = environ
        self.address = DaemonAddress.of(url, environ=environ)
        self.retries = 0
        self.reached = False  # whether any answer ever came
        self._timeout_s = timeout_s
        self.sleep_ms = sleep_ms
        self.now_ms = now_ms
        self._notice_ms = notice_ms
        self.say = say
        self._connection = DaemonConnection(self.address)

    def another(self, timeout_s: float = 30.0) -> Client:
        """A client of the same daemon, for another thread or with another timeout."""
        return Client(self.url, timeout_s=timeout_s, environ=self._environ)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: dict[str, str] | None = None,
        timeout_s: float | None = None,
        patience_ms: float = 0,
        silent_ms: float = 0,
    ) -> bytes:
        """Sends a JSON request and returns the body of a good answer.

        For ``patience_ms`` the call is repeated after 429 and 503, which promise that nothing was
        stored, as Retry-After asks, and after a lost connection or 504. A kept connection that the
        daemon has closed is opened again even without patience. ``silent_ms`` is how long a long
        poll may stay unanswered; patience counts from then.
        Raises Unreachable, Refused, UnknownAnswer.
        """
        target = path + (f"?{urlencode(query)}" if query else "")
        attempt = partial(self._attempt, method, target, body)
        return self._repeated(
            f"{method} {self.address.base}{target}",
            attempt,
            timeout_s or self._timeout_s,
            patience_ms,
            silent_ms,
        )

    def open(
        self,
        path: str,
        headers: dict[str, str],
        *,
        query: dict[str, str] | None = None,
        patience_ms: float = 0,
    ) -> OpenAnswer:
        """A GET whose answer has no end, on a connection of its own. Otherwise as ``call``."""
        target = path + (f"?{urlencode(query)}" if query else "")
        opened: list[OpenAnswer] = []

        def attempt(timeout_s: Callable[[], float]) -> DaemonAnswer:
            connection = DaemonConnection(self.address)
            try:
                answer = connection.open(target, headers, timeout_s, SILENCE_S)
            except FAILURES as error:
                raise _failed(self.url, error, connection.limit_s) from error
            self.reached = True
            if answer.status < 400:
                opened.append(OpenAnswer(self.url, connection))
            else:
                connection.close()
            return answer

        self._repeated(f"GET {self.address.base}{target}", attempt, self._timeout_s, patience_ms, 0)
        return opened[0]

    def _repeated(
        self, asked: str, attempt: Callable[[Callable[[], float]], DaemonAnswer], timeout_s: float,
        patience_ms: float, silent_ms: float,
    ) -> bytes:  # fmt: skip
        if patience_ms <= 0:
            return self._until_answered(asked, partial(attempt, lambda: timeout_s), None)
        patience = _Patience(self, patience_ms, silent_ms)
        with patience:
            return self._until_answered(
                asked,
                partial(
                    attempt,
                    lambda: max(TIMEOUT_MIN_S, min(timeout_s, patience.left_ms() / 1000)),
                ),
                patience,
            )

    def _until_answered(
        self, asked: str, attempt: Callable[[], DaemonAnswer], patience: _Patience | None
    ) -> bytes:
        reconnect_ms = RECONNECT_WAIT_MS
        while True:
            try:
                answer = attempt()
                if answer.status == 504:
                    raise Unreachable(
                        self.url,
                        refusal(f"{asked} at {self.url}", answer.status, answer.body).message,
                    )
            except _Stale:
                continue  # at most once: the next attempt's connection is fresh
            except Unreachable as error:
                if patience is None or reconnect_ms > patience.left_ms():
                    raise
                reason = error.reason
                wait_ms: float = reconnect_ms
                reconnect_ms = min(2 * reconnect_ms, RECONNECT_WAIT_MAX_MS)
            else:
                if answer.status < 400:
                    return answer.body
                refused = refusal(f"{asked} at {self.url}", answer.status, answer.body)
                wait_ms = wait_ms_of(refused, answer.retry_after)
                if answer.status not in (429, 503):
                    raise refused
                if patience is None or wait_ms > patience.left_ms():
                    raise refused
                reason = f"{refused.message} ({refused.code})"
            patience.before_wait(wait_ms, reason)
            self.retries += 1
            self.sleep_ms(wait_ms)

    def _attempt(
        self, method: str, target: str, body: bytes | None, timeout_s: Callable[[], float]
    ) -> DaemonAnswer:
        connection = self._connection
        was_kept = connection.is_open
        try:
            answer = connection.ask(method, target, body, timeout_s)
        except FAILURES as error:
            if was_kept and isinstance(error, ConnectionError):
                raise _Stale from error
            raise _failed(self.url, error, connection.limit_s) from error
        self.reached = True
        return answer


class OpenAnswer:
    """An answer without an end: ``read`` it until it ends, then ``close`` it."""

    def __init__(self, url: str, connection: DaemonConnection) -> None:
        self._url = url
        self._connection = connection
        self.close = connection.close

    def read(self) -> bytes:
        """What has come, at least a byte; none at the end. Raises Unreachable."""
        try:
            return self._connection.read()
        except FAILURES as error:
            reason = f"the stream broke off: {_reason(error, self._connection.limit_s)}"
            raise Unreachable(self._url, reason) from error


def _failed(url: str, error: Exception, limit_s: float) -> Exception:
    """What the failure of a connection means to the caller."""
    if not isinstance(error, OSError | http.client.IncompleteRead):
        return UnknownAnswer(f"{url} does not answer in HTTP: {error!r}")
    return Unreachable(url, _reason(error, limit_s))


def _reason(error: Exception, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"timed out after {duration_text(limit_s * 1000)}"
    return reason_of(error)


class _Patience:
    """How long one call is repeated. A timer tells the caller, also while an attempt is under way,
    with the last reason that is known."""

    def __init__(self, client: Client, patience_ms: float, silent_ms: float) -> None:
        self._client = client
        self._begin_ms = client.now_ms() + silent_ms
        self._patience_ms = patience_ms
        self._reason = "no answer so far"
        self._lock = threading.Lock()
        self._told = False
        self._timer = threading.Timer((silent_ms + client._notice_ms) / 1000, self._tell)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._told and kind is None:
            self._client.say(f"{self._client.url} answers again")

    def left_ms(self) -> float:
        return self._begin_ms + self._patience_ms - self._client.now_ms()

    def before_wait(self, wait_ms: float, reason: str) -> None:
        self._reason = reason
        if self._client.now_ms() + wait_ms >= self._begin_ms + self._client._notice_ms:
            self._tell()

    def _tell(self) -> None:
        with self._lock:
            if not self._told:
                self._told = True
                self._client.say(
                    f"waiting up to {duration_text(self._patience_ms)} for {self._client.url}:"
                    f" {self._reason}"
                )


class _Stale(Exception):
    """A kept connection turned out to be closed; the next attempt opens another."""


def decoded(client: Client, body: bytes | msgspec.Raw, kind: type[Shape]) -> Shape:
    """An answer as a value of ``kind``. Raises UnknownAnswer."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownAnswer(f"an answer of {client.url} cannot be read: {error}") from error


def refusal(asked: str, status: int, body: bytes) -> Refused:
    """What the daemon says of a request that it refused. Raises UnknownAnswer."""
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer).error
    except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
        raise UnknownAnswer(
            f"{asked} was answered {status} without an error in Headgate's form: {body[:80]!r}"
        ) from cause
    return Refused(status, error.code, error.message, error.detail)


def wait_ms_of(refused: Refused, retry_after: str | None) -> float:
    """``detail.retry_after_ms`` if given, since it is finer than the seconds of the header."""
    exact = refused.detail.get("retry_after_ms")
    if isinstance(exact, int | float) and math.isfinite(exact) and exact >= 0:
        return max(1.0, float(exact))
    if retry_after is not None and retry_after.isdecimal() and len(retry_after) < 7:
        return max(1.0, int(retry_after) * 1000.0)
    return RETRY_AFTER_MS
