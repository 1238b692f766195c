"""A stream's position as text: what a watcher sends back as ``Last-Event-ID`` to resume.

    TOPIC_ID:PARTITION=SEQ,PARTITION=SEQ;TOPIC_ID:PARTITION=SEQ

``SEQ`` is the last offset that the watcher has, or that a filter removed; 0 is the start. A
position names every partition of its stream, also those of which nothing was sent: a partition that
it does not name was added later and is read from its start. So a stream sends its position first of
all, before any record.

The text has no spaces and none of the characters that end an id of an event stream (NUL, CR, LF).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from delivery.reading.followed import Key
from ledger.types import INTEGER_MAX

# 64 partitions of 64 topics, each with numbers of 19 digits, are 64 x (20 + 4 + 20) = 2,816.
# A topic whose partitions are increased while it is watched can make it longer.
POSITION_CHARACTERS_MAX = 8_192
_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
_PLACES = rf"{_NUMBER}={_NUMBER}(?:,{_NUMBER}={_NUMBER})*"
_POSITION = re.compile(rf"{_NUMBER}:{_PLACES}(?:;{_NUMBER}:{_PLACES})*")
_SHOWN_CHARACTERS_MAX = 80


class PositionError(ValueError):
    """A text that is not a position."""


def format_position(offsets: Mapping[Key, int]) -> str:
    """The text of a position: the last offset of each (topic id, partition)."""
    topics: dict[int, list[str]] = {}
    for (topic_id, partition), seq in sorted(offsets.items()):
        topics.setdefault(topic_id, []).append(f"{partition}={seq}")
    return ";".join(f"{topic_id}:{','.join(places)}" for topic_id, places in topics.items())


def parse_position(text: str) -> dict[Key, int]:
    """The inverse of ``format_position``; an empty text is a position of no partition.

    Raises PositionError."""
    if not text:
        return {}
    if len(text) > POSITION_CHARACTERS_MAX:
        raise PositionError(
            f"the event id has {len(text)} characters, the limit is {POSITION_CHARACTERS_MAX}"
        )
    if _POSITION.fullmatch(text) is None:
        shown = text[:_SHOWN_CHARACTERS_MAX]
        raise PositionError(
            f"{shown!r} is not an event id of a stream, like 7:0=120,1=98; send the last one as it"
            " was received, or none to begin anew"
        )
    offsets: dict[Key, int] = {}
    for topic in text.split(";"):
        topic_id, _, places = topic.partition(":")
        for place in places.split(","):
            partition, _, seq = place.partition("=")
            key = (int(topic_id), int(partition))
            if key in offsets:
                raise PositionError(
                    f"the event id names partition {partition} of topic id {topic_id} twice"
                )
            if max(*key, int(seq)) > INTEGER_MAX:
                raise PositionError(f"the event id has {place!r}, the limit is {INTEGER_MAX}")
            offsets[key] = int(seq)
    return offsets
