"""Connections of push, as aiohttp makes and uses them; see ``posting.py``.

A connection is made by the task of its POST, so that ``TRIES`` says for whom: aiohttp makes the
sockets and asks ``PushConnector`` for each, which is told the address; the name is in the PushTry.

When it changes who may be called, connections that were made before are not used again.

A connection that waits for its next POST is closed after KEEP_ALIVE_S: most servers close one after
5 s or more, and a POST on a connection that the server is just closing would be a failure that
nobody made.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import BadHttpMessage

from delivery.push.posts.addresses import AllowList

# The addresses of a name. Raises OSError.
Resolve = Callable[[str], Awaitable[Iterable[str]]]

KEEP_ALIVE_S = 4.0
# Answers before the answer, such as 100 and 103. Few receivers have any.
INTERIMS_MAX = 16


class PushTry:
    """How far one POST is; made by ``post``, written by the connection that it gets."""

    __slots__ = ("address", "forbidden", "host", "is_sent", "status")

    def __init__(self, host: str) -> None:
        self.host = host
        self.address = ""
        self.forbidden = ""
        self.is_sent = False
        self.status: int | None = None


TRIES: ContextVar[PushTry] = ContextVar("push_try")


class _Forbidden(OSError):
    """An address that may not be connected to. An OSError, so that aiohttp tries the next one."""


class TooManyInterims(BadHttpMessage):
    """Interim answers (1xx) without an end."""


class _Handler(ResponseHandler):
    """A connection that takes one answer for one POST.

    aiohttp would take any number of interim answers, as fast as they come, and would give an answer
    that came on an idle connection to the next POST.
    """

    is_asked = False
    interims = 0
    peer = ""

    def feed_data(self, data: tuple[RawResponseMessage, Any], size: int = 0) -> None:
        """Takes a message that the parser has found."""
        code = data[0].code
        if not self.is_asked:
            self._drop()
            return
        if code < 200 and code != 101:
            self.interims += 1
            if self.interims > INTERIMS_MAX:
                self.set_exception(TooManyInterims("interim answers without an end"))
                self._drop()
                return
        else:
            self.is_asked = False
        super().feed_data(data, size)

    def ask(self) -> str:
        """A POST is on its way. Returns to which address."""
        self.is_asked = True
        self.interims = 0
        if not self.peer and self.transport is not None:
            # Asked for once: the system is asked each time, which takes 7 us.
            peer = self.transport.get_extra_info("peername")
            self.peer = _address_text(peer) if peer else ""
        return self.peer

    def close(self) -> None:
        """Closes without sending the rest of a body, or waiting for the end of TLS: both would be
        as long as the receiver likes."""
        self.abort()

    def _drop(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


class _Names(AbstractResolver):
    """Looks names up by a function, as aiohttp wants it."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._resolve(host)
        ]

    async def close(self) -> None:
        pass


class PushConnector(aiohttp.TCPConnector):
    """All connections of a shard, to addresses that are allowed."""

    def __init__(
        self,
        allow: AllowList,
        context: ssl.SSLContext,
        resolve: Resolve | None,
        names_kept_s: int,
    ) -> None:
        super().__init__(
            ssl=context,
            limit=0,  # Places
            keepalive_timeout=KEEP_ALIVE_S,
            use_dns_cache=names_kept_s > 0,
            ttl_dns_cache=names_kept_s,
            resolver=_Names(resolve) if resolve is not None else None,
            socket_factory=self._socket,
        )
        self._allow = allow
        self._handlers: WeakSet[_Handler] = WeakSet()
        # There is no public way; the tests notice when this one is gone.
        self._factory: Any = self._handler

    def _handler(self) -> _Handler:
        made = _Handler(self._loop)
        self._handlers.add(made)
        return made

    def use_none_again(self) -> None:
        """Closes what waits for its next POST, and all others after their answer."""
        for each in list(self._handlers):
            if each.is_asked:
                each.force_close()
            else:
                each.close()

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that is about to be connected to."""
        family, kind, protocol, _, address = info
        now = TRIES.get()
        if why := self._allow.why_not(now.host, address[0]):
            now.forbidden = why
            raise _Forbidden(errno.EACCES, now.forbidden)
        now.address = _address_text(address)
        return socket.socket(family, kind, protocol)


class PushRequest(aiohttp.ClientRequest):
    """Has no headers but what it is given, Host, and those of the body."""

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        """Adds nothing. Leaving headers out by ``skip_auto_headers`` costs 8 us a request."""


class PushResponse(aiohttp.ClientResponse):
    """Notes which address answers, also on a connection that was there before."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        now = TRIES.get()
        now.is_sent = True
        now.address = connection.protocol.ask() or now.address
        return await super().start(connection)


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies by the system's certificates, and those in ``ca_file``. Raises OSError, named."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:  # SSLError too
            raise OSError(
                f"push_ca_file {ca_file} cannot be read as certificates in PEM format:"
                f" {error.strerror or error}"
            ) from error
    return context


def _address_text(address: Any) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
