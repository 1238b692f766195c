"""What requests in formats of others (``daemon/intake/foreign/``) and their answers look like."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType


class BulkQuery(Struct, frozen=True):
    """The query of `_bulk`; parameters that are not here change nothing."""

    pipeline: (
        Annotated[str, Meta(description="refused, unless it is `_none`: there are none")] | None
    ) = None


class BulkAnswer(Struct, frozen=True):
    """What became of each action, in their order; those of a topic are durable together or not."""

    took: Annotated[int, Meta(description="milliseconds")]
    errors: Annotated[bool, Meta(description="whether an item has an error")]
    items: list[dict[str, dict[str, Any]]]


class BulkReason(Struct, frozen=True):
    """Why, as Elasticsearch says it."""

    type: Annotated[str, Meta(description="the code")]
    reason: Annotated[str, Meta(description="for people: the value, the limit, what to do")]


class BulkError(Struct, frozen=True):
    """Nothing of the request was stored."""

    error: BulkReason
    status: int


class LogsAnswer(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The records are durable, except those that `partialSuccess` counts."""

    partial_success: (
        Annotated[
            dict[str, Any],
            Meta(description="`rejectedLogRecords`, how many are too large, and `errorMessage`"),
        ]
        | UnsetType
    ) = UNSET


class LogsError(Struct, frozen=True):
    """A `google.rpc.Status`. Nothing of the request was stored."""

    message: Annotated[str, Meta(description="for people: the value, the limit, what to do")]
