"""A consumer: which messages it has, how many it asks for, and what it tells of them.

It polls. A poll whose answer was lost is answered with the same messages, and so is the first one
after a restart of the daemon; what is being worked on is recognized by its place, time and attempt,
and its acknowledgment then names the newest batch. What was acknowledged in the last second before
a kill of the whole daemon may come again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headgate.calls import Json, OnGap, document, warn_of
from headgate.errors import HeadgateError, Refused
from headgate.records import Record, fields_of, gap_of
from headgate.steps import Look, Op

POLL_S = 5.0  # a stop is noticed within it
POLL_MESSAGES = 256
SHORT_S, LONG_S = 1.0, 4.0  # what an iterator works on between two polls
REASON_CHARACTERS = 255
# The most messages that are known to be worked on; without `reliable` none is ever acknowledged.
IN_HAND_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Record):
    """A record as it was sent to a consumer, for the ``attempt``-th time."""

    attempt: int
    epoch: int = field(compare=False)

    @property
    def place(self) -> tuple[int, int]:
        """What identifies it for good: partition and offset."""
        return self.partition, self.seq


D = TypeVar("D", bound=Delivery)


class Consuming(Generic[D]):
    """One consumer of a subscription, by its name."""

    def __init__(
        self, topic: str, subscription: str, make: Callable[..., D], *, name: str,
        filters: Sequence[str] = (), create: bool | Mapping[str, object] = False,
        on_gap: OnGap = warn_of,
    ) -> None:  # fmt: skip
        if not name:
            raise ValueError("a consumer needs a name that no other one of its subscription has")
        self._topic = topic
        self._make = make
        self._path = ("topics", topic, "subscriptions", subscription)
        self.name = name
        self._filters = [each.replace(",", "\\,") for each in filters] or None
        self._create = create
        self._on_gap = on_gap
        self._in_hand: dict[tuple[int, int], tuple[int, int]] = {}  # attempt and time
        self._epochs: dict[tuple[int, int], int] = {}  # the newest of what is in hand
        self._wanted = 1
        self._polled_s = -math.inf

    def begin(self) -> Op[None]:
        """Creates the subscription if asked to, and gives back what a former consumer of this name
        had."""
        if self._create is not False:
            settings = {} if self._create is True else self._create
            yield from document("PUT", self._path, settings)
        yield from self._told("leave", {})

    def end(self) -> Op[None]:
        """Gives back what is not acknowledged; a daemon that does not answer finds out itself."""
        try:
            yield from self._told("leave", {}, patience_s=0.0)
        except HeadgateError:
            pass

    def next_batch(self) -> Op[list[D]]:
        """Messages for an iterator: about as many as it works on in seconds, since others could
        work on those that wait here."""
        worked_s = (yield Look()).now_s - self._polled_s
        if worked_s < SHORT_S:
            self._wanted = min(2 * self._wanted, POLL_MESSAGES)
        elif worked_s > LONG_S:
            self._wanted = max(1, self._wanted // 2)
        found = yield from self.poll(self._wanted)
        self._polled_s = (yield Look()).now_s
        return found

    def poll(self, count: int) -> Op[list[D]]:
        """At most ``count`` messages that are not being worked on; none after POLL_S."""
        query = {
            "consumer": self.name, "filter": self._filters, "max": min(count, POLL_MESSAGES),
            "wait_ms": int(POLL_S * 1000),
        }  # fmt: skip
        answer = yield from document(
            "GET", (*self._path, "consume"), None, query, patience_s=math.inf, silent_s=POLL_S
        )
        for gap in answer["gaps"]:
            self._on_gap(gap_of(gap, self._topic))
        said = (each | {"epoch": answer["epoch"]} for each in answer["messages"])
        return [found for each in said if (found := self._taken(each)) is not None]

    def _taken(self, said: Json) -> D | None:
        """A message; None for one that is being worked on."""
        fields = fields_of(said, self._topic, 0)
        found = self._make(**fields, attempt=said["attempt"], epoch=said["epoch"])
        known = found.attempt, found.ts
        former = self._in_hand.pop(found.place, None)
        self._in_hand[found.place] = known
        self._epochs[found.place] = found.epoch
        if len(self._in_hand) > IN_HAND_MAX:
            oldest = next(iter(self._in_hand))
            del self._in_hand[oldest], self._epochs[oldest]
        return None if former == known else found

    def is_in_hand(self, message: Delivery) -> bool:
        """Whether nothing was told of a message yet."""
        return message.place in self._in_hand

    def ack(self, messages: Sequence[Delivery]) -> Op[bool]:
        """The messages are dealt with. False: some were taken back before, and may come again."""
        return self._settled("ack", messages, {})

    def nack(self, messages: Sequence[Delivery], delay_s: float, reason: str) -> Op[bool]:
        """The messages could not be dealt with: they are sent again."""
        more = {"delay_ms": int(delay_s * 1000), "reason": reason[:REASON_CHARACTERS]}
        return self._settled("nack", messages, more)

    def _settled(self, verb: str, messages: Sequence[Delivery], more: Json) -> Op[bool]:
        if not messages:
            return True
        refusals: list[Json] = []
        named: list[Json] = []
        # A batch may come again while this is told of it: its new number is told then.
        while named != (named := [self._named(each) for each in messages]):
            try:
                answer = yield from self._told(verb, {"messages": named, **more})
                refusals = answer["refused_messages"]
            except Refused as error:
                if error.code != "stale_epoch":
                    raise
                refusals = error.detail.get("refused_messages", [{}])
            if not refusals:
                break
        for each in messages:
            self._in_hand.pop(each.place, None)
            self._epochs.pop(each.place, None)
        return all(verb == "ack" and each.get("reason") == "finished" for each in refusals)

    def _named(self, message: Delivery) -> Json:
        epoch = self._epochs.get(message.place, message.epoch)
        return {"partition": message.partition, "seq": message.seq, "epoch": epoch}

    def _told(self, verb: str, more: Json, patience_s: float | None = None) -> Op[Json]:
        said = {"consumer": self.name, **more}
        return document("POST", (*self._path, verb), said, patience_s=patience_s)


def reason_of(error: BaseException) -> str:
    """Why a handler could not deal with a message, for people who look at blocked keys."""
    return f"{type(error).__name__}: {error}"
