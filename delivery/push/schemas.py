"""What pushing looks like to clients."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class PushHeader(Struct, frozen=True):
    """A header of a request or an answer."""

    name: str
    value: Annotated[str, Meta(description="of an own header `(hidden)`")]


class PushExchange(Struct, frozen=True):
    """A POST of a record that is in no topic, and what became of it."""

    endpoint: str
    address: Annotated[str, Meta(description="that was connected to; empty: none was")]
    request_headers: list[PushHeader]
    request_body: Annotated[str, Meta(description="its first 16,384 characters")]
    request_bytes: int
    status: Annotated[int | None, Meta(description="of the answer; null: there is none")]
    failure: Annotated[
        str | None, Meta(description="why no answer counts, in a word; otherwise null")
    ]
    message: Annotated[str, Meta(description="and in a sentence")]
    answer_headers: Annotated[list[PushHeader], Meta(description="32 at most")]
    answer_body: Annotated[str, Meta(description="its first 1,024 bytes")]
    took_ms: float
    waited_ms: Annotated[float, Meta(description="for its turn, as the rate allows")]
    outcome: Annotated[
        str,
        Meta(
            description="what the answer means: `success`, `receiver` (it failed), `record` (it"
            " refuses this one), `held` (it asks for a pause), `gone` (it wants no more)"
        ),
    ]
    meaning: Annotated[str, Meta(description="the same in a sentence")]
    retry_after_ms: Annotated[int | None, Meta(description="the pause that it asks for")]
