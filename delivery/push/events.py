"""The request of one POST: records as CloudEvents 1.0.2, signed if the subscription says so.

    binary        the data of a record is the body, its attributes are headers ``ce-...``
    structured    one JSON document (application/cloudevents+json)
    batch         a list of them (application/cloudevents-batch+json)

The attributes of an event:

    specversion, type         "1.0", "headgate.record"
    source                    /topics/NAME
    id                        names the record: the same in all attempts, see EventSource
    time                      the timestamp of the record
    datacontenttype           application/json, or application/octet-stream for bytes
    partition, seq, attempt   as for any consumer; seq is a string, as integers have 32 bits there
    key, tag, node, meta      of the record, if it has them; meta is JSON text

JSON is written as text here, and not encoded, because the data of a record is JSON text already.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring as quoted
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import force_setattr

from delivery.push.secrets import PushSecrets, SecretMissing, missing
from delivery.push.signatures import signature_headers
from delivery.subscriptions.consumers.handing import PushedMessage
from ledger.delivery.push_settings import PushSettings

TYPE = "headgate.record"
JSON = "application/json"
BYTES = "application/octet-stream"
STRUCTURED = "application/cloudevents+json; charset=utf-8"
BATCH = "application/cloudevents-batch+json; charset=utf-8"

PushRequest = tuple[dict[str, str], bytes]  # headers, body

# What the HTTP binding of CloudEvents does not percent-encode: U+0021 to U+007E without " and %.
_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
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
    if settings.format == "batch":
        body = f"[{','.join([_document(source, each) for each in messages])}]".encode()
        headers = {"content-type": BATCH}
        webhook_id = batch_id(source, messages)
    else:
        (message,) = messages
        webhook_id = source.id_of(message)
        if settings.format == "structured":
            body = _document(source, message).encode()
            headers = {"content-type": STRUCTURED}
        else:
            data = message.record.data
            body = data.encode() if isinstance(data, str) else bytes(data)
            headers = _attributes(source, message)
    if secrets is not None:
        for name in settings.headers:
            lower = name.lower()
            headers[lower] = secrets.headers[lower]
        if settings.signed:
            headers.update(signature_headers(webhook_id, now_ms, body, secrets.signing))
    return headers, body


def batch_id(source: EventSource, messages: Sequence[PushedMessage]) -> str:
    """Names a batch: the same for the same records, and another one for any others."""
    told = "\n".join([f"{each.partition}-{each.seq}" for each in messages])
    return f"{source.id_prefix}b-{blake2b(told.encode(), digest_size=16).hexdigest()}"


def percent_encoded(value: str) -> str:
    """A string as the value of a header (HTTP binding of CloudEvents, section 3.1.3.2)."""
    return quote(value, safe=_SAFE) if _unsafe.search(value) else value


def _attributes(source: EventSource, message: PushedMessage) -> dict[str, str]:
    record = message.record
    headers = {
        "content-type": JSON if isinstance(record.data, str) else BYTES,
        "ce-specversion": "1.0",
        "ce-id": source.id_of(message),
        "ce-source": source.source,
        "ce-type": TYPE,
        "ce-time": _time(message.ts),
        "ce-partition": str(message.partition),
        "ce-seq": str(message.seq),
        "ce-attempt": str(message.attempt),
    }
    if record.key is not None:
        headers["ce-key"] = percent_encoded(record.key)
    if record.tag is not None:
        headers["ce-tag"] = percent_encoded(record.tag)
    if record.node is not None:
        headers["ce-node"] = percent_encoded(record.node)
    if record.meta is not None:
        headers["ce-meta"] = percent_encoded(record.meta)
    return headers


def _document(source: EventSource, message: PushedMessage) -> str:
    record = message.record
    data = record.data
    is_json = isinstance(data, str)
    text = (
        f'{{"specversion":"1.0","id":"{source.id_of(message)}","source":"{source.source}",'
        f'"type":"{TYPE}","time":"{_time(message.ts)}",'
        f'"datacontenttype":"{JSON if is_json else BYTES}","partition":{message.partition},'
        f'"seq":"{message.seq}","attempt":{message.attempt}'
    )
    if record.key is not None:
        text += f',"key":{quoted(record.key)}'
    if record.tag is not None:
        text += f',"tag":{quoted(record.tag)}'
    if record.node is not None:
        text += f',"node":{quoted(record.node)}'
    if record.meta is not None:
        text += f',"meta":{quoted(record.meta)}'
    if isinstance(data, str):
        return f'{text},"data":{data}}}'
    return f'{text},"data_base64":"{b64encode(data).decode()}"}}'


def _time(ms: int) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    seconds, rest = divmod(ms, 1_000)
    return f"{_second(seconds)}.{rest:03d}Z"


@lru_cache(1_024)  # 100 KB; the records of a batch are mostly of a few seconds
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
