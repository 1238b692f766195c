"""What requests in formats of others (``daemon/intake/foreign/``) and their answers look like."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct


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


class LogsAnswer(Struct, frozen=True):
    """The records are durable, except those that `partialSuccess` counts."""

    partial_success: Annotated[
        dict[str, Any] | None,
        Meta(description="`rejectedLogRecords`, how many are too large, and `errorMessage`"),
    ] = None
