"""CloudEvents 1.0 over HTTP as records: binary (headers ``ce-...``), structured and batch (JSON).

    data             of the event; null if it has none. Bytes, and text that is not JSON, are bytes
    ts, tag, key     its time, type and partitionkey
    meta             all its attributes

What another Headgate pushes (type ``headgate.record``) becomes the record that it was, with its own
key, tag, node and meta. Where it was in its topic is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw

from daemon.intake.formats.json_format import (
    array_elements,
    check_record,
    decode_base64,
    has_twice,
    is_json,
    json_text,
)
from daemon.intake.formats.keys import key_field
from daemon.intake.formats.limits import BodyLimits, check_ts, given_twice, place
from daemon.intake.formats.payloads import Row, row
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from daemon.schemas.decoding import UNREADABLE
from daemon.schemas.errors import ApiError, invalid, too_large
from daemon.schemas.hooks import HookQuery

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
HEADERS, VERSION = "ce-", "specversion"
OURS = "headgate.record"
# Each member of an event takes about 0.6 us, and nothing stops between them: 0.1 s at most.
MEMBERS_MAX = 1_000
BATCH_MEMBERS_MAX = 200_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_documents = msgspec.json.Decoder(dict[str, Raw])
_attributes = msgspec.json.Decoder(str | int | float | bool | None)
_encode = msgspec.json.Encoder().encode

Where = dict[str, int]


class Event(NamedTuple):
    """An event. ``data`` is JSON text, or bytes."""

    attributes: dict[str, str]
    data: str | bytes

    @property
    def name(self) -> str:
        """Its source and id: no other event has both."""
        return f"{self.attributes['source']} {self.attributes['id']}"


def binary_event(headers: Mapping[str, str], body: bytes) -> Event:
    """The event of a request with headers ``ce-...``. Raises ApiError 400."""
    attributes = {
        name.removeprefix(HEADERS): _decoded(name, value)
        for name, value in headers.items()
        if name.startswith(HEADERS)
    }
    kind = headers.get("content-type", "")
    if kind:
        attributes["datacontenttype"] = kind
    text = json_text(body) if is_json(kind) else None
    data = body if body or kind else "null"  # without either it has no data
    return Event(_checked(attributes, {}), data if text is None else text)


def json_events(content_type: str, body: bytes, limits: BodyLimits) -> list[Event]:
    """The events of a document, or of a batch of them. Raises ApiError."""
    if content_type == STRUCTURED:
        return [_of_document(body, _members(body, {}), {})]
    events: list[Event] = []
    left = BATCH_MEMBERS_MAX
    for index, each in enumerate(array_elements(body, limits)):
        where, document = {"record": index}, bytes(each)
        members = _members(document, where)
        left -= len(members)
        if left < 0:
            raise too_large(
                f"the events have more than {BATCH_MEMBERS_MAX} attributes together; send smaller"
                " batches",
                limit=BATCH_MEMBERS_MAX,
            )
        events.append(_of_document(document, members, where))
    return events


def row_of(event: Event, where: Where, limits: BodyLimits, query: HookQuery) -> Row:
    """The record that an event becomes; the ``query`` goes before what the event says. Raises
    ApiError."""
    attributes, data = event
    is_ours = attributes["type"] == OURS
    key = attributes.get("key" if is_ours else "partitionkey")
    tag = attributes.get("tag") if is_ours else attributes["type"]
    node = attributes.get("node") if is_ours else None
    meta: str | None = _encode(attributes).decode()
    if is_ours:
        meta = attributes.get("meta")
        if meta is not None and (json_text(meta.encode()) is None or not meta.startswith("{")):
            raise invalid(f"the attribute meta of {place(where)} must be a JSON object", **where)
    if query.key is not None:
        key = key_field(query.key).of(data, where) if isinstance(data, str) else None
    tag = tag if query.tag is None else query.tag
    node = node if query.node is None else query.node
    for name, label in (("key", key), ("tag", tag), ("node", node)):
        check_label(name, label, where)
    check_record(data, (key, tag, node, meta), where, limits)
    return row(data, _time(attributes.get("time"), where), key, tag, node, meta)


def check_label(name: str, label: str | None, where: Where) -> None:
    """Raises ApiError 400 for a key, tag or node that is too long."""
    if label is not None and len(label) > LABEL_CHARACTERS_MAX:
        raise invalid(
            f"the {name} of {place(where)} has {len(label)} characters, the limit is"
            f" {LABEL_CHARACTERS_MAX}",
            field=name,
            limit=LABEL_CHARACTERS_MAX,
            **where,
        )


def _members(body: bytes, where: Where) -> dict[str, Raw]:
    try:
        members = _documents.decode(body)
    except UNREADABLE as error:
        raise _no_event(error, where) from error
    if len(members) > MEMBERS_MAX:
        raise invalid(
            f"{place(where)} has {len(members)} attributes, the limit of an event is {MEMBERS_MAX}",
            limit=MEMBERS_MAX,
            **where,
        )
    return members


def _no_event(error: Exception, where: Where) -> ApiError:
    return invalid(
        f"{place(where)} is not a CloudEvent in JSON, an object whose attributes are strings,"
        f" numbers or booleans: {error}",
        **where,
    )


def _of_document(body: bytes, members: dict[str, Raw], where: Where) -> Event:
    try:
        raw = members.pop("data", None)
        json = None if raw is None else str(raw, "utf-8")
        in_base64 = members.pop("data_base64", None)
        attributes = {}
        for name, value in members.items():
            found = _attributes.decode(value)
            if found is not None:  # null is the same as absent
                attributes[name] = found if isinstance(found, str) else str(value, "utf-8")
        text = None if in_base64 is None else msgspec.json.decode(in_base64, type=str | None)
    except UNREADABLE as error:
        raise _no_event(error, where) from error
    for name in ("data", "data_base64"):
        if has_twice(body, b'"%b"' % name.encode()):
            raise given_twice(name, where)
    data: str | bytes | None = json
    if text is not None:
        if json is not None:
            raise invalid(f"{place(where)} has both data and data_base64", **where)
        data = decode_base64(text, where.get("record", 0))
    elif json is not None and json.startswith('"') and not _is_json(attributes):
        data = msgspec.json.decode(json, type=str).encode()
    return Event(_checked(attributes, where), "null" if data is None else data)


def _is_json(attributes: Mapping[str, str]) -> bool:
    return is_json(attributes.get("datacontenttype", "application/json"))


def _checked(attributes: dict[str, str], where: Where) -> dict[str, str]:
    version = attributes.get(VERSION, "")
    if version != "1.0":
        raise invalid(
            f"the specversion of {place(where)} must be 1.0, got {version[:40]!r}",
            field=VERSION,
            **where,
        )
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise invalid(
                f"{place(where)} is a CloudEvent without the attribute {name}, which it must have",
                field=name,
                **where,
            )
    return attributes


def _decoded(name: str, value: str) -> str:
    """The value of a header: UTF-8 that is percent-encoded where it is not ASCII."""
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the header {name} is not UTF-8: {error}", header=name) from error


def _time(text: str | None, where: Where) -> int | None:
    """Epoch milliseconds."""
    if text is None:
        return None
    try:
        time = msgspec.convert(text, type=datetime)
        ts = (time - _EPOCH) // timedelta(milliseconds=1)
    except (msgspec.ValidationError, TypeError, OverflowError) as error:
        raise invalid(
            f"the time of {place(where)} must be RFC 3339 with a zone, like"
            f" 2026-01-31T12:00:00Z, got {text[:40]!r}",
            field="time",
            **where,
        ) from error
    check_ts(ts, where)
    return ts
