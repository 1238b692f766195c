"""What a watch is asked, as JSON, query and headers: each field with its limits and its meaning.

They are listed in schemas.py, like all shapes of the API. What a stream tells is in
delivery/streams/events.py.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from delivery.filters import PATTERN_CHARACTERS_MAX
from delivery.watch.token import PLACES_MAX
from ledger.types import INTEGER_MAX, Offset

_Pattern = Annotated[str, Meta(max_length=PATTERN_CHARACTERS_MAX)]
_Tag = Annotated[_Pattern, Meta(description="keep records whose tag matches this pattern")]
_Node = Annotated[_Pattern, Meta(description="keep records whose node matches this pattern")]
_Key = Annotated[_Pattern, Meta(description="keep records whose key matches this pattern")]
_FromSeq = Annotated[Offset, Meta(description="begin after this offset; 0: with the first record")]
_FromTs = Annotated[
    int,
    Meta(
        ge=0,
        le=INTEGER_MAX,
        description="begin with the first record whose `ts` is not earlier (epoch ms)",
    ),
]
_Tail = Annotated[bool, Meta(description="begin after the last record (the default)")]
_Partition = Annotated[
    int,
    Meta(
        ge=0,
        le=INTEGER_MAX,
        description="one partition; without it all, also those that are added later",
    ),
]
_Ticket = Annotated[str, Meta(description="a [ticket](access.md#pages), instead of a token")]
_LastEventId = Annotated[
    str, Meta(description="as the header Last-Event-ID, for clients that cannot send it")
]


class WatchQuery(Struct, frozen=True):
    """Which records a stream has, and where it begins: after the last record, unless it says
    otherwise."""

    from_seq: _FromSeq | None = None
    from_ts: _FromTs | None = None
    tail: _Tail = False
    partition: _Partition | None = None
    tag: _Tag | None = None
    node: _Node | None = None
    key: _Key | None = None
    last_event_id: _LastEventId = ""
    ticket: _Ticket = ""


class WidQuery(Struct, frozen=True):
    """Where a stream with a ``wid`` begins, if not where the ``wid`` says."""

    last_event_id: _LastEventId = ""
    ticket: _Ticket = ""


class WatchHeaders(
    Struct, frozen=True, rename={"accept": "Accept", "last_event_id": "Last-Event-ID"}
):
    """The headers that a stream heeds."""

    accept: Annotated[
        str,
        Meta(
            description="`text/event-stream` (the default), `application/x-ndjson` or"
            " `application/msgpack`"
        ),
    ] = ""
    last_event_id: Annotated[
        str,
        Meta(description="the last position that the client got: the stream continues after it"),
    ] = ""


class WatchedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A topic of a stream, and where the stream begins in it. Give at most one of ``from_seq``,
    ``from_ts`` and ``tail``."""

    topic: str
    partition: _Partition | None = None
    from_seq: _FromSeq | None = None
    from_ts: _FromTs | None = None
    tail: _Tail = False


class WatchRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A stream of several topics, or of some partitions."""

    topics: Annotated[list[WatchedRequest], Meta(min_length=1, max_length=PLACES_MAX)]
    tag: _Tag | None = None
    node: _Node | None = None
    key: _Key | None = None


class WatchedId(Struct, frozen=True):
    """Which topic a name stands for in this stream."""

    topic: str
    topic_id: int


class WatchAnswer(Struct, frozen=True):
    """A stream that can be opened any number of times, and on any shard."""

    wid: Annotated[str, Meta(description="the whole request as a token; nothing is kept for it")]
    stream_url: Annotated[str, Meta(description="the path of the stream")]
    topics: list[WatchedId]


class TicketRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A stream that a page wants to open."""

    target: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=8_000,
            description="its path and query, as `/v0/topics/orders/watch?key=a`",
        ),
    ]


class Ticket(Struct, frozen=True):
    """What opens the stream, and only that one, instead of a token."""

    ticket: str
    stream_url: Annotated[str, Meta(description="the target with the ticket")]
    expires_ms: Annotated[
        int, Meta(description="when it can no longer be used (epoch ms); the stream goes on")
    ]
