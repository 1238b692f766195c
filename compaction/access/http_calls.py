"""Calls on a daemon: JSON over HTTP, by TCP or by its Unix socket, with bounded patience.

Spark's driver and executors have all that it needs. Every call made here may
be repeated (it reads, or changes nothing the second time), so a lost connection, 429 and 503 are
tried again: a daemon that restarts ends no stream and no compaction. The command line's client for
producing and reading is ``commands/client/``.

A daemon's *address* is its URL, like http://HOST:7440, or ``unix:PATH`` of its Unix socket.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from compaction.access.authorities import https_connection
from compaction.access.bearer import bearer
from shards.clock import monotonic_ns
from uploader.stores.retry import DAEMON
from uploader.stores.retrying import Retry

UNIX = "unix:"
SOCKET_NAME = "admin.sock"  # in the data directory
SOCKET_PATH_BYTES_MAX = 107  # of sockaddr_un, less its last byte
TIMEOUT_S = 35.0  # a page of a plan takes a second or two


class DaemonRefused(Exception):
    """The daemon answered with an error: its HTTP status, code, sentence and operands."""

    def __init__(self, status: int, code: str, message: str, detail: dict[str, Any]) -> None:
        super().__init__(f"the daemon refused ({status} {code}): {message}")
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail


class DaemonUnreachable(Exception):
    """Nothing answers at the address, or what answers is not a daemon."""


class _Error(Struct):
    code: str = ""
    message: str = ""
    detail: dict[str, Any] = {}


class _ErrorBody(Struct):
    error: _Error


def socket_address(data_dir: str) -> str:
    """The address of the daemon that has this data directory, if one runs."""
    return UNIX + os.path.join(data_dir, SOCKET_NAME)


def answers(address: str) -> bool:
    """Whether something listens there; for sockets of data directories."""
    try:
        _connected(address.removeprefix(UNIX), TIMEOUT_S).close()
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreachable(address, "CONNECT", "", error) from error
    return True


def call(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    once: bool = False,
    timeout_s: float = TIMEOUT_S,
    token_file: str = "",
) -> bytes:
    """The body of a good answer. ``token_file`` has the token, instead of the environment. Raises
    DaemonRefused and DaemonUnreachable."""
    if not address.startswith((UNIX, "http://", "https://")):
        raise DaemonUnreachable(
            "the address of a daemon must be http://HOST:PORT, https://HOST:PORT or unix:PATH, got"
            f" {address!r}"
        )
    if once:
        return _attempt(address, method, path, body, timeout_s, token_file)
    retry = Retry(DAEMON, random.Random(monotonic_ns()), time.sleep, _may_help)
    return retry(lambda: _attempt(address, method, path, body, timeout_s, token_file))


# A daemon that has waited for its store for minutes, or has lost it.
FINAL_CODES = frozenset({"backup_late", "superseded"})


def _may_help(error: Exception) -> bool:
    if isinstance(error, DaemonRefused):
        return error.status in (429, 503) and error.code not in FINAL_CODES
    return isinstance(error, DaemonUnreachable)


def short_socket_path(path: str) -> tuple[str, int | None]:
    """A path for ``bind`` and ``connect``, and a descriptor to close after the call.

    The kernel takes 107 bytes. A longer path goes by a descriptor of its directory.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path, None
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    return f"/proc/self/fd/{folder}/{os.path.basename(path)}", folder


def _connected(path: str, timeout_s: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = None
    try:
        made.settimeout(timeout_s)
        short, folder = short_socket_path(path)
        made.connect(short)
    except BaseException:
        made.close()
        raise
    finally:
        if folder is not None:
            os.close(folder)
    return made


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = _connected(self._path, self._timeout_s)


def _connection(address: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection, and what comes before each path."""
    if address.startswith(UNIX):
        return _UnixConnection(address.removeprefix(UNIX), timeout_s), ""
    parts = urlsplit(address)
    host, prefix = parts.hostname or "", parts.path.rstrip("/")
    if parts.scheme == "https":
        return https_connection(host, parts.port, timeout_s), prefix
    return http.client.HTTPConnection(host, parts.port, timeout=timeout_s), prefix


def _attempt(
    address: str, method: str, path: str, body: bytes | None, timeout_s: float, token_file: str
) -> bytes:
    headers = {} if body is None else {"Content-Type": "application/json"}
    if not address.startswith(UNIX):
        headers |= bearer(address, token_file=token_file)
    try:
        connection, prefix = _connection(address, timeout_s)
        try:
            connection.request(method, prefix + path, body, headers)
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(address, method, path, error) from error
    if status < 400:
        return data
    try:
        refused = msgspec.json.decode(data, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DaemonUnreachable(
            f"{address} answers {method} {path} with {status} and no error in Headgate's form: what"
            " listens there is not a Headgate daemon"
        ) from error
    raise DaemonRefused(status, refused.code, refused.message, refused.detail)


def _unreachable(address: str, method: str, path: str, error: Exception) -> DaemonUnreachable:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DaemonUnreachable(
        f"the daemon at {address} does not answer {method} {path}: {reason}; is it running, and"
        " reachable from the machine that says this?"
    )
