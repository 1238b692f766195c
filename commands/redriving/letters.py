"""The letters of a dead-letter topic, as ``diff`` answers them.

A letter is a record whose ``meta`` names its origin as an owner of a subscription writes it
(``delivery/subscriptions/dead_letters.py``). The topic may have other records: those of an import,
or of any producer. Whatever names an origin that cannot exist is one of them, so that it keeps no
letter from being sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from commands.client.http import Client, decoded, topic_path
from commands.client.reader import PAGE_RECORDS
from commands.client.stream import RECREATED
from commands.shell.exits import CommandFailed
from daemon.schemas.names import TOPIC_NAME
from delivery.filters import compiled
from delivery.schemas import DiffAnswer, DiffRecord, DiffRequest
from ledger.types import INTEGER_MAX

_Name = Annotated[str, Meta(pattern=rf"\A{TOPIC_NAME.pattern}\Z")]
_Number = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]


class LetterOrigin(Struct, frozen=True):
    """Where a letter came from, and why."""

    topic: _Name
    topic_id: _Number
    partition: _Number
    seq: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    subscription: _Name
    attempts: _Number
    reason: str


class Letter(Struct, frozen=True):
    """A dead letter, at its place in its own topic."""

    partition: int
    seq: int
    ts: int
    key: str | None
    origin: LetterOrigin


class ListedLetter(Letter, frozen=True, kw_only=True):
    """A letter, and whether a redrive has dealt with it."""

    redriven: bool


class OriginName(NamedTuple):
    """A subscription, and the id of the topic that offsets are of."""

    topic: str
    topic_id: int
    subscription: str


def name_of(letter: Letter) -> OriginName:
    """Where a letter came from."""
    origin = letter.origin
    return OriginName(origin.topic, origin.topic_id, origin.subscription)


class _Meta(Struct):
    headgate: LetterOrigin


_meta = msgspec.json.Decoder(_Meta)


def letter_of(partition: int, record: DiffRecord) -> Letter | None:
    """A record as a letter; None if it is none."""
    if record.meta is UNSET:
        return None
    try:
        origin = _meta.decode(record.meta).headgate
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    key = None if isinstance(record.key, UnsetType) else record.key
    return Letter(partition, record.seq, record.ts, key, origin)


class LetterFilter:
    """``where``: a pattern for each of the fields ``topic``, ``subscription``, ``key`` and
    ``reason`` that must match."""

    def __init__(self, where: dict[str, str]) -> None:
        self._matches = {field: compiled(pattern) for field, pattern in where.items()}

    def __call__(self, letter: Letter) -> bool:
        """Whether a letter matches."""
        origin = letter.origin
        texts = {"topic": origin.topic, "subscription": origin.subscription, "key": letter.key,
                 "reason": origin.reason}  # fmt: skip
        return all(
            (text := texts[field]) is not None and matches(text)
            for field, matches in self._matches.items()
        )


class ReadLetter(NamedTuple):
    """A record, and the letter that it is."""

    seq: int
    letter: Letter | None


class LetterReader:
    """Reads a dead-letter topic, which must stay the same. ``warn`` is told of what is gone."""

    def __init__(
        self, client: Client, topic: str, topic_id: int, patience_ms: float,
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._topic = topic
        self.topic_id = topic_id
        self._patience_ms = patience_ms
        self._warn = warn
        self._warned: set[tuple[int, int]] = set()

    def read(
        self, partition: int, after: int, upto: int, from_ts: int | None = None
    ) -> Iterator[ReadLetter]:
        """The records of a partition after an offset, or from a time on, up to an offset."""
        while after < upto:
            ask = DiffRequest(
                from_seq=after if from_ts is None else UNSET,
                topic_id=self.topic_id if from_ts is None else UNSET,
                from_ts=UNSET if from_ts is None else from_ts,
                partition=partition,
                limit=PAGE_RECORDS,
            )
            page = self._page(ask)
            from_ts = None
            self._look_at_gap(partition, page)
            for record in page.records:
                if record.seq > upto:
                    return
                yield ReadLetter(record.seq, letter_of(partition, record))
            if page.caught_up or page.next_from_seq <= after:
                return
            after = page.next_from_seq

    def _page(self, ask: DiffRequest) -> DiffAnswer:
        path, body = topic_path(self._topic, "diff"), msgspec.json.encode(ask)
        answer = self._client.call("POST", path, body, patience_ms=self._patience_ms)
        return decoded(self._client, answer, DiffAnswer)

    def _look_at_gap(self, partition: int, page: DiffAnswer) -> None:
        gap = page.tombstone
        if page.topic_id != self.topic_id or (gap is not None and gap.reason == RECREATED):
            raise CommandFailed(
                f"topic {self._topic} was deleted and created again meanwhile",
                hint="run the command again for the letters of the new one",
            )
        if gap is not None and (partition, gap.gap_to) not in self._warned:
            self._warned.add((partition, gap.gap_to))
            self._warn(
                f"records {gap.gap_from} to {gap.gap_to} of partition {partition} of {self._topic}"
                f" are gone: {gap.reason}"
            )
