"""Calls on a daemon from Spark's driver and executors: JSON, standard library, bounded patience.

Every call made here may be repeated (it reads, or renews, or takes a lease that expires by
itself), so a lost connection, 429 and 503 are tried again: a daemon that restarts ends no stream.
``commands/client.py`` is the command line's; executors do not have it.
"""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from compaction.source.errors import PlannerRefused, PlannerUnreachable

TIMEOUT_S = 35.0  # a page of a plan takes a second or two
# 0.2 s doubled up to 5 s: some 20 s in all, which a daemon's restart takes less of.
WAITS_S = (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0)
ONCE: tuple[float, ...] = ()


class _Error(Struct):
    code: str = ""
    message: str = ""


class _ErrorBody(Struct):
    error: _Error


def call(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    waits_s: tuple[float, ...] = WAITS_S,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """The body of a good answer. Raises PlannerRefused and PlannerUnreachable."""
    for wait_s in (*waits_s, None):
        try:
            return _attempt(url, method, path, body, timeout_s)
        except PlannerUnreachable:
            if wait_s is None:
                raise
        except PlannerRefused as error:
            if wait_s is None or error.status not in (429, 503):
                raise
        time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def _attempt(url: str, method: str, path: str, body: bytes | None, timeout_s: float) -> bytes:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise PlannerUnreachable(
            f"the daemon at {url} does not answer {method} {path}: {reason}; is it running, and"
            " reachable from the machine that says this?"
        ) from error
    if status < 400:
        return data
    try:
        refused = msgspec.json.decode(data, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlannerUnreachable(
            f"{url} answers {method} {path} with {status} and no error in Headgate's form: what"
            " listens there is no Headgate daemon"
        ) from error
    raise PlannerRefused(status, refused.code, refused.message)
