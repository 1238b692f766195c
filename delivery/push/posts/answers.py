"""What a receiver's answers mean: of one the table says it, and of failures that a record may have
caused, ``FailingRecords`` says whose they are.

``PushAnswer`` is what became of one POST, ``judge`` says what that means for its records, and
``TABLE`` is what ``judge`` goes by: docs/push.md prints it, and a test compares the two.

An answer counts when it is complete. What was cut off in the middle, or took longer than the
timeout, is a failure whatever its status said: the receiver gets the records again. Only a body
that is longer than anyone needs is not read to its end, and its status counts.

A receiver that answers 500 does not say whether it has failed or the record has made it fail. The
other records do: an attempt is *its record's own* failure if POSTs of others were delivered before
and after it, and none failed in between. In an outage others fail as well, so it counts against
nobody.

    a record fails, after one was delivered -> the next one that ends is delivered: it is *known*
    -> the record fails again: the attempt that is known counts

- So an attempt counts when the next one of its record fails, and the last attempts never do if
  nothing else is sent.
- Failures of records that have failed before do not matter to others: several records that make a
  receiver fail come again together.
- An answer that is about the receiver (429, a refused connection) is never the record's own, and
  is evidence against all that failed before it.
- Of several records in a POST it is unknown whose failure it is: if it is known, the halves are
  sent, and one alone counts if something was delivered since.

This module knows no sockets and reads no clocks. Bounds: of each sender TRIES_MAX records that
failed, at 200 bytes each; of more, the oldest are as if they were new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cache

from msgspec import Struct

from delivery.subscriptions.window.messages import Place
from shards.boards.pushboard import PushOutcome

HOUR_MS = 3_600_000
# A receiver may ask for a pause, but not switch a subscription off by a wrong number.
RETRY_AFTER_MS_MAX = HOUR_MS
# What stops us is on this machine: it is looked at again soon, and the receiver has no part in it.
LOCAL_HOLD_MS = 1_000
# Of a body, for people; of a header, too.
HEAD_BYTES = 1_024
# Of that, in a sentence.
EXCERPT_CHARACTERS = 200
TRIES_MAX = 2_000


class PushFailure(StrEnum):
    """Why a POST got no answer that counts."""

    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    FORBIDDEN = "forbidden"
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    TOO_LARGE = "too_large"
    NOT_HTTP = "not_http"
    REQUEST = "request"
    LOCAL = "local"


class PushAnswer(Struct, frozen=True, kw_only=True):
    """What became of a POST. Exactly one of ``status`` and ``failure`` decides: with a failure, a
    status is only what the receiver had said before it."""

    status: int | None = None
    failure: PushFailure | None = None
    # What happened, for people; of answers without a failure, empty.
    message: str = ""
    # What the receiver asked for, within RETRY_AFTER_MS_MAX; 0 and times in the past are None.
    retry_after_ms: int | None = None
    # The beginning of the body, at most HEAD_BYTES.
    head: bytes = b""
    # At most 32, each value with at most HEAD_BYTES characters.
    headers: tuple[tuple[str, str], ...] = ()
    took_ms: float = 0.0
    # The address and port that was connected to, or would have been.
    address: str = ""


class AnswerOutcome(StrEnum):
    """What an answer means for the records of its POST."""

    SUCCESS = "success"  # delivered
    # The receiver failed: again later, as often as it takes, unless it is the record's doing.
    RECEIVER = "receiver"
    RECORD = "record"  # the receiver refuses these records: counts for the poison policy
    HELD = "held"  # the receiver asks for a pause: again after it
    GONE = "gone"  # the receiver wants no more: the subscription is paused


class AnswerKind(Struct, frozen=True):
    """A row of the table. ``statuses`` are inclusive ranges; a status belongs to the first row
    that has it. A row that ``needs_retry_after`` has only answers with ``Retry-After``. The board
    counts an answer as ``counted_as``. A failure of the receiver ``may_be_of_record`` if a record
    may have made it fail: others say whether it has (``FailingRecords``)."""

    what: str
    outcome: AnswerOutcome
    counted_as: PushOutcome
    why: str
    statuses: tuple[tuple[int, int], ...] = ()
    failures: tuple[PushFailure, ...] = ()
    needs_retry_after: bool = False
    may_be_of_record: bool = False


class PushVerdict(Struct, frozen=True):
    """What an answer means. ``sentence`` says it to people."""

    outcome: AnswerOutcome
    counted_as: PushOutcome
    sentence: str
    # How long the endpoint is held: always given with HELD, and with nothing else.
    retry_after_ms: int | None = None
    may_be_of_record: bool = False

    @property
    def is_failure(self) -> bool:
        """Whether the limiter counts it: only failures of the receiver say that it is too slow."""
        return self.outcome is AnswerOutcome.RECEIVER


def _each(*statuses: int) -> tuple[tuple[int, int], ...]:
    return tuple((status, status) for status in statuses)


TABLE: tuple[AnswerKind, ...] = (
    AnswerKind(
        "2xx",
        AnswerOutcome.SUCCESS,
        PushOutcome.DELIVERED,
        "delivered; the body is not looked at",
        ((200, 299),),
    ),
    AnswerKind(
        "429 or 503 with `Retry-After`",
        AnswerOutcome.HELD,
        PushOutcome.HELD,
        "the receiver asks for a pause, and gets it: at most an hour",
        _each(429, 503),
        needs_retry_after=True,
    ),
    AnswerKind(
        "410", AnswerOutcome.GONE, PushOutcome.GONE, "the receiver wants no more of it", _each(410)
    ),
    AnswerKind(
        "3xx",
        AnswerOutcome.RECEIVER,
        PushOutcome.REDIRECTED,
        "redirects are not followed: change `endpoint`",
        ((300, 399),),
        may_be_of_record=True,
    ),
    AnswerKind(
        "401, 402, 403, 404, 405, 407, 421, 426",
        AnswerOutcome.RECEIVER,
        PushOutcome.RECEIVER_REFUSED,
        "mostly the endpoint or its credentials are wrong",
        _each(401, 402, 403, 404, 405, 407, 421, 426),
        may_be_of_record=True,
    ),
    AnswerKind(
        "408, 423, 425, 429",
        AnswerOutcome.RECEIVER,
        PushOutcome.RECEIVER_REFUSED,
        "the receiver is too slow, or busy",
        _each(408, 423, 425, 429),
    ),
    AnswerKind(
        "all other 4xx, such as 400, 409, 413, 422",
        AnswerOutcome.RECORD,
        PushOutcome.RECORD_REFUSED,
        "the receiver refuses these records",
        ((400, 499),),
    ),
    AnswerKind(
        "5xx",
        AnswerOutcome.RECEIVER,
        PushOutcome.SERVER_ERROR,
        "the receiver failed",
        ((500, 599),),
        may_be_of_record=True,
    ),
    AnswerKind(
        "any other status",
        AnswerOutcome.RECEIVER,
        PushOutcome.ANSWER_BROKEN,
        "that is not an answer to a POST",
        ((0, 999),),
        may_be_of_record=True,
    ),
    AnswerKind(
        "the name has no address (`dns`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.NAME_UNKNOWN,
        "the receiver cannot be reached",
        failures=(PushFailure.DNS,),
    ),
    AnswerKind(
        "no connection (`refused`, `unreachable`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.UNREACHABLE,
        "the receiver cannot be reached",
        failures=(PushFailure.REFUSED, PushFailure.UNREACHABLE),
    ),
    AnswerKind(
        "an address that `push_allow` does not allow, or `push_deny` denies (`forbidden`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.FORBIDDEN,
        "nothing is sent to it",
        failures=(PushFailure.FORBIDDEN,),
    ),
    AnswerKind(
        "no TLS, or a certificate that is not valid (`tls`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.TLS_FAILED,
        "nothing is sent to it",
        failures=(PushFailure.TLS,),
    ),
    AnswerKind(
        "no complete answer within `timeout_ms` (`timeout`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.TIMED_OUT,
        "the receiver is too slow; it may have the records",
        failures=(PushFailure.TIMEOUT,),
        may_be_of_record=True,
    ),
    AnswerKind(
        "no answer, or half of one, and the connection closed (`closed`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.ANSWER_BROKEN,
        "the receiver may have the records",
        failures=(PushFailure.CLOSED,),
        may_be_of_record=True,
    ),
    AnswerKind(
        "more than 64 headers, or one of more than 8 KiB (`too_large`), or what is not HTTP"
        " (`not_http`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.ANSWER_BROKEN,
        "the receiver may have the records",
        failures=(PushFailure.TOO_LARGE, PushFailure.NOT_HTTP),
        may_be_of_record=True,
    ),
    AnswerKind(
        "a request that cannot be made (`request`)",
        AnswerOutcome.RECEIVER,
        PushOutcome.UNREACHABLE,
        "the endpoint or an own header cannot be sent: change them",
        failures=(PushFailure.REQUEST,),
    ),
    AnswerKind(
        "no open file, memory or place for a connection (`local`)",
        AnswerOutcome.HELD,
        PushOutcome.HELD,
        "this machine is short of something: again after a second",
        failures=(PushFailure.LOCAL,),
    ),
)


@cache
def _of_status(status: int) -> tuple[AnswerKind, ...]:
    """The rows of a status: one, or the one that needs ``Retry-After`` and the next."""
    rows = [row for row in TABLE if any(low <= status <= high for low, high in row.statuses)]
    conditional = [row for row in rows if row.needs_retry_after]
    plain = next(row for row in rows if not row.needs_retry_after)
    return (*conditional, plain)


_BY_FAILURE: Mapping[PushFailure, AnswerKind] = {
    failure: row for row in TABLE for failure in row.failures
}
_DELIVERED = PushVerdict(AnswerOutcome.SUCCESS, PushOutcome.DELIVERED, "delivered")


def meaning(answer: PushAnswer) -> AnswerKind:
    """The row of the table that an answer belongs to."""
    if answer.failure is not None:
        return _BY_FAILURE[answer.failure]
    status = answer.status or 0
    for row in _of_status(status if 0 <= status < 1_000 else 0):
        if not row.needs_retry_after or answer.retry_after_ms is not None:
            return row
    raise AssertionError("each status has a row without a condition")


def judge(answer: PushAnswer) -> PushVerdict:
    """What an answer means for its records."""
    if answer.failure is None and answer.status is not None and 200 <= answer.status <= 299:
        return _DELIVERED
    row = meaning(answer)
    if answer.failure is None:
        sentence = f"the receiver answered {answer.status} ({row.why})"
        said = excerpt(answer.head)
        if said:
            sentence += f": {said}"
    else:
        sentence = f"{answer.failure}: {answer.message or row.why}"
    pause_ms = None
    if row.outcome is AnswerOutcome.HELD:
        pause_ms = answer.retry_after_ms or LOCAL_HOLD_MS
    return PushVerdict(row.outcome, row.counted_as, sentence, pause_ms, row.may_be_of_record)


class _Tried:
    """A record that failed, and has not been delivered since."""

    __slots__ = ("is_halved", "known_at")

    def __init__(self) -> None:
        self.known_at: int | None = None  # an attempt is known to be its own since; None: none is
        self.is_halved = False  # since it was known


class FailingRecords:
    """Which failed attempts are their records' own, of one sender."""

    def __init__(self) -> None:
        self._tried: dict[Place, _Tried] = {}
        self._delivered = 0  # POSTs
        self._is_up = False  # the last POST of records that had not failed before was delivered
        self._open: dict[Place, None] = {}  # failed since; known if the next POST is delivered

    def clear(self) -> None:
        """Nothing that was tried so far counts."""
        self._tried.clear()
        self._open.clear()
        self._is_up = False

    def delivered(self, places: Sequence[Place]) -> None:
        """A POST with these records was delivered."""
        if self._tried:
            for place in places:
                self._tried.pop(place, None)
            for place in self._open:
                tried = self._tried.get(place)
                if tried is not None and tried.known_at is None:
                    tried.known_at = self._delivered
            self._open.clear()
        self._delivered += 1
        self._is_up = True

    def failed(self, places: Sequence[Place], *, may_be_theirs: bool) -> bool:
        """A POST with these records failed. Whether an attempt of theirs counts now; of several
        records, whether the halves are to be sent."""
        known = [tried for place in places if (tried := self._tried.get(place)) is not None]
        is_theirs = may_be_theirs and self._is_known(known, is_alone=len(places) == 1)
        for place in places:  # the last ones are those that were tried last
            self._tried[place] = self._tried.pop(place) if place in self._tried else _Tried()
        while len(self._tried) > TRIES_MAX:
            del self._tried[next(iter(self._tried))]
        if known and may_be_theirs:
            if self._is_up:
                self._open.update(dict.fromkeys(places))
        else:
            self._open = dict.fromkeys(places) if self._is_up and may_be_theirs else {}
            self._is_up = False
        return is_theirs

    def _is_known(self, tried: Sequence[_Tried], *, is_alone: bool) -> bool:
        known = [each for each in tried if each.known_at is not None]
        if is_alone:
            is_theirs = any(self._delivered > (each.known_at or 0) for each in known)
            for each in known:
                each.is_halved = False
                each.known_at = None if is_theirs else each.known_at
            return is_theirs
        for each in known:
            if not each.is_halved:
                each.is_halved, each.known_at = True, self._delivered
        return bool(known)


