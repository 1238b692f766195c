"""The bytes of a batch in the formats of streams (delivery/streams/formats.py), and of a poll.

A message is a record of a diff with ``partition``, ``epoch`` and ``attempt``. NDJSON has a line for
each; an event stream an event ``message`` for each; msgpack a map with all of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from delivery.streams.formats import MSGPACK, SSE, Format, Item, record_map, record_texts

MESSAGE = "message"
MESSAGES = "messages"

Sent = tuple[int, int, Item]  # partition, attempt, record

_encoder = msgspec.msgpack.Encoder()


def encoded(format_: Format, epoch: int, sent: Sequence[Sent]) -> bytes:
    """A batch for a stream."""
    if format_ is MSGPACK:
        return _encoder.encode({"event": MESSAGES, "epoch": epoch, MESSAGES: _maps(epoch, sent)})
    texts = _texts(epoch, sent)
    if format_ is SSE:
        return "".join([f"event: {MESSAGE}\ndata: {text}\n\n" for text in texts]).encode()
    return ("\n".join(texts) + "\n").encode()


def polled(epoch: int | None, sent: Sequence[Sent], gaps: bytes) -> bytes:
    """The answer to a poll; ``gaps`` is the JSON of that list."""
    texts = ",".join(_texts(epoch or 0, sent)).encode()
    number = b"null" if epoch is None else b"%d" % epoch
    return b'{"epoch":%b,"messages":[%b],"gaps":%b}' % (number, texts, gaps)


def _texts(epoch: int, sent: Iterable[Sent]) -> Iterator[str]:
    for (partition, attempt), run in groupby(sent, itemgetter(0, 1)):
        begin = f'{{"partition":{partition},"epoch":{epoch},"attempt":{attempt},'
        yield from record_texts([each[2] for each in run], begin)


def _maps(epoch: int, sent: Iterable[Sent]) -> list[dict[str, Any]]:
    return [
        {"partition": partition, "epoch": epoch, "attempt": attempt, **record_map(*item)}
        for partition, attempt, item in sent
    ]
