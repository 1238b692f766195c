"""From content type, query and body to a Produce: picks the format, reads the query, makes keys.

The object formats say everything in the body; the other formats have only records there, and take
the rest from the query. A parameter that has no meaning for a format is refused, not ignored.

With ``dedupe=body`` an idempotency key is made of the body, for agents that send no keys. The
commit treats it like one that a producer chose. It covers everything that says what the records
are: the topic (keys belong to one), the content type, the query without the parameters about
sending, and the decompressed body, since a retry may be compressed differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from msgspec.structs import fields

from daemon.intake.formats.json_format import (
    UTF8,
    array_rows,
    array_texts,
    charset_of,
    check_record,
    is_array,
    parse_object,
)
from daemon.intake.formats.keys import key_field
from daemon.intake.formats.limits import BodyLimits, check_ts, no_body
from daemon.intake.formats.msgpack_format import parse_msgpack
from daemon.intake.formats.ndjson_format import line_rows, line_texts, short_line
from daemon.intake.formats.payloads import Produce, produce_of, row
from daemon.schemas.api import ProduceOptions, ProduceQuery
from daemon.schemas.decoding import read_query
from daemon.schemas.errors import ApiError, invalid, too_large

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
MSGPACK = ("application/msgpack", "application/x-msgpack")
BYTES = "application/octet-stream"
CONTENT_TYPES = (JSON, *NDJSON, *MSGPACK, BYTES)

# ``create`` is for whoever looks up the topic.
_OBJECT_PARAMETERS = frozenset({"create", "disable_backpressure"})
_BATCH_PARAMETERS = frozenset(field.name for field in fields(ProduceOptions)) | {"create", "key"}
_BYTES_PARAMETERS = frozenset(field.name for field in fields(ProduceQuery))


def parse(
    content_type: str, query: dict[str, str], body: bytes, limits: BodyLimits, arrival_ms: int
) -> Produce:
    """What the request asks for. ``body`` is decompressed; ``arrival_ms`` is epoch time.

    Raises ApiError: 415 for a missing or unknown content type, 413 over a limit, 400 for anything
    else; ``detail.line`` (from 1) or ``detail.record`` (from 0) says where.
    """
    if len(body) > limits.body_bytes_max:
        raise too_large(
            f"the body has {len(body)} bytes, the limit is {limits.body_bytes_max}; send smaller"
            " batches",
            limit_bytes=limits.body_bytes_max,
        )
    if content_type == JSON:
        if not is_array(body):
            if query:
                _check_parameters(query, _OBJECT_PARAMETERS, "a JSON object")
            return parse_object(body, limits, arrival_ms)
        if not query:
            return Produce([], arrival_ms, texts=array_texts(body, limits))
    elif content_type in NDJSON:
        if not query:
            only = short_line(body, limits)
            if only is not None:
                return Produce([only], arrival_ms)
            return Produce([], arrival_ms, texts=line_texts(body, limits))
    elif content_type in MSGPACK:
        if query:
            _check_parameters(query, _OBJECT_PARAMETERS, "a msgpack map")
        return parse_msgpack(body, limits, arrival_ms)
    elif content_type == BYTES:
        return _parse_bytes(query, body, limits, arrival_ms)
    else:
        raise _unsupported(content_type)
    _check_parameters(query, _BATCH_PARAMETERS, "a batch")
    options = read_query(query, ProduceQuery)
    if options.key is None:
        texts = (array_texts if content_type == JSON else line_texts)(body, limits)
        return produce_of(options, [], arrival_ms, keyed=False, timed=False, texts=texts)
    field = key_field(options.key)
    rows = (array_rows if content_type == JSON else line_rows)(body, limits, field)
    return produce_of(options, rows, arrival_ms, keyed=True, timed=False)


def _parse_bytes(
    query: dict[str, str], body: bytes, limits: BodyLimits, arrival_ms: int
) -> Produce:
    """The body is one record of bytes; its other fields are in the query."""
    _check_parameters(query, _BYTES_PARAMETERS, "a body of bytes")
    if not body:
        raise no_body()
    options = read_query(query, ProduceQuery)
    key, tag, node, ts = options.key, options.tag, options.node, options.ts
    if ts is not None:
        check_ts(ts, {"record": 0})
    check_record(body, (key, tag, node), {"record": 0}, limits)
    rows = [row(body, ts, key, tag, node, None)]
    return produce_of(options, rows, arrival_ms, keyed=key is not None, timed=ts is not None)


def _check_parameters(query: dict[str, str], known: frozenset[str], what: str) -> None:
    for name in query:
        if name not in known:
            hint = "; send it in the body" if name in _BATCH_PARAMETERS else ""
            raise invalid(
                f"{what} does not take the query parameter {name!r}{hint}", parameter=name
            )


def check_charset(content_type: str) -> None:
    """Raises ApiError 415 for JSON in anything but UTF-8, by the header of a request."""
    kind, charset = content_type.partition(";")[0].strip().lower(), charset_of(content_type)
    if charset not in UTF8 and kind in (JSON, *NDJSON):
        raise ApiError(
            415,
            "unsupported_media_type",
            f"the charset {charset[:40]!r} is not supported; send JSON in UTF-8, or the bytes as"
            " they are to /v0/hooks/TOPIC",
            {"supported": ["utf-8"]},
        )


def _unsupported(content_type: str) -> ApiError:
    if content_type:
        said = f"Content-Type {content_type[:80]!r} is not supported"
    else:
        said = "the request has no Content-Type"
    return ApiError(
        415,
        "unsupported_media_type",
        f"{said}; send one of {', '.join(CONTENT_TYPES)}",
        {"supported": list(CONTENT_TYPES)},
    )


# 128 bits: that two of 10^12 bodies within a window have one key has a chance of 1 in 10^14.
DIGEST_BYTES = 16
PREFIX = "dedupe=body:"  # reserved: a producer's own keys must not begin with it
_ABOUT_THE_SENDING = frozenset({"ack_timeout_ms", "create", "dedupe", "disable_backpressure"})


def body_key(content_type: str, query: Mapping[str, str], body: bytes) -> str:
    """The idempotency key of a request that has none."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    said = sorted(item for item in query.items() if item[0] not in _ABOUT_THE_SENDING)
    # The count of the parameters says where the body begins.
    for text in (str(len(said)), content_type, *(part for item in said for part in item)):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    digest.update(body)
    return PREFIX + digest.hexdigest()


def is_body_key(key: str) -> bool:
    """Whether ``body_key`` made it: equal ones are of equal bodies."""
    return key.startswith(PREFIX)
