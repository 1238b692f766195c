"""What goes wrong, as exceptions. Each has a ``code`` for programs, ``detail`` with the values of
the message, and a ``hint``: what to do, or nothing.

A refusal is the daemon's answer. After ``OutcomeUnknown`` the request may be stored, now or later;
after any other error of a call nothing of it is, unless ``is_unsure`` says that an attempt before
the last one had no answer.
"""

from __future__ import annotations

from typing import Any

_HINTS = {
    "unauthenticated": "give the client a token that is in force: Client(url, token=...)",
    "forbidden": "use a token with the scope and the topic that the message names",
    "unknown_topic": "create_topic(...) makes it; a produce without create=False does too",
    "unknown_subscription": "create_subscription(...) makes it; consume(..., create=True) does too",
    "cursor_unknown": "put_cursor(...) makes it",
    "cursor_moved": "another producer moves this cursor: use one cursor for each producer",
    "too_large": "send fewer or smaller records in a request",
    "unreachable": "start the daemon, or give its address: Client('http://HOST:7440')",
    "outcome_unknown": "send it again with its idempotency_key, or look whether it is stored",
    "unknown_answer": "the address may be of another program, or of a proxy",
}


class HeadgateError(Exception):
    """What every error of this package is."""

    def __init__(
        self, code: str, message: str, detail: dict[str, Any] | None = None, *, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail or {}
        self.hint = hint or _HINTS.get(code, "")
        self.is_unsure = False

    def __str__(self) -> str:
        return f"{self.message} ({self.code})" + (f"; hint: {self.hint}" if self.hint else "")


class Unreachable(HeadgateError):
    """No answer came, and the daemon has not received the request."""


class OutcomeUnknown(HeadgateError):
    """The request was sent, and no answer says what became of it."""


class UnknownAnswer(HeadgateError):
    """An answer that is not of this API."""


class Refused(HeadgateError):
    """The daemon refused the request with the HTTP ``status``."""

    def __init__(
        self, status: int, code: str, message: str, detail: dict[str, Any], *, hint: str = ""
    ) -> None:
        super().__init__(code, message, detail, hint=hint)
        self.status = status


class NotAllowed(Refused):
    """401 or 403: the token is missing, or is not enough."""


class NotFound(Refused):
    """404: no such topic, subscription, router or cursor."""


class ConditionFailed(Refused):
    """412: ``expected_seq`` does not hold, or the cursor is elsewhere."""


class ProducerFailed(HeadgateError):
    """A producer cannot go on; its ``__cause__`` says why. ``count`` records were given to it and
    are not known to be stored; of those, only ones of the first request may be."""

    def __init__(self, cause: HeadgateError, count: int) -> None:
        super().__init__(
            cause.code, f"{count} records are not known to be stored: {cause.message}",
            cause.detail, hint=cause.hint,
        )  # fmt: skip
        self.count = count


_KINDS = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 412: ConditionFailed}


def refused(
    status: int, code: str, message: str, detail: dict[str, Any], *, hint: str = ""
) -> Refused:
    """The refusal of this status."""
    return _KINDS.get(status, Refused)(status, code, message, detail, hint=hint)
