"""Foreign requests: in a format of others, with records for one or several topics.

    admitted as a produce request is -> its body is there -> translated, in slices of the loop's
    time -> its *pieces*, a produce request for each topic, are handed to the producer in one step
    -> each piece is stored, or refused -> one answer, in the format of the request

A piece is a body in our own format, so that whatever holds for produce holds for it: limits, caps,
``dedupe``, creating its topic, its deadline. Its topic takes all of it, or nothing.

The connection reads nothing more until the pieces are handed over, so records of a connection keep
their order. One request of a shard is translated at a time: of what is made of a body, which no
promise covers, there is never more than one. What is kept for the answer counts in the budget of
all other requests (daemon/http/request_budget.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from daemon.http.head import Head
from daemon.http.request import Answer, Request
from daemon.http.request_budget import Promise, RequestBudget
from daemon.intake.admission import FRAME_BYTES
from daemon.intake.formats import BodyLimits, decompress
from daemon.intake.producer import Producer
from daemon.schemas.errors import ApiError, too_large
from daemon.schemas.names import check_topic_name
from delivery.tasks import Tasks
from shards.clock import monotonic_ns

log = logging.getLogger("headgate.foreign")

SLICE_NS = 2_000_000  # of the loop's time, then others have their turn
# Each has a frame of its own, and may have to be created.
TOPICS_MAX = 100
PIECE_TYPE = "application/json"
# What is made of the one body that is translated, decompressed, as texts and as pieces; besides,
# one of its records is decoded. Measured with bodies of 14 to 16 MiB: 1.2 to 5.4 times the body.
BODY_COPIES = 5


class Translation(Protocol):
    """One foreign request, from its body to its answer. A class of these is a format."""

    def __init__(self, content_type: str, *values: Any) -> None:
        """``values`` are those of the path, then the query."""

    def steps(self, body: bytes, limits: BodyLimits) -> Iterator[None]:
        """Translates a body, and stops after each record. Raises ApiError for what can only be
        refused as a whole."""

    @property
    def records(self) -> dict[str, list[bytes]]:
        """Afterwards: by topic the records, as JSON."""

    @property
    def kept_bytes(self) -> int:
        """What is kept for the answer."""

    def answer(self, refused: dict[str, ApiError], took_ms: int) -> Answer:
        """When all topics are done: ``refused`` are those that have stored nothing."""

    @staticmethod
    def refusal(error: ApiError, content_type: str) -> ApiError:
        """A refusal of the whole request, as clients of the format understand it."""


class Piece(Request, kw_only=True, eq=False):
    """The part of a foreign request that is for one topic."""

    settled: Callable[[ApiError | None], None]

    def respond_ok_json(self, body: bytes) -> None:
        """It is stored."""
        self._settle(None)

    def refuse(self, error: ApiError, *, close: bool = False) -> None:
        """Nothing of it is stored, or for 504 that is not known."""
        rights = self.head.rights
        if rights.tally is not None:
            rights.tally.refused += 1
        if error.status in (401, 403):
            self.connection.no_right(self, error)
        self._settle(rights.shown(error))

    def _settle(self, error: ApiError | None) -> None:
        if not self.answered:  # it may have been given up before its outcome was known
            self.answered = True
            self.settled(error)


class ForeignRequests:
    """The foreign requests of one shard."""

    def __init__(self, producer: Producer, budget: RequestBudget) -> None:
        self._producer = producer
        self._budget = budget
        self._tasks = Tasks()
        self._turn = asyncio.Lock()

    def take(self, request: Request, translation: Translation, promised: int) -> None:
        """Takes a request with its whole body, for which ``promised`` bytes of the ring are free;
        it gets a second promise, since the caller releases its own."""
        promise = self._budget.promise(request.head.target_bytes, 0)
        self._producer.admission.promise_again(promised)
        request.connection.await_translation()
        self._tasks.start(self._serve(request, translation, promised, promise))

    async def _serve(
        self, request: Request, translation: Translation, promised: int, promise: Promise
    ) -> None:
        try:
            async with self._turn:
                await self._translate(request, translation)
                self._publish(request, translation, promised)
        except ApiError as error:
            request.refuse(translation.refusal(error, request.head.content_type))
        except Exception as error:  # the requests after it must not wait forever
            log.error("a foreign request failed because of a bug", exc_info=error)
            request.refuse(ApiError(500, "internal", "this is a bug in headgate; see its log",
                                    close=True))  # fmt: skip
        finally:
            self._producer.admission.release(promised)
            self._budget.release(promise)
            request.connection.translated()

    async def _translate(self, request: Request, translation: Translation) -> None:
        limits = self._producer.limits
        until_ns = monotonic_ns() + SLICE_NS
        body = decompress(request.body, request.head.content_encoding, limits.body_bytes_max)
        for _ in translation.steps(body, limits):
            if len(translation.records) > TOPICS_MAX:
                raise too_large(
                    f"the request has records for more than {TOPICS_MAX} topics; send smaller"
                    " batches",
                    limit_topics=TOPICS_MAX,
                )
            if monotonic_ns() > until_ns:
                await asyncio.sleep(0)
                until_ns = monotonic_ns() + SLICE_NS

    def _publish(self, request: Request, translation: Translation, promised: int) -> None:
        """Hands the pieces over. Raises ApiError if nothing can be taken any more."""
        bodies = {
            topic: b'{"records":[%b]}' % b",".join(records)
            for topic, records in translation.records.items()
        }
        translation.records.clear()
        request.body = b""
        admission = self._producer.admission
        more = max(0, sum(FRAME_BYTES + len(body) for body in bodies.values()) - promised)
        head = request.head
        head.rights.check_live()
        if admission.is_closed or (more and not admission.promise(more)):
            raise admission.refusal(more)
        try:
            kept = self._budget.promise_kept(translation.kept_bytes)
            request.forget_head()
            refused: dict[str, ApiError] = {}
            left = set(bodies)

            def settle(topic: str, error: ApiError | None) -> None:
                if error is not None:
                    refused[topic] = error
                left.discard(topic)
                if not left:
                    self._answer(request, translation, refused, kept)

            if not bodies:
                self._answer(request, translation, refused, kept)
            for topic, body in bodies.items():
                self._produce(request, head, topic, body, settle)
        finally:
            admission.release(more)

    def _produce(
        self, request: Request, head: Head, topic: str, body: bytes,
        settle: Callable[[str, ApiError | None], None],
    ) -> None:  # fmt: skip
        now_ns = monotonic_ns()
        piece = Piece(
            _head_of_piece(head, topic), body, now_ns, request.connection,
            waited_ns=request.waited_ns + now_ns - request.arrival_ns,
            settled=lambda error: settle(topic, error),
        )  # fmt: skip
        try:
            check_topic_name(topic)
            head.rights.check_topics(topic)
            self._producer.produce(piece, topic, FRAME_BYTES + len(body))
        except ApiError as error:
            piece.refuse(error)
        except Exception as error:  # others are stored, and the answer says so
            log.error("a part of a foreign request failed because of a bug", exc_info=error)
            piece.refuse(ApiError(500, "internal", "this is a bug in headgate; see its log"))

    def _answer(
        self, request: Request, translation: Translation, refused: dict[str, ApiError],
        kept: Promise,
    ) -> None:  # fmt: skip
        self._budget.release(kept)
        took_ms = (monotonic_ns() - request.arrival_ns) // 1_000_000
        status, body, content_type, headers, close = translation.answer(refused, took_ms)
        request.respond(status, body, content_type=content_type, headers=headers, close=close)


def _head_of_piece(head: Head, topic: str) -> Head:
    """Who asks is who sent the request. Of its path, the topic is told too."""
    made = Head(
        head.method, f"{head.path} ({topic})", (), {}, {}, http_1_1=True, content_length=None,
        chunked=False, keep_alive=True, expect_continue=False, content_type=PIECE_TYPE,
        content_encoding="",
    )  # fmt: skip
    made.rights, made.forwarded, made.bare = head.rights, head.forwarded, head.bare
    return made
