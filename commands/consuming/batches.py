"""Where a consumer's messages come from: a stream, or one poll after the other.

Both are iterators of batches that survive lost connections: a consumer that comes back by its name
goes on. Waiting for a daemon is by patience (commands/client/http.py), which begins anew whenever
something arrives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
from msgspec import Struct

from commands.client.events import EVENT_BYTES_MAX
from commands.client.http import (
    RECONNECT_WAIT_MAX_MS,
    RECONNECT_WAIT_MS,
    Client,
    Refused,
    UnknownAnswer,
    Unreachable,
    decoded,
    topic_path,
)
from delivery.streams import events
from delivery.streams.events import WatchError, WatchTombstone
from delivery.subscriptions.schemas import ConsumedMessage, MissedOffsets, Polled

POLL_WAIT_MS = 20_000
POLL_MESSAGES = 256
# Why a stream ended for good; after anything else the consumer comes back.
_FINAL = frozenset({"replaced", "deleted", "unknown_subscription", "unknown_topic"})
_COMMA = re.compile(r"(\\.)|,", re.DOTALL)

Warn = Callable[[str], None]


class ConsumerSpec(Struct, frozen=True):
    """Who consumes: the subscription, the consumer's name and its filters. ``patience_ms``: how
    long to wait for a daemon that answered before, ``reach_ms``: for one that never did."""

    topic: str
    subscription: str
    name: str
    filters: tuple[str, ...]
    patience_ms: float
    reach_ms: float

    def path(self, *rest: str) -> str:
        """A path of the subscription."""
        return topic_path(self.topic, "subscriptions", self.subscription, *rest)

    def query(self) -> dict[str, str]:
        """The query of a request to consume."""
        escaped = [_COMMA.sub(lambda found: found[1] or r"\,", each) for each in self.filters]
        return {"consumer": self.name} | ({"filter": ",".join(escaped)} if escaped else {})

    def waits_ms(self, client: Client) -> float:
        """How long a call may be repeated."""
        return self.patience_ms if client.reached else self.reach_ms


def polled(
    client: Client, consumer: ConsumerSpec, wanted: Callable[[], int], warn: Warn
) -> Iterator[list[ConsumedMessage]]:
    """Batches of at most ``wanted()`` messages, one poll after the other, until it is 0. Raises
    Refused, Unreachable, UnknownAnswer."""
    while (count := min(wanted(), POLL_MESSAGES)) > 0:
        query = consumer.query() | {"max": str(count), "wait_ms": str(POLL_WAIT_MS)}
        body = client.call(
            "GET", consumer.path("consume"), query=query,
            patience_ms=consumer.waits_ms(client), silent_ms=POLL_WAIT_MS,
        )  # fmt: skip
        answer = decoded(client, body, Polled)
        for gap in answer.gaps:
            warn(gap_text(gap))
        if answer.messages:
            yield answer.messages


class ConsumerStream:
    """A stream, and the streams that follow it when it is lost."""

    def __init__(self, client: Client, consumer: ConsumerSpec, warn: Warn) -> None:
        self._client = client
        self._consumer = consumer
        self._warn = warn
        self._failing_since_ms: float | None = None
        self._wait_ms = 0.0

    def batches(self) -> Iterator[list[ConsumedMessage]]:
        """What comes together, without an end. Raises Refused, Unreachable, UnknownAnswer."""
        while True:
            answer = self._client.open(
                self._consumer.path("consume"), {"Accept": "application/x-ndjson"},
                query=self._consumer.query(), patience_ms=self._left_ms(),
            )  # fmt: skip
            try:
                with closing(answer):
                    yield from self._of_connection(answer.read)
            except Unreachable as error:
                self._before_next(error)
            except Refused as error:  # an event told it
                if error.code in _FINAL:
                    raise
                self._before_next(error)
            else:
                self._before_next(Unreachable(self._client.url, "the stream ended"))

    def _of_connection(self, read: Callable[[], bytes]) -> Iterator[list[ConsumedMessage]]:
        begun = b""
        while data := read():
            *lines, begun = (begun + data).split(b"\n") if b"\n" in data else (begun + data,)
            if len(begun) > EVENT_BYTES_MAX:
                raise UnknownAnswer(
                    f"a line of a stream of {self._client.url} has more than"
                    f" {EVENT_BYTES_MAX:,} bytes"
                )
            self._failing_since_ms = None
            messages = []
            for line in lines:
                if line.startswith(b'{"event":'):
                    self._hear(line)
                elif line:
                    messages.append(decoded(self._client, line, ConsumedMessage))
            if messages:
                yield messages

    def _hear(self, line: bytes) -> None:
        """Takes an event that is not a message. Raises Refused for an error."""
        match decoded(self._client, line, _Event).event:
            case events.TOMBSTONE:
                gap = decoded(self._client, line, WatchTombstone)
                self._warn(
                    gap_text(MissedOffsets(gap.partition, gap.gap_from, gap.gap_to, gap.reason))
                )
            case events.ERROR:
                told = decoded(self._client, line, WatchError)
                raise Refused(200, told.code, told.message, told.detail)

    def _left_ms(self) -> float:
        waits_ms = self._consumer.waits_ms(self._client)
        if self._failing_since_ms is None:
            return waits_ms
        return max(0, self._failing_since_ms + waits_ms - self._client.now_ms())

    def _before_next(self, failed: Unreachable | Refused) -> None:
        """Waits before the next connection, or raises what ended the last one."""
        if self._failing_since_ms is None:
            self._failing_since_ms = self._client.now_ms()
            self._wait_ms = 0.0
        if self._wait_ms >= self._left_ms():
            raise failed
        self._client.retries += 1
        self._client.sleep_ms(self._wait_ms)
        self._wait_ms = min(max(RECONNECT_WAIT_MS, 2 * self._wait_ms), RECONNECT_WAIT_MAX_MS)


class _Event(Struct):
    event: str


def gap_text(gap: MissedOffsets) -> str:
    """What is missing, for people."""
    return (
        f"records {gap.gap_from} to {gap.gap_to} of partition {gap.partition} are gone:"
        f" {gap.reason}"
    )


class Outcomes:
    """Tells the daemon what became of messages. A request is repeated until it is answered: it may
    be sent twice."""

    def __init__(self, client: Client, consumer: ConsumerSpec, warn: Warn) -> None:
        self._client = client
        self._consumer = consumer
        self._warn = warn

    def ack(self, messages: list[ConsumedMessage]) -> None:
        """The messages are dealt with."""
        self._tell("ack", messages)

    def nack(self, message: ConsumedMessage, reason: str) -> None:
        """A message could not be dealt with."""
        self._tell("nack", [message], reason=reason)

    def leave(self) -> None:
        """The consumer goes; what it has goes to others immediately. A daemon that does not answer
        finds out by itself."""
        self._client.close()  # what was interrupted may have left half a request on the connection
        try:
            self._post("leave", {}, 0)
        except (Refused, Unreachable, UnknownAnswer):
            return

    def _tell(self, path: str, messages: list[ConsumedMessage], **more: object) -> None:
        named = [
            {"partition": each.partition, "seq": each.seq, "epoch": each.epoch} for each in messages
        ]
        try:
            body = self._post(path, {"messages": named, **more}, self._consumer.patience_ms)
            refused = decoded(self._client, body, _Refusals).refused
        except Refused as error:
            if error.code != "stale_epoch":
                raise
            refused = len(messages)
        if refused:
            self._warn(
                f"{refused} of {len(messages)} messages were taken back before this was known of"
                " them; they may come again"
            )

    def _post(self, path: str, body: dict[str, object], patience_ms: float) -> bytes:
        document = msgspec.json.encode({"consumer": self._consumer.name} | body)
        return self._client.call(
            "POST", self._consumer.path(path), document, patience_ms=patience_ms
        )


class _Refusals(Struct):
    refused: int
