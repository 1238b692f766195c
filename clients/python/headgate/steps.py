"""What a call needs from the world, and when it is repeated. Nothing here does I/O.

A call is a generator. It yields a *step*, is sent what came of it, and returns its result:

    Look -> Moment      Wait -> None      Send, Open -> Answer      Read -> bytes, empty at the end

``Client`` and ``AsyncClient`` take the same steps, each in its way. A step that gets no answer is
``Lost`` in the generator. Calls without an end also yield ``Emit``, whose item goes to the caller.
A stream is closed by whoever takes the steps: when the next one is opened, or the call ends.

Every request is repeatable: it changes nothing, or does not change it twice. It is sent again
after 429 and 503, which promise that nothing was done, as Retry-After says; and when its outcome is
unknown: after 502, 504, and a connection that ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from headgate.errors import HeadgateError, OutcomeUnknown, UnknownAnswer, Unreachable, refused

T = TypeVar("T")
RETRY_AFTER_S = 1.0  # after a 429 or 503 without a usable Retry-After
RECONNECT_S = 0.1  # the first wait after a lost connection; doubles up to the one below
RECONNECT_MAX_S = 2.0
# The daemon remembers an idempotency key for two minutes (dedupe_window_ms), and compares it when
# it stores the request: 30 s for a connection and 20 s (ack_timeout_ms) after the last repetition.
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``silent_s`` is how long it may be without an answer by intention."""

    method: str
    path: str
    document: Any = None  # the JSON body; bytes are sent as they are
    query: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    silent_s: float = 0.0

    @property
    def target(self) -> str:
        """Path and query."""
        query = [(name, value) for name, value in self.query.items() if value is not None]
        return self.path + (f"?{urlencode(query, doseq=True)}" if query else "")

    @property
    def body(self) -> bytes | None:
        """The body's bytes."""
        if self.document is None or isinstance(self.document, bytes):
            return self.document
        return encoded(self.document)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. Of an opened stream, ``stream`` is what to read from."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: Any = None


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a clock that never goes back, how patient the client is with a daemon that has
    answered before (``is_reached``) or has not, and a name that was never used."""

    now_s: float
    patience_s: float
    is_reached: bool
    fresh: str


class Look:
    """Asks for the Moment."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Send:
    """Sends a request once."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Sends a request once; the body of a good answer is left to Read."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Reads what has come of a stream."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Hands an item to the caller."""

    item: T


class Lost(Exception):
    """No answer. ``sent``: the daemon may have received the request; ``is_final``: it never will,
    for example because its certificate is not trusted."""

    def __init__(self, reason: str, *, sent: bool, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        self.is_final = is_final


Step = Look | Wait | Send | Open | Read
Op = Generator[Step, Any, T]
Emitting = Generator[Step | Emit[T], Any, None]


def asked(
    request: Request, *, opens: bool = False, patience_s: float | None = None,
    window_s: float = math.inf,
) -> Op[Answer]:  # fmt: skip
    """The good answer to a request, which is repeated for ``patience_s`` (the client's, if not
    given, and for a daemon that never answered), and for ``window_s`` after the first attempt whose
    outcome is unknown."""
    moment: Moment = yield Look()
    began_s, window_until_s = moment.now_s, math.inf
    reconnect_s, is_unsure = RECONNECT_S, False
    error: HeadgateError
    while True:
        sent_s = (yield Look()).now_s
        outcome_unknown = False
        try:
            answer: Answer = yield (Open if opens else Send)(request)
        except Lost as lost:
            outcome_unknown = lost.sent
            error = Unreachable("unreachable", f"no answer to {request.path}: {lost.reason}")
            if lost.is_final:
                raise error from lost
        else:
            if 200 <= answer.status < 300:
                return answer
            error = refusal(request, answer)
            outcome_unknown = answer.status in (502, 504)
        if outcome_unknown and not is_unsure:
            is_unsure, window_until_s = True, sent_s + window_s
        error.is_unsure = is_unsure
        if isinstance(error, Unreachable) or outcome_unknown:
            wait_s, reconnect_s = reconnect_s, min(2 * reconnect_s, RECONNECT_MAX_S)
        elif answer.status in (429, 503):
            wait_s = retry_after_s(error, answer)
        else:
            raise error
        moment = yield Look()  # the daemon may have answered for the first time
        patient_s = moment.patience_s
        if patience_s is not None:
            patient_s = patience_s if moment.is_reached else min(patience_s, patient_s)
        if moment.now_s + wait_s > min(began_s + patient_s, window_until_s):
            if is_unsure:
                raise OutcomeUnknown("outcome_unknown", error.message, error.detail) from error
            raise error
        yield Wait(wait_s)


def refusal(request: Request, answer: Answer) -> HeadgateError:
    """What the daemon, or a proxy before it, says of a request that it refused."""
    try:
        error = json.loads(answer.body)["error"]
        return refused(
            answer.status, str(error["code"]), str(error["message"]), dict(error["detail"]),
            hint=str(error.get("hint", "")),
        )  # fmt: skip
    except (ValueError, LookupError, TypeError, AttributeError):
        location = answer.headers.get("location")
        return UnknownAnswer(
            "unknown_answer",
            f"{request.method} {request.path} was answered {answer.status} without an error in"
            f" Headgate's form: {answer.body[:80]!r}"
            + (f"; Location: {location[:200]}" if location else ""),
        )


def retry_after_s(error: HeadgateError, answer: Answer) -> float:
    """``detail.retry_after_ms`` if given, since it is finer than the seconds of the header."""
    exact = error.detail.get("retry_after_ms")
    if isinstance(exact, int | float) and math.isfinite(exact) and exact >= 0:
        return max(0.001, exact / 1000)
    header = answer.headers.get("retry-after", "")
    return float(header) if header.isdecimal() and len(header) < 7 else RETRY_AFTER_S


def encoded(value: object) -> bytes:
    """JSON. Raises TypeError or ValueError for what JSON cannot say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def decoded(body: bytes) -> Any:
    """The value of a good answer. Raises UnknownAnswer."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise UnknownAnswer("unknown_answer", f"an answer is not JSON: {body[:80]!r}") from error


def path(*parts: str) -> str:
    """``/v0/...``, quoted. Raises ValueError for a part without characters."""
    if not all(parts):
        raise ValueError(f"a name must not be empty, got {parts!r}")
    return "/".join(["/v0", *(quote(part, safe=":") for part in parts)])
