"""What a client is told when something is refused: one kind, one place.

An ApiError carries the HTTP status, a code that programs match on, a sentence for people that
names the value, the limit and the way out, and operands in ``detail``. ``close`` says that the
connection cannot be used any further (its framing is lost, or the body was not read).
"""

from __future__ import annotations

from typing import Any

import msgspec


class ApiError(Exception):
    """A refusal with its HTTP status. 429 and 503 promise that nothing was or will be stored."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        *,
        retry_after_s: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail or {}
        self.retry_after_s = retry_after_s
        self.close = close

    def body(self) -> bytes:
        """The JSON body ``{"error": {"code", "message", "detail"}}``."""
        error = {"code": self.code, "message": self.message, "detail": self.detail}
        return msgspec.json.encode({"error": error})


def invalid(message: str, **detail: Any) -> ApiError:
    """400 ``invalid``: the request's content is wrong."""
    return ApiError(400, "invalid", message, detail)


def too_large(message: str, **detail: Any) -> ApiError:
    """413 ``too_large``: a body, record or count is over its limit."""
    return ApiError(413, "too_large", message, detail)
