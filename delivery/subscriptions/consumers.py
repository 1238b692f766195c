"""The consumers of one subscription: who comes, comes back, and goes; and what is written to them.

A *session* is a consumer that is present; the window knows it as a member. It has a stream, or it
polls::

    open (a stream) -> lost (the stream is gone) -> open again, by its name -> ... -> left
                                                 -> 3 s later: left
    poll -> answered -> poll ... -> answered, and quiet for the acknowledgment timeout: left

A consumer that comes by the name of one that is present takes its place: what the former one had is
sent again, to it. So is what a poll was answered with, if the answer may be lost and the consumer
has not said anything about it before it polls again.

Streams get what there is as soon as their outlet has drained; a poll gets one batch. What a session
is sent is decided by the window; here is known only whether it can be sent something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from delivery.pipes.server import Asker
from delivery.streams.formats import FORMATS, Format
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from delivery.subscriptions.budget import MembersBudget
from delivery.subscriptions.handing import (
    Gaps,
    PushedBatch,
    PushedMessage,
    SenderOpened,
    Sent,
    encoded,
    hand,
    polled,
)
from delivery.subscriptions.requests import Consume, OwnerRefused, Poll
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.members import PATTERNS_SIZE_MAX, TooManyPatterns
from delivery.subscriptions.window.messages import Batch
from ledger.delivery.subscriptions import CONSUMERS_MAX, SubscriptionView

log = logging.getLogger("headgate.subscriptions")

HEARTBEAT_NS = 15_000_000_000  # of a stream that is silent
LOST_NS = 3_000_000_000  # a stream that is gone may come back within this time
BATCH_MESSAGES = 256


class Session:
    """A consumer that is present. ``parked`` is a batch whose records must be loaded first; it was
    taken and not sent. ``ends_ns`` is when the consumer is taken for gone, 0: not by time.
    ``is_sender``: it is one of the daemon's own, which sends on what it gets. ``answered`` is the
    batch that answered ``asker``, with the number of its messages; epoch 0: none. ``asked_most`` is
    the most that a poll of it has asked for."""

    __slots__ = (
        "answered", "asked_most", "asker", "ends_ns", "filters", "format", "is_sender", "name",
        "outlet", "parked", "poll", "poll_ends_ns", "poll_max", "written_ns",
    )  # fmt: skip

    def __init__(self, name: str, filters: tuple[str, ...]) -> None:
        self.name = name
        self.filters = filters
        self.is_sender = False  # it has a stream without a format
        self.outlet: Outlet | None = None
        self.format: Format | None = None
        self.parked: Batch | None = None
        self.ends_ns = 0
        self.poll: asyncio.Future[bytes] | None = None
        self.asker: Asker | None = None
        self.answered = (0, 0)
        self.poll_max = 0
        self.asked_most = 0
        self.poll_ends_ns = 0
        self.written_ns = 0

    @property
    def kind(self) -> str:
        """How the consumer gets messages."""
        return "stream" if self.is_sender or self.format is not None else "poll"

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection now."""
        return (self.outlet is not None and not self.outlet.closed) or self.poll is not None

    def room(self) -> int:
        """How many messages it can be sent now."""
        if self.outlet is not None:
            return BATCH_MESSAGES if self.outlet.writable else 0
        if self.poll is not None and not self.poll.done():
            return self.poll_max
        return 0

    def answer(self, body: bytes) -> None:
        """Answers the poll, if one waits."""
        if self.poll is not None and not self.poll.done():
            self.poll.set_result(body)
        self.poll = None

    def end_stream(self, data: bytes = b"") -> None:
        """Ends the stream, if there is one, after ``data``."""
        outlet, self.outlet = self.outlet, None
        if outlet is not None and not outlet.closed:
            outlet.drained = outlet.closed_by_peer = None
            outlet.end(chunk(data) if data else b"")

    def beat(self, now_ns: int) -> None:
        """Shows that a stream without messages is alive."""
        if self.outlet is not None and self.format is not None and self.outlet.writable:
            self.written_ns = now_ns
            self.outlet.write(chunk(self.format.heartbeat()))


