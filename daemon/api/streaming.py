"""What a handler returns to answer with something else than JSON: a stream, or a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from delivery.watch.outlet import Outlet


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
