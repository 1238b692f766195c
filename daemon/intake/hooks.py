"""Hooks: requests of others, who know nothing of Headgate, stored as they came.

The body is one record. Its data is the JSON text of a body that says it is JSON, and is; otherwise
the bytes of the body, whatever they are. The record's ``meta`` has the content type and the headers
that the URL names. CloudEvents are records as ``formats/cloud_events.py`` says.

A delivery that the sender names is stored once, if it comes again with the same body. Where hooks
are signed with an id or a time, these name it, whatever the URL and other headers say: whoever has
overheard it can change them.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from daemon.http.head import Head
from daemon.intake.formats import BodyLimits, Produce, body_key, check_charset
from daemon.intake.formats.cloud_events import (
    BATCH,
    HEADERS,
    STRUCTURED,
    VERSION,
    binary_event,
    check_label,
    json_events,
    row_of,
)
from daemon.intake.formats.json_format import check_record, is_json, json_text
from daemon.intake.formats.keys import key_field
from daemon.intake.formats.limits import no_body
from daemon.intake.formats.payloads import KEY, TS, Row, produce_of, row
from daemon.intake.hook_signatures import check_signature
from daemon.intake.topic_cache import TopicEntry
from daemon.schemas.decoding import read_query, refuse_unknown
from daemon.schemas.errors import ApiError, invalid, too_large
from daemon.schemas.hooks import HookQuery
from ledger.types import HookSettings
from uploader.l0.records import encode

# Of what comes with every hook, and what senders call a delivery and its kind.
KEPT_HEADERS = (
    "content-type", "webhook-id", "webhook-timestamp", "x-github-delivery", "x-github-event",
)  # fmt: skip
_DELIVERIES = ("webhook-id", "x-github-delivery")
_KIND = "x-github-event"
# They are how a sender is known, and what is stored is shown to readers.
NEVER_KEPT = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})

_SIGNED = "signed:"  # of which other records are told by their fingerprint, as of a producer's key

_encode = msgspec.json.Encoder().encode


def raw_reader(head: Head) -> HookReader | None:
    """Of a produce request: with ``?raw`` it is read as a hook is. Raises ApiError 400, and 415 for
    text in a charset that produce does not read."""
    raw = head.query.pop("raw", "false")
    if raw in ("", "true"):
        return HookReader(head)
    if raw != "false":
        raise invalid(f"raw must be true or false, got {raw[:40]!r}", parameter="raw")
    check_charset(head.headers.get("content-type", ""))
    return None


class HookReader:
    """Reads the bodies of hooks with one head. Raises ApiError 400 for a query that cannot be.

    Which headers have the signature is known with the topic, so all are kept until then. A head
    that names a delivery does not come again: it would only take the place of others."""

    __slots__ = ("_headers", "_kind", "_query", "_sent")

    def __init__(self, head: Head) -> None:
        refuse_unknown(head.query, HookQuery)
        self._query = query = read_query(head.query, HookQuery)
        names = [name.lower() for name in query.header]
        for name in names:
            if name in NEVER_KEPT:
                raise invalid(
                    f"the header {name} is a secret of its sender, and is not kept; name others",
                    parameter="header",
                )
        self._headers = {
            name: head.headers[name] for name in (*KEPT_HEADERS, *names) if name in head.headers
        }
        self._kind = head.content_type
        self._sent = head.headers
        head.target_bytes += sum(map(len, self._sent.values()))
        head.is_brief = True

    def parse(
        self, body: bytes, limits: BodyLimits, arrival_ms: int, topic: TopicEntry | None
    ) -> Produce:
        """The record that a body is. Raises ApiError."""
        if len(body) > limits.body_bytes_max:
            raise too_large(
                f"the body has {len(body)} bytes, the limit is {limits.body_bytes_max}",
                limit_bytes=limits.body_bytes_max,
            )
        hook = None if topic is None else topic.topic.config.hook
        signed = (
            None if topic is None or hook is None else self._check(topic, hook, body, arrival_ms)
        )
        query, names = self._query, ""
        if self._kind in (STRUCTURED, BATCH) or f"{HEADERS}{VERSION}" in self._sent:
            events = (
                json_events(self._kind, body, limits)
                if self._kind in (STRUCTURED, BATCH)
                else [binary_event(self._sent, body)]
            )
            several = self._kind == BATCH
            rows = [
                row_of(each, {"record": index} if several else {}, limits, query)
                for index, each in enumerate(events)
            ]
            names = "\n".join([each.name for each in events])
            # The same in all attempts, which the body is not.
            told = encode(rows)
        else:
            rows = [self._row(body, limits)]
            names = next((self._sent[name] for name in _DELIVERIES if name in self._sent), "")
            told = self._said() + body
        asked = produce_of(
            query, rows, arrival_ms,
            keyed=any(len(each) > KEY and each[KEY] is not None for each in rows),
            timed=any(len(each) > TS and each[TS] is not None for each in rows),
        )  # fmt: skip
        if topic is not None and hook is not None and signed is not None:
            if hook.scheme == "standard":  # with another body its id is refused, as a key is
                key = _SIGNED + body_key("", {"id": signed}, b"")
                return replace(asked, told=told, idempotency_key=key)
            # Each attempt has a time of its own, so ?dedupe=body counts.
            is_by_body = (asked.dedupe or topic.topic.config.dedupe) == "body"
            return replace(
                asked, idempotency_key=body_key("", {} if is_by_body else {"t": signed}, body)
            )
        if query.idempotency_key is not None:
            return replace(asked, told=told)
        if not names or query.dedupe == "none":
            return asked
        return replace(asked, idempotency_key=body_key(self._kind, {"delivery": names}, told))

    def _said(self) -> bytes:
        """What the record has besides the body, and is the same in all attempts of a delivery."""
        query, headers = self._query, self._headers
        kinds = headers.get("content-type"), headers.get(_KIND)
        return _encode((*kinds, query.key, query.tag, query.node))

    def _row(self, body: bytes, limits: BodyLimits) -> Row:
        """The record that a body is, unless it has events."""
        if not body:
            raise no_body()
        query, headers = self._query, self._headers
        text = json_text(body) if is_json(headers.get("content-type", "")) else None
        key = None
        if query.key is not None and text is not None:
            key = key_field(query.key).of(text, {})
        tag = query.tag if query.tag is not None else headers.get(_KIND)
        check_label("tag", tag, {})
        data = body if text is None else text
        meta = _encode(headers).decode()
        check_record(data, (key, tag, query.node, meta), {}, limits)
        return row(data, None, key, tag, query.node, meta)

    def _check(
        self, topic: TopicEntry, hook: HookSettings, body: bytes, arrival_ms: int
    ) -> str | None:
        secrets = topic.hook_secrets
        if secrets is None:
            raise ApiError(
                503,
                "secrets_unavailable",
                f"the secrets for hooks of topic {topic.name!r} are not in push-secrets.json, next"
                " to the ledger; put the file back, or set them again; nothing was stored",
                {"topic": topic.name},
                retry_after_s=5,
            )
        return check_signature(topic.name, hook, secrets, self._sent, body, arrival_ms)