class Consumers:
    """The sessions of one subscription; each is a member of its window."""

    def __init__(
        self,
        view: SubscriptionView,
        window: SubscriptionWindow,
        budget: MembersBudget,
        now_ns: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.view = view
        self.by_name: dict[str, Session] = {}
        self._window = window
        self.gaps = Gaps(view.topic)
        self._budget = budget
        self._now_ns = now_ns
        self.wake = wake  # called when a consumer can be sent more
        # Those that may have room, whose turn is next first; who has none is taken out when it is
        # looked at, so that consumers without anything to do cost nothing.
        self._with_room: dict[Session, None] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def in_turn(self) -> list[Session]:
        """The sessions that may have room; another one is first each time."""
        with_room = self._with_room
        found = list(with_room)
        if found:
            del with_room[found[0]]
            with_room[found[0]] = None
        return found

    def room(self, session: Session) -> int:
        """How many messages a session can be sent now."""
        room = session.room()
        if not room:
            self._with_room.pop(session, None)
        return room

    def _has_room(self, session: Session) -> None:
        if session.name in self.by_name:
            self._with_room[session] = None
            self.wake()

    def most_at_a_time(self, limit: int) -> int:
        """How many messages a consumer works on simultaneously, as far as it shows: one that polls
        asks for as many; all others may have up to ``limit``."""
        asked = (s.asked_most if s.kind == "poll" else limit for s in self.by_name.values())
        return min(limit, max(asked, default=limit))

    def check(self, asked: Consume | Poll) -> None:
        """Raises OwnerRefused if a consumer cannot come."""
        name = self.view.subscription.name
        self._check_kind(is_sender=isinstance(asked, Consume) and asked.is_sender)
        self._check_filters(asked.filters)
        if asked.consumer not in self.by_name and len(self.by_name) >= CONSUMERS_MAX:
            raise OwnerRefused(
                429, "too_many_consumers",
                f"subscription {name!r} has {len(self.by_name)} consumers, the limit is"
                f" {CONSUMERS_MAX}; use fewer, each with more messages",
                {"limit": CONSUMERS_MAX},
            )  # fmt: skip
        try:
            self._window.members.check(asked.consumer, asked.filters)
        except TooManyPatterns as refused:
            detail = {"limit": PATTERNS_SIZE_MAX}
            raise OwnerRefused(429, "too_many_filters", str(refused), detail) from refused
        more_bytes = self._window.members.more_bytes(asked.consumer, asked.filters)
        if more_bytes > 0 and not self._budget.allows(more_bytes):
            raise OwnerRefused(
                429, "too_many_consumers",
                f"the consumers of all subscriptions of this shard and their filters take"
                f" {self._budget.taken} bytes, this one would take {more_bytes} more, and the limit"
                f" is {self._budget.bytes_max}; use fewer consumers, or fewer or shorter filters",
                {"limit": self._budget.bytes_max},
            )  # fmt: skip

    def _check_kind(self, *, is_sender: bool) -> None:
        subscription = self.view.subscription
        is_pushed = subscription.config.push is not None
        if is_pushed and not is_sender:
            raise OwnerRefused(
                409, "push_subscription",
                f"subscription {subscription.name!r} is pushed to its endpoint by the daemon, so"
                " nobody else gets its messages; set push to null, or create another subscription",
                {"field": "push"},
            )  # fmt: skip
        if is_sender and not is_pushed:
            raise OwnerRefused(
                409, "not_pushed", f"subscription {subscription.name!r} is not pushed any more", {}
            )

    def _check_filters(self, filters: Sequence[str]) -> None:
        name, config = self.view.subscription.name, self.view.subscription.config
        if filters and not config.mode_facts.is_keyed:
            raise OwnerRefused(
                400, "invalid",
                f"filters choose keys, and subscription {name!r} does not share them: its mode is"
                f" {config.mode}; leave filter out, or use the mode key_shared",
                {"field": "filter", "mode": config.mode},
            )  # fmt: skip

    def open(self, asked: Consume, outlet: Outlet) -> None:
        """A consumer's stream. Raises OwnerRefused."""
        session = self._session(asked)
        format_ = next((each for each in FORMATS if each.content_type == asked.content_type), None)
        self._end_stream(session, "replaced", f"another consumer {asked.consumer!r} has come")
        self._end_poll(session)
        session.outlet, session.format, session.ends_ns = outlet, format_, 0
        session.is_sender = asked.is_sender
        session.written_ns = self._now_ns()
        outlet.closed_by_peer = partial(self._lost, session, outlet)
        outlet.drained = partial(self._has_room, session)
        opening = b"" if format_ is None else format_.opening()
        if opening:
            outlet.write(chunk(opening))
        self._tell_opened(session)
        self._has_room(session)

    def poll(self, asked: Poll, asker: Asker) -> asyncio.Future[bytes]:
        """The answer to a poll, which a turn gives, or ``tick`` when it has waited for too long.
        Raises OwnerRefused."""
        session = self.by_name.get(asked.consumer)
        if session is None or session.kind == "stream" or session.filters != tuple(asked.filters):
            session = self._session(asked)
            session.end_stream()
            session.format = None
        self._end_poll(session)
        self._take_back_lost(session)
        session.asker = asker
        session.poll = asyncio.get_running_loop().create_future()
        session.poll_max = min(asked.max, BATCH_MESSAGES)
        session.asked_most = max(session.asked_most, asked.max)
        session.poll_ends_ns = self._now_ns() + asked.wait_ms * 1_000_000
        self._has_room(session)
        return session.poll

    def _take_back_lost(self, session: Session) -> None:
        """Takes back what the last poll was answered with, if its asker is gone and nothing was
        said about any of it. Waiting for the time-out would send what follows first."""
        epoch, count = session.answered
        session.answered = 0, 0
        batch = self._window.batches.get(epoch)
        is_lost = session.asker is not None and session.asker.is_gone
        if is_lost and batch is not None and batch.open == count:
            self._window.give_back(epoch)

    def write(self, session: Session, batch: Batch, sent: Sequence[Sent]) -> None:
        """Gives a session these messages of its batch."""
        session.written_ns = self._now_ns()
        if session.is_sender and session.outlet is not None:
            self.gaps.untold.clear()  # nobody reads them there; they are in the state
            is_resent = self._window.resent.is_open
            told = [
                PushedMessage(part, batch.epoch, attempt, *item, is_resent((part, item[0])))
                for part, attempt, item in sent
            ]
            hand(session.outlet, PushedBatch(told))
        elif session.outlet is not None and session.format is not None:
            gaps = self.gaps.told(session.format)
            session.outlet.write(chunk(gaps + encoded(session.format, batch.epoch, sent)))
        elif session.poll is not None:
            self._answer(session, polled(batch.epoch, sent, self.gaps.take()))
            session.answered = batch.epoch, batch.open

    def _answer(self, session: Session, body: bytes) -> None:
        """Answers a poll. However long it has waited, its consumer has the whole timeout now."""
        session.answer(body)
        session.ends_ns = self._now_ns() + self._presence_ns

    def heard(self, name: str) -> None:
        """A consumer has asked something."""
        session = self.by_name.get(name)
        if session is not None and session.kind == "poll":
            session.ends_ns = self._now_ns() + self._presence_ns

    def leave(self, name: str) -> int:
        """A consumer goes: what it has goes to others. Returns how many messages it had."""
        if name not in self.by_name:
            return 0
        had = self._window.members.by_name[name].in_flight
        self._window.leave(name)
        self._forget(name)
        return had

    def gone(self, name: str) -> None:
        """The window takes a consumer for gone: it acknowledged nothing until a batch timed out."""
        timeout_ms = self.view.subscription.config.ack_timeout_ms
        log.info("consumer %s of subscription %s of topic %s acknowledged nothing in %d ms and is"
                 " taken for gone", name, self.view.subscription.name, self.view.topic.name,
                 timeout_ms)  # fmt: skip
        why = f"nothing was acknowledged in {timeout_ms} ms (ack_timeout_ms); connect again"
        self._forget(name, "evicted", why)

    def end(self, code: str, message: str, *, but_senders: bool = False) -> None:
        """All consumers go: the subscription is over, or its owner. Senders may stay: they end by
        themselves when the daemon does, after what they have under way."""
        for name, session in list(self.by_name.items()):
            if not (but_senders and session.is_sender):
                self._window.leave(name)
                self._forget(name, code, message)

    def follow(self, view: SubscriptionView) -> None:
        """Takes settings that may have changed."""
        self.view = view
        is_pushed = view.subscription.config.push is not None
        for name, session in list(self.by_name.items()):
            if session.is_sender != is_pushed:
                self._window.leave(name)
                self._forget(name, "replaced", "who delivers this subscription has changed")

    def move_to(self, window: SubscriptionWindow, view: SubscriptionView) -> None:
        """Another window takes the place of the one before; what consumers have is not theirs any
        more. Those with filters go if the mode has none."""
        self._window, self.view = window, view
        for session in tuple(self.by_name.values()):
            session.parked = None
            try:
                self._check_filters(session.filters)
            except OwnerRefused as refused:
                self._forget(session.name, refused.code, refused.message)
            else:
                window.join(session.name, session.filters)
                self._tell_opened(session)
        self._note()

    def tick(self, now_ns: int, *, may_end_polls: bool) -> bool:
        """What time brings; returns whether a consumer has left."""
        left = False
        for session in tuple(self.by_name.values()):
            if session.poll is not None:
                is_over = now_ns >= session.poll_ends_ns and may_end_polls
                if is_over or session.poll.done():  # done: its client has gone
                    self._end_poll(session)
            elif session.ends_ns and now_ns >= session.ends_ns:
                self.leave(session.name)
                left = True
            elif now_ns >= session.written_ns + HEARTBEAT_NS:
                session.beat(now_ns)
        return left

    def _session(self, asked: Consume | Poll) -> Session:
        """The session of a consumer that comes, or comes back."""
        self.check(asked)
        filters = tuple(asked.filters)
        session = self.by_name.get(asked.consumer)
        if session is None:
            session = self.by_name[asked.consumer] = Session(asked.consumer, filters)
            self._window.join(session.name, filters)
            self._note()
            return session
        session.parked = None
        if session.filters == filters:
            self._window.returned(session.name)
        else:
            session.filters = filters
            self._window.leave(session.name)
            self._window.join(session.name, filters)
            self._note()
        return session

    def _note(self) -> None:
        taken = self._window.members.memory_bytes
        self._budget.note(self.view.subscription.subscription_id, taken)

    def _tell_opened(self, session: Session) -> None:
        """Tells a sender that nothing it has got before is its own any more."""
        if session.is_sender and session.outlet is not None:
            hand(session.outlet, SenderOpened(self.view.subscription.generation))

    @property
    def _presence_ns(self) -> int:
        return self.view.subscription.config.ack_timeout_ms * 1_000_000

    def _lost(self, session: Session, outlet: Outlet) -> None:
        if session.outlet is outlet:
            session.outlet = None
            session.ends_ns = self._now_ns() + LOST_NS

    def _forget(self, name: str, code: str = "", message: str = "") -> None:
        session = self.by_name.pop(name)
        self._with_room.pop(session, None)
        self._note()
        self._end_poll(session)
        self._end_stream(session, code, message)

    def _end_stream(self, session: Session, code: str, message: str) -> None:
        told = session.format.error(code, message, {}) if session.format and code else b""
        session.end_stream(told)

    def _end_poll(self, session: Session) -> None:
        if session.poll is not None:
            self._answer(session, polled(None, (), self.gaps.take()))
