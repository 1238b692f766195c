"""The connections of a shard for Kafka's clients: how many there may be, how long, and their end.

``receiving.py`` reads their requests. A connection with refusals that clients retry is closed when
it has its answers (``producing.py``).

If there are too many connections, the oldest one that is not authenticated ends; it has
AUTHENTICATE_S for that. If all are, the one whose client has been silent for the longest time ends,
if that is GIVES_WAY_S. When its token goes, a connection ends immediately (``end_revoked``). At
its end, a connection keeps its place until its client has what was written, or CLOSE_S have passed.

Bounds: CONNECTIONS_MAX connections with CONNECTION_BYTES each; the frames of ``receiving.py``;
fetched records of FETCHED_BYTES_MAX; long answers of LONG_ANSWERS_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from daemon.access.access import Access
from daemon.access.audit import AuditedRequest, AuditLog
from daemon.access.rights import Rights, unauthenticated
from daemon.kafka.budget import Repeated, SharedBytes
from daemon.kafka.connection import (
    ANSWERS_MAX,
    AUTHENTICATE_S,
    LONG_ANSWERS_BYTES_MAX,
    READ_BYTES,
    Arrivals,
    KafkaConnection,
    KafkaStreams,
)
from daemon.kafka.fetching import FETCHED_BYTES_MAX, PLACE_BYTES_MAX, UNTAKEN_BYTES_MAX
from daemon.kafka.groups import coordinator
from daemon.kafka.groups.expiry import GroupExpiry
from daemon.kafka.producing import SHORT_BATCH_BYTES, OutcomeUnknown
from daemon.kafka.receiving import (
    CLOSED_BY_PEER,
    EARLY_BYTES,
    FRAME_HEADS_BYTES,
    FRAMES_BYTES_MAX,
    SMALL_FRAME_BYTES,
    KafkaReceiver,
    NotAuthenticated,
)
from daemon.kafka.rights import known_by
from daemon.kafka.sasl import Exchange
from daemon.kafka.served import KafkaParts
from daemon.kafka.wire import Malformed
from daemon.schemas.errors import ApiError
from daemon.tls import transport
from daemon.tls.transport import Tls, TlsTransport
from shards.clock import monotonic_ns
from uploader.l0.compression import snappy_codec

CONNECTIONS_MAX = 512
GIVES_WAY_S = 10.0  # clients that use theirs send more often, and connect again if it is closed
OVERDUE_LOOK_S = 0.1
ANSWERS_FLUSH_S = 3.0  # at a stop, for clients to take what became of their batches
# One read of the loop, what is unread, what is not written, and small requests as values.
CONNECTION_BYTES = (
    (256 << 10) + 2 * READ_BYTES + EARLY_BYTES + (64 << 10) + 5 * ANSWERS_MAX * SMALL_FRAME_BYTES
    + 2 * SHORT_BATCH_BYTES
)  # fmt: skip
BACKLOG = 1024  # of a listener, which uvloop sets again
log = logging.getLogger("headgate.kafka")


def bytes_max(body_bytes_max: int) -> int:
    """What the connections of one shard take at most. One long batch at a time is decompressed,
    decoded and encoded."""
    return (
        CONNECTIONS_MAX * CONNECTION_BYTES + 2 * (body_bytes_max + FRAME_HEADS_BYTES)
        + 4 * body_bytes_max + FETCHED_BYTES_MAX + 4 * PLACE_BYTES_MAX + 5 * FRAMES_BYTES_MAX
        + 2 * LONG_ANSWERS_BYTES_MAX + coordinator.BYTES_MAX
    )  # fmt: skip


def tls_bytes_max() -> int:
    """What TLS adds to that: an answer is encrypted, and its client has not taken it."""
    return CONNECTIONS_MAX * transport.CONNECTION_BYTES + UNTAKEN_BYTES_MAX


class KafkaServer:
    """The connections of one shard. ``audit`` has those that were refused."""

    def __init__(
        self,
        parts: KafkaParts,
        expiry: GroupExpiry,
        body_bytes_max: int,
        access: Access | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._coordinator = parts.coordinator
        self._expiry = expiry
        self._expiring: asyncio.Task[None] | None = None
        self._access = access or Access(None)
        self._audit = audit
        self._too_many = Repeated(log)
        self._unauthenticated = Repeated(log)
        self._receiver = KafkaReceiver(parts, body_bytes_max, self._access, audit)
        self._long_answers = SharedBytes(LONG_ANSWERS_BYTES_MAX)
        self._servers: list[asyncio.Server] = []
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._open: dict[KafkaConnection, asyncio.Task[Any]] = {}  # the oldest first

    async def start(self, fds: Iterable[int], tls: Tls | None = None) -> None:
        """Serves on sockets that listen already, by their descriptors; by TLS, if it is given."""
        await asyncio.to_thread(snappy_codec)
        self._expiring = asyncio.create_task(self._expiry.run())
        self._loop = loop = asyncio.get_running_loop()
        self._end_overdue()

        def accepted() -> asyncio.BaseProtocol:
            client = KafkaStreams(self._serve)
            return client if tls is None else TlsTransport(tls, client)

        for listener in [socket.socket(fileno=fd) for fd in fds]:
            self._servers.append(await loop.create_server(accepted, sock=listener, backlog=BACKLOG))

    def end_revoked(self) -> None:
        """Ends the connections of senders whose rights have ended, and what they asked for."""
        for connection, task in list(self._open.items()):
            if connection.rights is not None and not connection.rights.live:
                log.info("the connection of %s is closed: its token was revoked, or it has expired",
                         connection.peer)  # fmt: skip
                connection.abort()
                task.cancel()

    @property
    def failures(self) -> int:
        """How many connections ended before they were authenticated."""
        return self._unauthenticated.count

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def groups(self) -> tuple[int, int]:
        """How many groups have members, and how many these are."""
        return self._coordinator.counts

    def drain(self) -> None:
        """Accepts no more connections, and no members of groups."""
        for server in self._servers:
            server.close()
        if self._expiring is not None:
            self._expiring.cancel()
        self._coordinator.close()

    def _end_overdue(self) -> None:
        """Ends the connections whose clients have sent nothing for too long."""
        now_ns = monotonic_ns()
        for connection in self._open:
            if connection.due_ns < now_ns:
                connection.overdue()
        self._overdue_timer = self._loop.call_later(OVERDUE_LOOK_S, self._end_overdue)

    async def close(self) -> None:
        """Ends all connections, after the answers to batches."""
        self.drain()
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_FLUSH_S):
                for connection in list(self._open):
                    await connection.batches_answered()
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, arrivals: Arrivals, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX and not (
            self._end_unauthenticated() or self._end_silent()
        ):
            self._too_many.log(f"connections beyond the limit of {CONNECTIONS_MAX} were closed")
            writer.transport.abort()
            return
        exchange = Exchange(self._rights_of if self._access.has_tokens else None)
        connection = KafkaConnection(
            arrivals, reader, writer, exchange, known_by(self._access), self._long_answers
        )
        self._open[connection] = task
        try:
            await self._receiver.run(connection, arrivals.names)
        except NotAuthenticated as error:
            self._not_authenticated(connection, str(error))
            if self._audit is not None:
                asked = AuditedRequest(None, connection.address, "", "KAFKA", "SaslAuthenticate")
                self._audit.refused(asked, unauthenticated(str(error)))
        except Malformed as error:
            if connection.rights is None:
                self._not_authenticated(connection, str(error))
            else:
                log.info("%s did not send a request: %s", connection.peer, error)
        except (OutcomeUnknown, ApiError) as error:
            log.info("the connection of %s is closed: %s", connection.peer, error)
        except TimeoutError:
            if connection.rights is None:
                self._not_authenticated(
                    connection, f"it took more than {AUTHENTICATE_S:g} s to show a token"
                )
        except CLOSED_BY_PEER:
            if exchange.is_under_way and not connection.has_ended:
                self._not_authenticated(connection, "it ended before it had shown a token")
        except asyncio.CancelledError:
            pass  # by close, or end_revoked
        except Exception as error:  # one client's request must not end the shard
            log.error("a request of %s failed because of a bug", connection.peer, exc_info=error)
        finally:
            try:
                await connection.end()
            finally:
                del self._open[connection]

    def _end_unauthenticated(self) -> bool:
        """Ends the oldest connection that is not authenticated. Returns whether there was one."""
        for connection in self._open:
            if connection.rights is None and not connection.has_ended:
                self._not_authenticated(connection, "another connection needed its place")
                connection.abort()
                return True
        return False

    def _end_silent(self) -> bool:
        """Ends the connection whose client has been silent for the longest time. Returns whether
        there was one that had been silent for long enough."""
        longest = min(self._open, key=lambda each: each.silent_since_ns, default=None)
        before_ns = monotonic_ns() - GIVES_WAY_S * 1e9
        if longest is None or longest.silent_since_ns > before_ns:
            return False
        longest.abort()
        return True

    def _not_authenticated(self, connection: KafkaConnection, why: str) -> None:
        self._unauthenticated.log(
            "connections of Kafka's protocol ended before they were authenticated, the last one of"
            f" {connection.address}: {why}"
        )

    def _rights_of(self, token: str) -> Rights:
        return self._access.of({"x-api-key": token})
