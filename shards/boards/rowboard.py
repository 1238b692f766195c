"""How far each subscription, router and group of Kafka is, in shared memory, so that any shard can
report it.

Lifecycle of a row: it is of a slot (``subscriptions.py``, ``routers.py`` in ledger/delivery/; of a
group, ``daemon/upkeep/group_lags.py`` chooses it and is its owner). Its
owner writes it at a heartbeat, with its own id, if anything has changed -> frees it when its
subject is deleted. Counts are since the daemon started: a successor of the owner goes on from the
row that it finds.

Ids only grow, so they are the generation of a slot: the owner of a former subject, perhaps another
process, which has not learned yet that this was deleted, does not write over a later one. If both
wrote at the same time, the owner of the later one finds that the row ``is_of`` another, and writes
again.

A row is a Struct: its texts are cut to what a row holds, 255 bytes each and the last one what is
left; everything else is a number. This module neither logs nor decides.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from shards import layout as at
from shards.boards.figures import KafkaGroupCounters, RouterCounters, SubscriptionCounters
from shards.rows import whole, writing
from shards.segment import Segment

_SHORT_BYTES = 255  # of all texts but the last one, which has what is left


class RowPhase(IntEnum):
    """What a subscription or a router does. A number is a word's value, not a contract."""

    RUNNING = 0
    PAUSED = 1  # by request
    HELD = 2  # nothing can be delivered or copied now: ``reason`` says why
    STOPPED = 3  # it cannot go on


class SubscriptionRow(SubscriptionCounters, frozen=True):
    """What a subscription does, with its figures. The counts only grow."""

    topic: str = ""
    subscription: str = ""
    phase: RowPhase = RowPhase.RUNNING
    reason: str = ""
    stands: str = ""  # which message it stands still at, and why (delivery/standstill.py)
    stands_since_ns: int = 0  # since when; 0: it does not
    is_pushed: int = 0
    consumer_max: int = 0  # messages that each of them may have


class RouterRow(RouterCounters, frozen=True):
    """What a router does, with its figures, and why it does not run, if so."""

    phase: RowPhase = RowPhase.RUNNING
    reason: str = ""
    router: str = ""
    source: str = ""
    dest: str = ""
    stands_since_ns: int = 0  # since when it stands still; 0: it does not
    stands: str = ""  # at which record, and why (delivery/standstill.py)


class KafkaGroupRow(KafkaGroupCounters, frozen=True):
    """The lag of a group of Kafka's consumers in a topic. Its id is that of its cursor."""

    topic: str = ""
    group: str = ""
    partitions: int = 0  # of which it has committed anything


Row = TypeVar("Row", bound=SubscriptionRow | RouterRow | KafkaGroupRow)


class Placed(NamedTuple, Generic[Row]):
    """A row, its slot, and whose it is."""

    slot: int
    id: int
    row: Row


