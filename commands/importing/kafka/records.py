"""What becomes of a record of Kafka's: the row that Kafka's own producers would have stored here.

The mapping is the one of the daemon's listener (docs/decisions/0037-kafka.md), so Kafka's
consumers get the same bytes from here. A position is an offset: that of the next record.
"""

from __future__ import annotations

import base64

import msgspec

from commands.importing.reading.blocks import SourceRecord
from commands.importing.reading.rules import Invalid, Rules
from daemon.intake.formats.limits import NESTED_CHARACTERS_MIN
from daemon.intake.formats.nesting import nested_deeper
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from daemon.schemas.decoding import NESTING_MAX
from uploader.l0.kafka import BatchError, KafkaRecord, to_row
from uploader.l0.records import TIMESTAMP_MS_MAX


class KafkaRules:
    """The rules for one partition. ``as_json``: as the destination's ``kafka_value`` says."""

    def __init__(self, rules: Rules, source: str, *, as_json: bool) -> None:
        self._rules = rules
        self._source = source
        self._as_json = as_json

    def record(self, offset: int, record: KafkaRecord) -> SourceRecord:
        """What becomes of the record at ``offset``. Raises InvalidRecord."""
        value = record.value or b""
        size = len(value) + len(record.key or b"") + 1
        size += sum(len(name) + len(each or b"") for name, each in record.headers)
        rows: tuple[bytes, ...] = ()
        dead: tuple[bytes, ...] = ()
        try:
            if self._rules.passes(value):
                rows = (self._row(record),)
        except Invalid as error:
            place = (self._source, offset, None, "offset")
            dead = self._rules.dead(str(error), value, len(value), *place)
        return SourceRecord(offset + 1, size, rows, dead)

    def _row(self, record: KafkaRecord) -> bytes:
        """The record as JSON of a produce request. Raises Invalid."""
        try:
            row = to_row(record, as_json=self._as_json)
        except BatchError as error:
            raise Invalid(str(error)) from error
        data, ts, key, _, _, meta = (*row, None, None, None, None, None)[:6]
        if isinstance(data, str):
            text = data.encode()
            size = len(text)
            if size >= NESTED_CHARACTERS_MIN and nested_deeper(text, NESTING_MAX):
                raise Invalid(f"is nested deeper than {NESTING_MAX} levels")
            parts = [b'{"data":', text]
        else:
            size = len(data)
            parts = [b'{"data_b64":"', base64.b64encode(data), b'"']
        if ts is not None:
            if not 0 <= ts <= TIMESTAMP_MS_MAX:
                raise Invalid(f"has the time {ts}; times are from 0 to {TIMESTAMP_MS_MAX} ms")
            parts.append(b',"ts":%d' % ts)
        if key is not None:
            if len(key) > LABEL_CHARACTERS_MAX:
                raise Invalid(
                    f"has a key of {len(key):,} characters (of base64, unless it is UTF-8), more"
                    f" than {LABEL_CHARACTERS_MAX:,}"
                )
            parts += [b',"key":', msgspec.json.encode(key)]
            size += len(key.encode())
        if meta is not None:
            parts += [b',"meta":', meta.encode()]
            size += len(meta.encode())
        self._rules.check_size(size, " with its key and its headers")
        parts.append(b"}")
        return b"".join(parts)
