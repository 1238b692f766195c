"""The messages of a window, as they wait and as they are sent: queues of keys, loose ones, batches.

A *member* is a consumer that is present. It has the queues that wait for it, and its batches.

A *queue* has the messages of one key that are not finished, in order. It exists while its key has
such messages. Its first message, the *head*, is the only one that may be with a consumer: all
others wait for it. A key may occur in several partitions; then the queue has a part for each, and
one of them is current until it is empty. When its topic grows, a key may leave a partition and come
back later: what comes then has a part of its own. STATES has its states and what changes them.

*Loose* messages wait in the order of their offsets, look-ahead by look-ahead. Look-aheads take
turns: each ``pick`` begins with another one, so that a backlog in one partition does not keep the
others waiting.

A *batch* is what a member was given::

    take -> reading -> sent -> closed: each message was acknowledged, refused, or given back
                   -> given back, or its member left

It has its timeout from ``sent`` on only: reading its messages may take long, and that is not the
consumer's failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from delivery.subscriptions.window.look_ahead import LookAhead
from shards.boards.figures import SubscriptionCounts

Place = tuple[int, int]
"""A message: its partition and its offset."""

REFUSALS_MAX = 100  # named in one outcome
KEY_QUEUE_BYTES = 248  # as measured, with its place among the keys, without its key


def text_bytes(text: str | None) -> int:
    """What a text takes at most, the same each time: one that is not of ASCII grows by its UTF-8
    when it is encoded."""
    if text is None:
        return 0
    return 49 + len(text) if text.isascii() else 80 + 8 * len(text)


class QueueState(Enum):
    """What the head of a queue waits for."""

    READY = "ready"  # a consumer may take it
    SENT = "sent"
    RESTING = "resting"  # until a time
    STUCK = "stuck"  # until an operator acts, or its dead letter is stored
    UNMATCHED = "held"  # as clients know it; no consumer accepts the key


class QueueEvent(Enum):
    """What changes the state of a queue. It may end in any: once its messages are finished."""

    FREED = auto()  # a head, the same or the next one, may be sent, and looks for its owner
    UNOWNED = auto()  # no consumer accepts the key
    TAKEN = auto()
    FAILED = auto()
    GIVEN_UP = auto()  # it has failed too often


STATES = {
    (QueueState.READY, QueueEvent.TAKEN): QueueState.SENT,
    (QueueState.READY, QueueEvent.UNOWNED): QueueState.UNMATCHED,
    (QueueState.READY, QueueEvent.FREED): QueueState.READY,
    (QueueState.SENT, QueueEvent.FREED): QueueState.READY,
    (QueueState.SENT, QueueEvent.FAILED): QueueState.RESTING,
    (QueueState.SENT, QueueEvent.GIVEN_UP): QueueState.STUCK,
    (QueueState.RESTING, QueueEvent.FREED): QueueState.READY,
    (QueueState.STUCK, QueueEvent.FREED): QueueState.READY,
    (QueueState.UNMATCHED, QueueEvent.FREED): QueueState.READY,
}
# As STATES says, for loops over many queues.
SENT = STATES[QueueState.READY, QueueEvent.TAKEN]
READY = STATES[QueueState.SENT, QueueEvent.FREED]


class QueuePart(NamedTuple):
    """Messages of a key in one partition, that came between two growths of the topic."""

    look_ahead: LookAhead
    head: int
    tail: int
    growths: int


class KeyQueue:
    """One key's messages."""

    __slots__ = (
        "key", "state", "look_ahead", "head", "tail", "growths", "others", "owner", "version",
        "attempts", "waiting",
    )  # fmt: skip

    def __init__(self, key: str, look_ahead: LookAhead, offset: int, growths: int = 0) -> None:
        self.key = key
        self.state = QueueState.READY
        self.look_ahead = look_ahead
        self.head = self.tail = offset
        self.growths = growths  # of the topic, when the current part began
        self.others: list[QueuePart] | None = None  # that come after it
        self.owner: Member | None = None
        self.version = -1  # of the members, when the owner was found
        self.attempts = 0  # failed deliveries of the head
        self.waiting = 1  # messages, with the head

    @property
    def bytes(self) -> int:
        """What it takes. A key of 1,024 characters may take 8 KB."""
        return KEY_QUEUE_BYTES + text_bytes(self.key)

    def change(self, event: QueueEvent) -> None:
        """Something has become of the head. Raises KeyError if nothing of the kind can."""
        self.state = STATES[self.state, event]

    def append(self, look_ahead: LookAhead, offset: int, growths: int) -> None:
        """A further message of the key, where there are several parts, or will be: the last of the
        part of its partition that began after as many ``growths``, otherwise of a new one."""
        self.waiting += 1
        if self.look_ahead is look_ahead and self.growths == growths:
            look_ahead.link(self.tail, offset)
            self.tail = offset
            return
        parts = self.others = self.others or []
        for index, part in enumerate(parts):
            if part.look_ahead is look_ahead and part.growths == growths:
                look_ahead.link(part.tail, offset)
                parts[index] = part._replace(tail=offset)
                return
        parts.append(QueuePart(look_ahead, offset, offset, growths))

    def advance(self, following: int) -> bool:
        """The head is finished, ``following`` is the one after it in its partition; returns whether
        there is another one."""
        return self.skip(1, following)

    def skip(self, count: int, following: int) -> bool:
        """As ``advance``, of the first ``count`` messages."""
        if not count:
            return True
        self.attempts = 0
        self.waiting -= count
        if following:
            self.head = following
            return True
        if self.others:
            self.look_ahead, self.head, self.tail, self.growths = self.others.pop(0)
            return True
        return False


