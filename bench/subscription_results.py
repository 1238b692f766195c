"""What was measured of subscriptions, in the shape of the JSON that is kept."""

from __future__ import annotations

import msgspec

from bench.delivery_results import Spread


class DrainKind(msgspec.Struct, frozen=True):
    """What is drained: a topic's partitions, by a number of subscriptions of a mode."""

    mode: str
    partitions: int
    subscriptions: int


class DrainResult(msgspec.Struct, frozen=True):
    """A backlog that consumers take and acknowledge batch by batch, without new records, with the
    default settings. ``messages`` are those of all subscriptions.

    ``per_s`` counts messages whose acknowledgment was answered. ``client_share`` is the part of a
    CPU that our clients used; near 1 the daemon may do more.
    """

    kind: DrainKind
    messages: int
    keys: int
    consumers: int
    seconds: float
    per_s: float
    per_cpu_s: float
    messages_per_batch: float
    client_share: float


class WaitingResult(msgspec.Struct, frozen=True):
    """Memory of the window for each message that waits, with its keys."""

    messages: int
    keys: int
    bytes_each: float


class ArrivalResult(msgspec.Struct, frozen=True):
    """A message at a time: from its commit's publication to the socket of its consumer."""

    consumers: int
    commit_to_socket: Spread


class HotKeyResult(msgspec.Struct, frozen=True):
    """The same for messages of other keys, without and with a key that has a backlog.
    ``hot_per_s``: messages of that key meanwhile, one after the other."""

    backlog: int
    alone: Spread
    with_hot_key: Spread
    hot_per_s: float


class TakeoverResult(msgspec.Struct, frozen=True):
    """From SIGKILL of the owner to the next message at a consumer, whose connection is at another
    shard (``elsewhere``) or at the owner (``there``, and it has to connect again)."""

    elsewhere: Spread
    there: Spread


class RequestsResult(msgspec.Struct, frozen=True):
    """Without streams: one consumer that polls and acknowledges in turn, and the command line."""

    polls_per_s: float
    polled_per_s: float
    small_polls_per_s: float
    command_per_s: float


class SubscriptionResults(msgspec.Struct):
    """All of them. ``others_share``: the most that other programs used of all CPUs meanwhile."""

    others_share: float = 0.0
    drains: list[DrainResult] = []
    waiting: WaitingResult | None = None
    arrival: ArrivalResult | None = None
    hot_key: HotKeyResult | None = None
    takeover: TakeoverResult | None = None
    requests: RequestsResult | None = None
