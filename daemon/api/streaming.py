"""What a handler returns instead of a Struct: a stream, a text, or JSON that is encoded already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from delivery.streams.outlet import Outlet

T = TypeVar("T")


class Streaming(NamedTuple):
    """The answer of a handler whose route has ``streams``: 200, then bytes until one side closes.

    ``start`` is called once with the open outlet, when all requests that came earlier on the
    connection are answered. It is never called if the client goes before that.
    """

    content_type: str
    start: Callable[[Outlet], None]


class Text(NamedTuple):
    """The answer of a handler whose route has ``texts``: 200, with this body."""

    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class EncodedJson(NamedTuple, Generic[T]):
    """The answer of a handler that has the JSON of a ``T`` already: 200, with these bytes."""

    body: bytes