class Board(Generic[Row]):
    """The rows of one kind, from the word ``first`` on."""

    def __init__(self, segment: Segment, first: int, slots: int, kind: type[Row]) -> None:
        self._words = segment.words
        self._data = segment.data
        self._first = first
        self._stop = first + slots * at.BOARD_ROW_WORDS
        self._kind = kind
        empty = kind()
        names = kind.__struct_fields__
        self._texts = [name for name in names if isinstance(getattr(empty, name), str)]
        self._numbers = [name for name in names if name not in self._texts]
        assert len(self._numbers) <= at.B_NUMBERS_MAX and len(self._texts) <= at.B_TEXTS_MAX
        self._texts_of = attrgetter(*self._texts)
        self._numbers_of = attrgetter(*self._numbers)

    def write(self, slot: int, id_: int, row: Row) -> None:
        """Writes a row, unless the slot is a later one's."""
        start, words = self._start(slot), self._words
        if words[start + at.B_ID] > id_:
            return
        *short, last = self._texts_of(row)
        encoded = [text.encode()[:_SHORT_BYTES] for text in short]
        encoded.append(last.encode()[: at.B_TEXT_BYTES - sum(map(len, encoded))])
        text = b"".join(encoded)
        numbers = [*self._numbers_of(row)]
        numbers += [0] * (at.B_NUMBERS_MAX - len(numbers))
        head = array("Q", [id_, *numbers, *map(len, encoded)])
        first = (start + at.B_TEXT) * at.WORD_BYTES
        with writing(words, start + at.B_VERSION):
            words[start + at.B_ID : start + at.B_ID + len(head)] = head
            self._data[first : first + len(text)] = text

    def is_of(self, slot: int, id_: int) -> bool:
        """Whether a row has this id."""
        return bool(self._words[self._start(slot) + at.B_ID] == id_)

    def free(self, slot: int, id_: int) -> None:
        """Frees the row of what was deleted, unless it is another one's already."""
        if self.is_of(slot, id_):
            self._words[self._start(slot) + at.B_ID] = 0

    def read(self, slot: int, id_: int) -> Row | None:
        """The row of this id; None if its owner has not written it yet."""
        found, row = self._read(slot)
        return row if found == id_ else None

    def rows(self) -> list[Placed[Row]]:
        """All rows, by slot."""
        return self._those(self._column(at.B_ID))

    def standing(self) -> list[Placed[Row]]:
        """The rows of what stands still. Costs one column if none does."""
        return self._those(self._column(self._word("stands_since_ns")))

    def phases(self) -> tuple[list[int], list[int]]:
        """The ids and the phases of the slots' rows; id 0: it is free. Takes microseconds."""
        return self._column(at.B_ID), self._column(self._word("phase"))

    def _those(self, column: list[int]) -> list[Placed[Row]]:
        if not any(column):
            return []
        found = [(slot, *self._read(slot)) for slot, there in enumerate(column) if there]
        return [Placed(slot, id_, row) for slot, id_, row in found if id_]

    def _read(self, slot: int) -> tuple[int, Row]:
        """A row and its id, whole; if its writer died in it, as it is."""
        start, words = self._start(slot), self._words
        first = (start + at.B_TEXT) * at.WORD_BYTES

        def copy() -> tuple[list[int], bytes]:
            text = bytes(self._data[first : first + at.B_TEXT_BYTES])
            return words[start : start + at.B_TEXT].tolist(), text

        found, text = whole(words, start + at.B_VERSION, copy)
        fields: dict[str, Any] = dict(zip(self._numbers, found[at.B_NUMBERS :], strict=False))
        if "phase" in fields:
            fields["phase"] = RowPhase(fields["phase"] & 3)
        begin = 0
        for name, length in zip(self._texts, found[at.B_LENGTHS :], strict=False):
            fields[name] = text[begin : begin + length].decode(errors="replace")
            begin += length
        return found[at.B_ID], self._kind(**fields)

    def _start(self, slot: int) -> int:
        return self._first + slot * at.BOARD_ROW_WORDS

    def _word(self, name: str) -> int:
        return at.B_NUMBERS + self._numbers.index(name)

    def _column(self, word: int) -> list[int]:
        return self._words[self._first + word : self._stop : at.BOARD_ROW_WORDS].tolist()


def subscription_board(segment: Segment) -> Board[SubscriptionRow]:
    """The rows of all subscriptions."""
    first = segment.layout.board("subscriptions")
    return Board(segment, first, at.SUBSCRIPTION_SLOTS, SubscriptionRow)


def router_board(segment: Segment) -> Board[RouterRow]:
    """The rows of all routers."""
    return Board(segment, segment.layout.board("routers"), at.ROUTER_SLOTS, RouterRow)


def kafka_group_board(segment: Segment) -> Board[KafkaGroupRow]:
    """The rows of groups of Kafka's consumers, one for each topic that they have committed of."""
    first = segment.layout.board("kafka groups")
    return Board(segment, first, at.KAFKA_GROUP_SLOTS, KafkaGroupRow)