def excerpt(head: bytes) -> str:
    """The beginning of a body in a line that can be printed, for people."""
    text = head[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "replace")
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= EXCERPT_CHARACTERS else line[:EXCERPT_CHARACTERS] + "..."


def retry_after_ms(value: str, date: str | None, now_ms: int) -> int | None:
    """What ``Retry-After`` asks for: seconds, or a date. None for what is neither, and for a pause
    of nothing.

    A date is compared with the answer's own ``Date``, if it has one, because the receiver's clock
    may be wrong; else with ours. The longest pause is RETRY_AFTER_MS_MAX.
    """
    text = value.strip()
    # Digits in ASCII only, as HTTP has them; a longer number is more than the maximum anyway.
    if text.isascii() and text.isdigit():
        pause_ms = int(text[:10]) * 1_000
    else:
        until_ms = _http_date_ms(text)
        if until_ms is None:
            return None
        begin_ms = _http_date_ms(date) if date is not None else None
        pause_ms = until_ms - (now_ms if begin_ms is None else begin_ms)
    return min(pause_ms, RETRY_AFTER_MS_MAX) if pause_ms > 0 else None


def _http_date_ms(text: str) -> int | None:
    if len(text) > 64:
        return None
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return None


_OUTCOME_TEXT: Mapping[AnswerOutcome, str] = {
    AnswerOutcome.SUCCESS: "success",
    AnswerOutcome.RECEIVER: "failure of the receiver",
    AnswerOutcome.RECORD: "failure of the record",
    AnswerOutcome.HELD: "a pause",
    AnswerOutcome.GONE: "the subscription is paused",
}


def markdown(table: Iterable[AnswerKind] = TABLE) -> str:
    """The table as docs/push.md has it."""
    lines = ["| answer | what it is | why |", "|---|---|---|"]
    for row in table:
        means = _OUTCOME_TEXT[row.outcome] + (", or of the record" if row.may_be_of_record else "")
        lines.append(f"| {row.what} | {means} | {row.why} |")
    return "\n".join(lines) + "\n"
