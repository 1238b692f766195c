"""Calls on a daemon: JSON over HTTP, by TCP or by its Unix socket, with bounded patience.

Spark's driver and executors have all that it needs. Every call made here may
be repeated (it reads, or changes nothing the second time), so a lost connection, 429 and 503 are
tried again: a daemon that restarts ends no stream and no compaction. The command line's client for
producing and reading is ``commands/client/``.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from typing import Any

import msgspec
from msgspec import Struct

from compaction.access.bearer import TokenUnusable
from compaction.access.connection import (
    FAILURES,
    UNIX,
    DaemonAddress,
    DaemonConnection,
    reason_of,
    socket_connected,
)
from shards.clock import monotonic_ns
from uploader.stores.retry import DAEMON
from uploader.stores.retrying import Retry

SOCKET_NAME = "admin.sock"  # in the data directory
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
        socket_connected(address.removeprefix(UNIX), TIMEOUT_S).close()
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


def _attempt(
    address: str, method: str, path: str, body: bytes | None, timeout_s: float, token_file: str
) -> bytes:
    try:
        with closing(DaemonConnection(DaemonAddress.of(address, token_file))) as connection:
            status, data, _ = connection.ask(method, path, body, lambda: timeout_s)
    except TokenUnusable:
        raise
    except (*FAILURES, ValueError) as error:
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
    return DaemonUnreachable(
        f"the daemon at {address} does not answer {method} {path}: {reason_of(error)}; is it"
        " running, and reachable from the machine that says this?"
    )
