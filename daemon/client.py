"""A client of the HTTP API for the command line: one connection, kept alive, standard library.

Vocabulary: a *refusal* is an answer with an error body, ``{"error": {"code", "message",
"detail"}}``. *Unreachable* is no answer: nobody listens, or the connection ended, or time ran
out.

Every call here must be *repeatable*: it changes nothing, or nothing twice (reads, PUT, DELETE, a
produce with an idempotency key), because it is sent again when a connection ends without answer.

Waiting is bounded: ``patience_ms`` is the most that one call waits between its attempts, and each
attempt has its own timeout. One Client belongs to one thread; a connection that failed is opened
anew by the next attempt.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

RECONNECT_WAIT_MS = 100  # the first wait after a lost connection; doubles up to the one below
RECONNECT_WAIT_MAX_MS = 2_000
RETRY_AFTER_MS = 1_000  # a 429 or 503 without a usable Retry-After
ANSWER_BYTES_MAX = 1 << 30


class Unreachable(Exception):
    """No answer from ``url``. ``sent`` says that a request may have been received."""

    def __init__(self, url: str, reason: str, *, sent: bool = False) -> None:
        super().__init__(f"no answer from {url}: {reason}")
        self.url = url
        self.reason = reason
        self.sent = sent


class Refused(Exception):
    """The daemon said no. ``status`` is HTTP's; code, message and detail are the API's."""

    def __init__(self, status: int, code: str, message: str, detail: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail


class UnknownAnswer(Exception):
    """An answer that is not the API's: another program listens there, or another version."""


class _Attempt(NamedTuple):
    status: int
    body: bytes
    retry_after: str | None


class _Error(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _ErrorBody(msgspec.Struct):
    error: _Error


_error_decoder = msgspec.json.Decoder(_ErrorBody)


def topic_path(topic: str, *rest: str) -> str:
    """``/v0/topics/{topic}/...``, quoted."""
    return "/".join(["/v0/topics", *(quote(part, safe=":") for part in (topic, *rest))])


class Client:
    """Calls on the daemon at ``url``. ``sleep_ms`` is how it waits between attempts."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        sleep_ms: Callable[[float], None] = lambda wait_ms: time.sleep(wait_ms / 1000),
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is no URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of a daemon, like http://127.0.0.1:7440")
        self.url = url
        self.retries = 0
        self._timeout_s = timeout_s
        self._sleep_ms = sleep_ms
        self._base = parts.path.rstrip("/")
        https = parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=timeout_s)

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
    ) -> bytes:
        """The body of a good answer to a JSON request.

        Within ``patience_ms`` it is repeated after 429 and 503, as Retry-After asks (they promise
        that nothing was stored), and after a lost connection. A kept connection that the daemon
        had closed in the meantime is opened again without patience.
        Raises Unreachable, Refused, UnknownAnswer.
        """
        target = self._base + path + (f"?{urlencode(query)}" if query else "")
        reconnect_ms = RECONNECT_WAIT_MS
        while True:
            try:
                answer = self._attempt(method, target, body, timeout_s or self._timeout_s)
            except _Stale:
                continue  # at most once: the next attempt's connection is fresh
            except Unreachable:
                if reconnect_ms > patience_ms:
                    raise
                wait_ms: float = reconnect_ms
                reconnect_ms = min(2 * reconnect_ms, RECONNECT_WAIT_MAX_MS)
            else:
                if answer.status < 400:
                    return answer.body
                refused = self._refused(method, target, answer)
                wait_ms = _wait_ms(refused, answer.retry_after)
                if answer.status not in (429, 503) or wait_ms > patience_ms:
                    raise refused
            patience_ms -= wait_ms
            self.retries += 1
            self._sleep_ms(wait_ms)

    def _attempt(self, method: str, target: str, body: bytes | None, timeout_s: float) -> _Attempt:
        connection = self._connection
        fresh = connection.sock is None
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        sent = False
        try:
            if fresh:
                connection.timeout = timeout_s
                connection.connect()
            connection.sock.settimeout(timeout_s)
            sent = True
            try:
                connection.request(method, target, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # a refusal before the body was taken in: its answer may be there already
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX)
            return _Attempt(response.status, data, response.getheader("Retry-After"))
        except TimeoutError as error:
            connection.close()
            raise Unreachable(self.url, f"timed out after {timeout_s:g} s", sent=sent) from error
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            ended = isinstance(error, ConnectionError | http.client.RemoteDisconnected)
            if not fresh and ended:
                raise _Stale from error
            if isinstance(error, http.client.HTTPException) and not ended:
                raise UnknownAnswer(f"{self.url} does not answer in HTTP: {error!r}") from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(self.url, reason, sent=sent) from error

    def _refused(self, method: str, target: str, answer: _Attempt) -> Refused:
        try:
            error = _error_decoder.decode(answer.body).error
        except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
            raise UnknownAnswer(
                f"{method} {target} at {self.url} was answered {answer.status} without an error"
                f" in Headgate's form: {answer.body[:80]!r}"
            ) from cause
        return Refused(answer.status, error.code, error.message, error.detail)


class _Stale(Exception):
    """A kept connection turned out to be closed; the next attempt opens another."""


def _wait_ms(refused: Refused, retry_after: str | None) -> float:
    """``detail.retry_after_ms`` where it is given, being finer than the header's seconds."""
    exact = refused.detail.get("retry_after_ms")
    if isinstance(exact, int | float) and math.isfinite(exact) and exact >= 0:
        return max(1.0, float(exact))
    if retry_after is not None and retry_after.isdecimal() and len(retry_after) < 7:
        return max(1.0, int(retry_after) * 1000.0)
    return RETRY_AFTER_MS
