"""The request of one POST: records as CloudEvents 1.0.2, signed if the subscription says so.

    binary        the data of a record is the body, its attributes are headers ``ce-...``
    structured    one JSON document (application/cloudevents+json)
    batch         a list of them (application/cloudevents-batch+json)

The attributes of an event:

    specversion               "1.0"
    type                      "headgate.record", or what the settings take it from (type_of)
    source                    /topics/NAME
    id                        names the record: the same in all attempts, see EventSource
    time                      the timestamp of the record
    datacontenttype           application/json, or application/octet-stream for bytes. In the format
                              binary it is the content type of the POST
    partition, seq, attempt   as for any consumer; seq is a string, as integers have 32 bits there
    key, tag, node, meta      of the record, if it has them; meta is JSON text

``_attributes`` has them for all formats. The data of a record is JSON text already: it goes into a
document as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote

from msgspec import Raw, Struct
from msgspec.json import encode
from msgspec.structs import force_setattr

from delivery.filters import text_at
from delivery.push.secrets import PushSecrets, SecretMissing, missing
from delivery.push.signatures import signature_headers
from delivery.subscriptions.handing import PushedMessage
from ledger.delivery.push_settings import PushSettings
from uploader.l0.records import Record

TYPE = "headgate.record"
TYPE_CHARACTERS_MAX = 1_024
JSON = "application/json"
BYTES = "application/octet-stream"
STRUCTURED = "application/cloudevents+json; charset=utf-8"
BATCH = "application/cloudevents-batch+json; charset=utf-8"

Attributes = dict[str, object]  # of an event, by name
PushRequest = tuple[dict[str, str], bytes]  # headers, body

# What the HTTP binding of CloudEvents does not percent-encode: U+0021 to U+007E without " and %.
_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_unsafe = re.compile(r"[^!#$&-~]")


class EventSource(Struct, frozen=True):
    """The topic whose records are sent.

    An id of an event has the id of the topic and when it was created, because offsets of a topic
    that was deleted and created again begin at 1 again; and a history of the ledger
    (ledger/log/backup.py), because a recovery from a log that was put back gives offsets again. A
    standby's take-over keeps it. An id has no full stop, so that it can be signed."""

    topic: str
    topic_id: int
    created_ms: int
    history: str
    source: str = ""
    id_prefix: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "source", f"/topics/{quote(self.topic, safe=':')}")
        prefix = f"{self.topic_id}-{self.created_ms:x}-{self.history or '0'}-"
        force_setattr(self, "id_prefix", prefix)

    def id_of(self, message: PushedMessage) -> str:
        """Names the record of a message for good."""
        return f"{self.id_prefix}{message.partition}-{message.seq}"


def request_of(
    settings: PushSettings,
    source: EventSource,
    messages: Sequence[PushedMessage],
    secrets: PushSecrets | None,
    now_ms: int,
) -> PushRequest:
    """The headers and the body of a POST: of one message, or of several in the format ``batch``.
    Raises SecretMissing."""
    why = missing(settings, secrets)
    if why:
        raise SecretMissing(why)
    events = [_attributes(source, each, type_of(settings, each.record)) for each in messages]
    if settings.format == "batch":
        pairs = zip(events, messages, strict=True)
        body = encode([_document(event, each.record.data) for event, each in pairs])
        headers = {"content-type": BATCH}
        webhook_id = batch_id(source, messages)
    else:
        (message,), (event,) = messages, events
        webhook_id, data = source.id_of(message), message.record.data
        if settings.format == "structured":
            body = encode(_document(event, data))
            headers = {"content-type": STRUCTURED}
        else:
            body = data.encode() if isinstance(data, str) else bytes(data)
            headers = _headers(event)
    if secrets is not None:
        for name in settings.headers:
            lower = name.lower()
            headers[lower] = secrets.headers[lower]
        if settings.signed:
            headers.update(signature_headers(webhook_id, now_ms, body, secrets.signing))
    return headers, body


def type_of(settings: PushSettings, record: Record) -> str:
    """The type of a record's event. A text that cannot be one (CloudEvents 1.0.2, section 2.4 and
    3.1), because it is empty or has control characters, or is longer than labels are, is none."""
    if settings.type_from is None:
        return TYPE
    field = settings.type_field
    found = record.tag if field is None else text_at(record.data, field)
    if not found or len(found) > TYPE_CHARACTERS_MAX or _control.search(found):
        return TYPE
    return found


def batch_id(source: EventSource, messages: Sequence[PushedMessage]) -> str:
    """Names a batch: the same for the same records, and another one for any others."""
    told = "\n".join([f"{each.partition}-{each.seq}" for each in messages])
    return f"{source.id_prefix}b-{blake2b(told.encode(), digest_size=16).hexdigest()}"


def percent_encoded(value: str) -> str:
    """A string as the value of a header (HTTP binding of CloudEvents, section 3.1.3.2)."""
    return quote(value, safe=_SAFE) if _unsafe.search(value) else value


def _attributes(source: EventSource, message: PushedMessage, type_: str) -> Attributes:
    """The attributes of an event, for all formats and in the order in which they are sent. An
    integer is one in JSON, too."""
    record = message.record
    found: Attributes = {
        "specversion": "1.0",
        "id": source.id_of(message),
        "source": source.source,
        "type": type_,
        "time": _time(message.ts),
        "datacontenttype": JSON if isinstance(record.data, str) else BYTES,
        "partition": message.partition,
        "seq": str(message.seq),
        "attempt": message.attempt,
    }
    if record.key is not None:
        found["key"] = record.key
    if record.tag is not None:
        found["tag"] = record.tag
    if record.node is not None:
        found["node"] = record.node
    if record.meta is not None:
        found["meta"] = record.meta
    return found


def _headers(attributes: Attributes) -> dict[str, str]:
    headers = {"content-type": str(attributes.pop("datacontenttype"))}
    for name, value in attributes.items():
        headers[f"ce-{name}"] = percent_encoded(str(value))
    return headers


def _document(attributes: Attributes, data: str | bytes) -> Attributes:
    if isinstance(data, str):
        attributes["data"] = Raw(data)
    else:
        attributes["data_base64"] = data
    return attributes


def _time(ms: int) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    seconds, rest = divmod(ms, 1_000)
    return f"{_second(seconds)}.{rest:03d}Z"


@lru_cache(1_024)  # 100 KB; the records of a batch are mostly of a few seconds
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
