"""Hooks: requests of others, who know nothing of Headgate, stored as they came.

The body is one record. Its data is the JSON text of a body that says it is JSON, and is; otherwise
the bytes of the body, whatever they are. The record's ``meta`` has the content type and the headers
that the URL names.

A delivery that the sender names is stored once, if it comes again with the same body.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from daemon.http.head import Head
from daemon.intake.formats import BodyLimits, Produce, body_key, check_record, nested_deeper
from daemon.intake.formats.keys import key_field
from daemon.intake.formats.payloads import produce_of, row
from daemon.intake.topic_cache import TopicEntry
from daemon.schemas.decoding import NESTING_MAX, UNREADABLE, read_query, refuse_unknown
from daemon.schemas.errors import invalid, too_large
from daemon.schemas.hooks import HookQuery

# Of what comes with every hook, and what senders call a delivery and its kind.
KEPT_HEADERS = (
    "content-type", "webhook-id", "webhook-timestamp", "x-github-delivery", "x-github-event",
)  # fmt: skip
_DELIVERIES = ("webhook-id", "x-github-delivery")
_KIND = "x-github-event"
# They are how a sender is known, and what is stored is shown to readers.
_NEVER_KEPT = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})
_UTF8 = ("", "utf-8", "utf8", "us-ascii")
_BLANKS = " \t\r\n"

_decoder = msgspec.json.Decoder(Raw)
_encode = msgspec.json.Encoder().encode


class HookReader:
    """Reads the bodies of hooks with one head. Raises ApiError 400 for a query that cannot be."""

    __slots__ = ("_headers", "_query")

    def __init__(self, head: Head) -> None:
        refuse_unknown(head.query, HookQuery)
        self._query = query = read_query(head.query, HookQuery)
        names = [name.lower() for name in query.header]
        for name in names:
            if name in _NEVER_KEPT:
                raise invalid(
                    f"the header {name} is a secret of its sender, and is not kept; name others",
                    parameter="header",
                )
        self._headers = {
            name: head.headers[name] for name in (*KEPT_HEADERS, *names) if name in head.headers
        }
        head.target_bytes += sum(map(len, self._headers.values()))

    def parse(
        self, body: bytes, limits: BodyLimits, arrival_ms: int, topic: TopicEntry | None
    ) -> Produce:
        """The record that a body is. Raises ApiError."""
        if len(body) > limits.body_bytes_max:
            raise too_large(
                f"the body has {len(body)} bytes, the limit is {limits.body_bytes_max}",
                limit_bytes=limits.body_bytes_max,
            )
        if not body:
            raise invalid("the body is empty, so there is nothing to store")
        query, headers = self._query, self._headers
        kind = headers.get("content-type", "")
        text = json_text(body) if is_json(kind) else None
        key = None
        if query.key is not None and text is not None:
            key = key_field(query.key).of(text, {})
        tag = query.tag if query.tag is not None else headers.get(_KIND)
        data = body if text is None else text
        meta = _encode(headers).decode()
        check_record(data, (key, tag, query.node, meta), {}, limits)
        rows = [row(data, None, key, tag, query.node, meta)]
        asked = produce_of(query, rows, arrival_ms, keyed=key is not None, timed=False)
        named = next((headers[name] for name in _DELIVERIES if name in headers), None)
        if named is None or query.idempotency_key is not None or query.dedupe == "none":
            return asked
        return replace(asked, idempotency_key=body_key(kind, {"delivery": named}, body))


def is_json(content_type: str) -> bool:
    """Whether a body of this type is JSON in UTF-8, as it says."""
    kind, _, parameters = content_type.lower().partition(";")
    kind = kind.strip()
    if kind not in ("application/json", "text/json") and not kind.endswith("+json"):
        return False
    charset = parameters.rpartition("charset=")[2] if "charset=" in parameters else ""
    return charset.partition(";")[0].strip(' "') in _UTF8


def json_text(body: bytes) -> str | None:
    """The text of a JSON value, without the blanks around it; None if it is not one, or is nested
    too deep to be kept as one."""
    try:
        _decoder.decode(body)
        text = str(body, "utf-8").strip(_BLANKS)
    except UNREADABLE:
        return None
    return None if nested_deeper(body, NESTING_MAX) else text
