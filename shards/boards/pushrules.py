"""Whom push may call, from the supervisor to all shards: as of its last reload.

There are two places, written by turns; then the number of the text is stored. A shard that finds
another number than before reads the text of that number. If the number is still that one after it,
the text is whole; otherwise the shard reads again at its next look. Before the first reload, number
0, what a shard started with is in force.

This module neither logs nor decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shards import layout as at
from shards.barrier import keep_order
from shards.segment import Segment

Lists = tuple[Sequence[str], Sequence[str]]  # push_allow and push_deny


class PushRules:
    """The lists in force. Only the supervisor publishes."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        first = segment.layout.sparse + segment.layout.push_rules * at.WORD_BYTES
        self._data = segment.data[first : first + 2 * at.PUSH_RULES_BYTES]

    @property
    def number(self) -> int:
        """Counts what was published."""
        return int(self._words[at.G_PUSH_RULES])

    def publish(self, lists: Lists) -> None:
        """The next ones."""
        text = msgspec.json.encode(lists)
        assert len(text) + at.WORD_BYTES <= at.PUSH_RULES_BYTES  # shards/layout.py
        number = self.number + 1
        first = (number & 1) * at.PUSH_RULES_BYTES
        written = len(text).to_bytes(at.WORD_BYTES, "little") + text
        self._data[first : first + len(written)] = written
        keep_order()
        self._words[at.G_PUSH_RULES] = number

    def read(self, number: int) -> Lists | None:
        """The lists of a number; None if there are later ones by now."""
        first = (number & 1) * at.PUSH_RULES_BYTES
        start = first + at.WORD_BYTES
        size = int.from_bytes(self._data[first:start], "little")
        text = bytes(self._data[start : min(start + size, first + at.PUSH_RULES_BYTES)])
        keep_order()
        return _decoder.decode(text) if self.number == number else None


_decoder = msgspec.json.Decoder(tuple[list[str], list[str]])
