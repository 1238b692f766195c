"""The JSON bodies of all requests but produce: small, read whole, and refused in one way.

One decoding, one mapping of its errors: whatever bytes a client sends, the answer is an ApiError
that says what is wrong and where. (msgspec raises UnicodeDecodeError beside its own DecodeError:
names of members are decoded before they are looked at.)
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from daemon.api.errors import ApiError
from daemon.http.request import Request
from daemon.intake.formats.json_body import UNREADABLE, refusal

T = TypeVar("T")


def read_json(request: Request, decoder: msgspec.json.Decoder[T], what: str) -> T:
    """The body of ``request``, which holds ``what``. Raises ApiError 400 and 415."""
    if request.head.content_type != "application/json":
        raise ApiError(415, "unsupported_media_type", f"send {what} as application/json")
    try:
        return decoder.decode(request.body)
    except UNREADABLE as error:
        raise refusal(request.body, error, f"it must be a JSON object with {what}") from error
