"""A connection to a daemon: HTTP/1.1 with the standard library, one request at a time.

It knows where a daemon is, whose certificates to trust, which token to send, and how an answer is
read. What an error means to a user, and what is repeated, its callers know: ``http_calls.py`` and
``commands/client/http.py``. Redirects are not followed: the daemon sends none.

An *address* is a URL, like http://HOST:7440, or ``unix:PATH`` of a daemon's Unix socket.
docs/decisions/0002-store-client.md says why this is not urllib3.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from compaction.access.bearer import bearer

UNIX = "unix:"
SOCKET_PATH_BYTES_MAX = 107  # of sockaddr_un, less its last byte
CA_FILE = "HEADGATE_CA_FILE"
ANSWER_BYTES_MAX = 1 << 30
READ_BYTES = 256 << 10

# What a call may raise: an OSError if no answer comes, something else if the answer is not HTTP.
FAILURES = (OSError, http.client.HTTPException)


class AuthoritiesUnusable(ValueError):
    """The file cannot be read, or has no certificates."""


class DaemonAnswer(NamedTuple):
    """An answer. Of one without an end the body is empty: ``DaemonConnection.read`` has it."""

    status: int
    body: bytes
    retry_after: str | None


class DaemonAddress(NamedTuple):
    """Where a daemon is, and what is needed there. ``tls`` checks its certificate, None in clear
    text; ``headers`` go with each request: the token is in them."""

    host: str
    port: int
    base: str  # what comes before each path
    tls: ssl.SSLContext | None
    headers: dict[str, str]
    socket: str = ""  # the path of the Unix socket

    def __repr__(self) -> str:
        return f"DaemonAddress({self.socket or f'{self.host}:{self.port}{self.base}'})"

    @classmethod
    def of(
        cls, text: str, token_file: str = "", environ: Mapping[str, str] = os.environ
    ) -> DaemonAddress:
        """``token_file`` has the token, instead of the environment. Raises TokenUnusable,
        AuthoritiesUnusable, and ValueError if the port is none."""
        if text.startswith(UNIX):
            return cls("localhost", 80, "", None, {}, text.removeprefix(UNIX))
        headers = bearer(text, environ, token_file)
        parts = urlsplit(text)
        tls = _trusting(environ) if parts.scheme == "https" else None
        port = parts.port or (80 if tls is None else 443)
        return cls(parts.hostname or "", port, parts.path.rstrip("/"), tls, headers)


class DaemonConnection:
    """Opened by the first request, and kept until an error or ``close``. It belongs to one thread.

    ``timeout_s`` is asked before each step of a request: how long the step may take.
    """

    def __init__(self, address: DaemonAddress) -> None:
        self._address = address
        self._made = _made(address)
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None

    @property
    def is_open(self) -> bool:
        return self._made.sock is not None

    @property
    def limit_s(self) -> float:
        """How long the step could take that was begun last."""
        assert self._made.timeout is not None
        return self._made.timeout

    def ask(
        self, method: str, target: str, body: bytes | None, timeout_s: Callable[[], float],
        headers: Mapping[str, str] | None = None,
    ) -> DaemonAnswer:  # fmt: skip
        """Sends a request, with a JSON body or none, unless other ``headers`` are given. Raises one
        of FAILURES; then the connection is closed."""
        if headers is None:
            headers = {"Accept": "application/json"}
            if body is not None:
                headers = {**headers, "Content-Type": "application/json"}
        try:
            return _whole(self._send(method, target, body, headers, timeout_s))
        except FAILURES:
            self.close()
            raise

    def open(
        self, target: str, headers: Mapping[str, str], timeout_s: Callable[[], float],
        silence_s: float,
    ) -> DaemonAnswer:  # fmt: skip
        """A GET whose answer has no end: without an error its body is left to ``read``, which
        waits for ``silence_s``. Otherwise as ``ask``."""
        try:
            response = self._send("GET", target, None, headers, timeout_s)
            if response.status >= 400:
                return _whole(response)
        except FAILURES:
            self.close()
            raise
        self._response = response
        self._limit(silence_s)
        return DaemonAnswer(response.status, b"", None)

    def read(self) -> bytes:
        """What has come, at least a byte; none at the end. Raises one of FAILURES."""
        assert self._response is not None
        return self._response.read1(READ_BYTES)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._made.close()

    def close_if_ended(self) -> None:
        """Closes a kept connection that its peer has ended, so that the next request opens
        another. One that ends later fails that request, which the peer may then have."""
        if self._made.sock is not None:
            looking = select.poll()
            looking.register(self._made.sock, select.POLLIN)
            if looking.poll(0):  # nothing was asked, so this is its end
                self.close()

    def _send(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str],
        timeout_s: Callable[[], float],
    ) -> http.client.HTTPResponse:  # fmt: skip
        made = self._made
        if made.sock is None:
            made.timeout = timeout_s()
            made.connect()
            self._socket = made.sock  # of which made knows no more once an answer ends it
        self._limit(timeout_s())
        try:
            made.request(
                method, self._address.base + target, body, {**self._address.headers, **headers}
            )
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal before the body was taken in: its answer may be there already
        self._limit(timeout_s())
        return made.getresponse()

    def _limit(self, step_s: float) -> None:
        assert self._socket is not None
        self._made.timeout = step_s
        self._socket.settimeout(step_s)


def reason_of(error: Exception) -> str:
    """What a failure says, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def short_socket_path(path: str) -> tuple[str, int | None]:
    """A path for ``bind`` and ``connect``, and a descriptor to close after the call.

    The kernel takes 107 bytes. A longer path goes by a descriptor of its directory.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path, None
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    return f"/proc/self/fd/{folder}/{os.path.basename(path)}", folder


def socket_connected(path: str, timeout_s: float) -> socket.socket:
    """A connection to a Unix socket. Raises OSError."""
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

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        assert self.timeout is not None
        self.sock = socket_connected(self._path, self.timeout)


def _made(address: DaemonAddress) -> http.client.HTTPConnection:
    if address.socket:
        return _UnixConnection(address.socket)
    if address.tls is None:
        return http.client.HTTPConnection(address.host, address.port)
    return http.client.HTTPSConnection(address.host, address.port, context=address.tls)


def _whole(response: http.client.HTTPResponse) -> DaemonAnswer:
    body = response.read(ANSWER_BYTES_MAX)
    if response.length:  # read() tells of an end before the end, read(n) does not
        raise http.client.IncompleteRead(body, response.length)
    return DaemonAnswer(response.status, body, response.getheader("Retry-After"))


def _trusting(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Trusts the system's authorities, and those of the file that CA_FILE names."""
    context = ssl.create_default_context()
    path = environ.get(CA_FILE, "")
    if path:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError:
            raise AuthoritiesUnusable(
                f"{CA_FILE} {path} has no certificate that can be used; it needs one or more, in"
                " PEM format"
            ) from None
        except OSError as error:
            raise AuthoritiesUnusable(f"cannot read {CA_FILE} {path}: {error.strerror}") from error
    return context