class Member:
    """One consumer."""

    __slots__ = ("name", "patterns", "in_flight", "ready", "batches", "heard_ns")

    def __init__(self, name: str, patterns: Sequence[str]) -> None:
        self.name = name
        self.patterns = tuple(patterns)
        self.in_flight = 0
        self.ready: deque[KeyQueue] = deque()
        self.batches: set[int] = set()  # epochs
        self.heard_ns = -1  # when it last answered for a batch


class SentMessage(NamedTuple):
    """A message in a batch; ``attempts`` deliveries of it failed before. ``queue`` is None for one
    that has no order."""

    look_ahead: LookAhead
    offset: int
    queue: KeyQueue | None
    attempts: int

    @property
    def place(self) -> Place:
        """Partition and offset."""
        return self.look_ahead.partition, self.offset


new_message = tuple.__new__  # a third of the time that SentMessage() takes


def _no_limit(look_ahead: LookAhead) -> int | None:
    return None


class LooseMessages:
    """The loose messages of all look-aheads; ``count`` of them are with nobody, ``taken`` are
    sent or blocked."""

    def __init__(self) -> None:
        self.count = 0
        self.taken = 0
        self.attempts: dict[tuple[LookAhead, int], int] = {}  # of those whose delivery failed
        self._look_aheads: dict[LookAhead, None] = {}
        self._to_share = 0  # what waited when something came last

    def add(self, look_ahead: LookAhead, count: int) -> None:
        """Admits the next offsets of a look-ahead."""
        look_ahead.add_loose(count)
        self.count += count
        self._to_share = self.count
        self._look_aheads[look_ahead] = None

    def part_of(self, members: int) -> int:
        """What one of several members gets of what waits. Parts of what came are equal: parts of
        what is left would get smaller and smaller."""
        return -(-self._to_share // members)

    def pick(
        self, left: int, before: Callable[[LookAhead], int | None] = _no_limit
    ) -> list[SentMessage | None]:
        """Takes up to ``left`` messages, of each look-ahead those below ``before``."""
        messages: list[SentMessage | None] = []
        attempts = self.attempts
        for look_ahead in list(self._look_aheads):
            if len(messages) == left:
                break
            limit = before(look_ahead)
            for offset in look_ahead.take_loose(left - len(messages), limit):
                failed = attempts.get((look_ahead, offset), 0) if attempts else 0
                messages.append(new_message(SentMessage, (look_ahead, offset, None, failed)))
            del self._look_aheads[look_ahead]
            if look_ahead.next_loose():
                self._look_aheads[look_ahead] = None  # the others come first now
        self.count -= len(messages)
        self.taken += len(messages)
        return messages

    def again(self, look_ahead: LookAhead, offset: int) -> None:
        """A message that was taken waits again."""
        look_ahead.give_back(offset)
        self.count += 1
        self.taken -= 1
        self._to_share = self.count
        self._look_aheads[look_ahead] = None

    def finished(self, look_ahead: LookAhead, offset: int) -> None:
        """A message that was taken has been finished."""
        if self.attempts:
            self.attempts.pop((look_ahead, offset), None)
        self.taken -= 1

    def evict(self, look_ahead: LookAhead) -> int:
        """Finishes what waits below ``gone_before``; returns how many."""
        count = look_ahead.finish_loose()
        self.count -= count
        for failed in [*self.attempts]:
            if failed[0] is look_ahead and look_ahead.is_done(failed[1]):
                del self.attempts[failed]
        return count

    def check_invariants(self, look_aheads: list[LookAhead]) -> None:
        """Raises AssertionError unless count and look-aheads are right."""
        assert self.count == sum(look_ahead.loose_count() for look_ahead in look_aheads)
        assert all(
            look_ahead in self._look_aheads
            for look_ahead in look_aheads
            if look_ahead.loose_count()
        )
        assert not any(look_ahead.is_done(offset) for look_ahead, offset in self.attempts)


class Batch:
    """What a member was given. A message that is dealt with is None."""

    __slots__ = ("epoch", "member", "sent_ns", "messages", "open", "_places")

    def __init__(self, epoch: int, member: Member, messages: list[SentMessage | None]) -> None:
        self.epoch = epoch
        self.member = member
        self.sent_ns: int | None = None
        self.messages = messages
        self.open = len(messages)
        self._places: dict[Place, int] | None = None

    def index(self, place: Place) -> int | None:
        """Where a message is in the batch; None if it is not, or not any more."""
        if self._places is None:  # whoever acknowledges whole batches needs no index
            self._places = {
                (message[0].partition, message[1]): index
                for index, message in enumerate(self.messages)
                if message is not None
            }
        found = self._places.get(place)
        return None if found is None or self.messages[found] is None else found

    def indexes(
        self, named: Iterable[Place] | None, but: Iterable[Place] = ()
    ) -> tuple[Sequence[int], list[Place]]:
        """Where messages are, and those that are not in it; None: all that are, but ``but``."""
        if named is None and not but and self.open == len(self.messages):
            return range(self.open), []
        if named is None:
            left_out = {self.index(each) for each in but}
            return [
                index for index, message in enumerate(self.messages)
                if message is not None and index not in left_out
            ], []  # fmt: skip
        found: dict[int, None] = {}
        unknown = []
        for each in named:
            index = self.index(each)
            if index is None or index in found:
                unknown.append(each)
            else:
                found[index] = None
        return list(found), unknown


class RefusedPlace(NamedTuple):
    """A message that an acknowledgment names in vain; ``place`` is None for a whole batch.

    ``finished``: nothing is left to do, as when an acknowledgment is repeated. ``epoch``: it was
    not sent to this consumer in this batch, or was given to another one since.
    """

    place: Place | None
    reason: str


class Outcome(NamedTuple):
    """What came of an acknowledgment. ``refusals`` names the first REFUSALS_MAX of ``refused``."""

    accepted: int
    refused: int = 0
    refusals: tuple[RefusedPlace, ...] = ()


class WindowCounts:
    """What was counted of a subscription, from window to window and from owner to owner. Names are
    fields of SubscriptionCounts.

    ``redelivered``: sent messages that came back to be sent again. ``refused``: named in vain by
    an acknowledgment, because they are finished or not with this consumer. ``dropped``: finished by
    the policy of failures, or, of a subscription that is not reliable, because their consumer was
    full or gone. ``skipped``: finished by an operator. ``unmatched``: finished because no consumer
    accepts them. ``evicted``: finished because retention removed them. ``filtered``: records that
    the filter of the subscription left out.
    """

    __slots__ = (
        "delivered", "acknowledged", "redelivered", "refused", "dropped", "skipped",
        "dead_lettered", "evicted", "unmatched", "filtered",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delivered = self.acknowledged = self.redelivered = self.refused = 0
        self.dropped = self.skipped = self.dead_lettered = 0
        self.evicted = self.unmatched = self.filtered = 0

    def count_on(self, counted: SubscriptionCounts) -> None:
        """Goes on from what a former owner counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(counted, name))

    def counted(self) -> dict[str, int]:
        """All of them, by name."""
        return {name: getattr(self, name) for name in self.__slots__}
