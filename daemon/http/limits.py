"""Limits and timeouts of the HTTP front: one table, every value with its reason.

Times are milliseconds. The timers are coarse: a timeout is noticed up to one check period late
(``Server.check_period_ms``), and never early.
"""

from __future__ import annotations

from msgspec import Struct

from daemon.config import Config

KIB = 1024
MIB = 1024 * KIB


class HttpLimits(Struct, frozen=True, kw_only=True):
    """What one connection, and the front of one shard, may take."""

    # A browser's cookies need 8 KiB; proxies add less. llhttp itself has no limit.
    head_bytes_max: int = 32 * KIB
    headers_max: int = 100
    target_bytes_max: int = 8 * KIB
    # Each takes a hundred times its bytes. No route has more than 8 segments, or takes more than 64
    # filters and a few other parameters.
    segments_max: int = 32
    parameters_max: int = 100
    # The daemon lowers it to a quarter of the ring.
    body_bytes_max: int = 16 * MIB
    # A refused body up to this size is read and thrown away, so that a 429 costs no reconnect.
    discard_bytes_max: int = 256 * KIB
    # Requests of one connection that are not answered yet; reading pauses at the limit. Where there
    # are more connections than these are enough for, a new one gets its share of them.
    requests_outstanding_max: int = 128
    requests_shared_out: int = 32_768
    # Connections that are not streams; and of these, those of one address: three quarters of them
    # if None, so that nobody shuts all others out, and a proxy has enough.
    connections_max: int = 8_192
    connections_per_address_max: int | None = None
    # Beyond these, this many are told why they are refused, and probes among them are answered.
    connections_told_max: int = 1_024
    streams_max: int = 10_000
    # A client has nothing to say on a stream. Some send an empty line, or a request by mistake.
    stream_input_bytes_max: int = 64 * KIB
    # What the streams of a shard were given and their clients have not taken; what several were
    # given counts once. 256 of the largest writes of a watch (256 KiB).
    stream_unsent_bytes_max: int = 64 * MIB
    # Answers that the client has not taken; over the limit nothing more is read from it, and what
    # is written then counts for the limit of all answers. 128 answers to producers have 20 KiB.
    write_buffer_high_bytes: int = 32 * KIB
    # What all connections but streams were given after that, and what waits for earlier answers.
    # From half of it on, answers are shorter; over it, connections are closed. The daemon lowers it
    # where memory is limited.
    answers_unsent_bytes_max: int = 64 * MIB
    # What connections have received and cannot use yet, except bodies: beginnings of heads, and
    # what came after a request that holds its connection back, mostly one read of up to 256 KiB.
    # Over it, those are closed that have kept something for the longest time.
    unread_bytes_max: int = 64 * MIB
    # Longer than the 60 s for which load balancers and agents keep idle connections.
    idle_timeout_ms: int = 75_000
    head_timeout_ms: int = 20_000
    # A body may pause for this long, and take this long plus its length at the lowest rate.
    body_timeout_ms: int = 20_000
    body_bytes_per_s_min: int = 16 * KIB
    # An answer must be taken within this time; of a stream, at least a byte.
    write_timeout_ms: int = 60_000
    # After an answer that ends the connection, input is read and thrown away within these limits:
    # closing immediately would reset the connection, and the client could lose the answer.
    linger_ms: int = 5_000
    linger_bytes_max: int = 64 * MIB

    def outstanding_max(self, connections: int) -> int:
        """How many requests may be outstanding on a connection that comes to this many others."""
        share = self.requests_shared_out // (connections + 1)
        return max(1, min(self.requests_outstanding_max, share))

    @property
    def all_outstanding_max(self) -> int:
        """How many requests may be outstanding on all connections: of those that are left, each
        came to all before it."""
        connections = self.connections_max + self.connections_told_max
        return sum(map(self.outstanding_max, range(connections)))


def http_limits(config: Config) -> HttpLimits:
    """The limits of a shard with this configuration."""
    return HttpLimits(
        body_bytes_max=config.body_bytes_max,
        streams_max=config.streams_max,
        connections_per_address_max=config.connections_per_address_max,
    )
