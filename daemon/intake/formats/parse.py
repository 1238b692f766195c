"""From content type, query and body to a Produce: picks the format, and reads the query.

The object formats say everything in the body; the others have only records there and take the
rest from the query. A parameter where it has no meaning is refused by name, not ignored.
"""

from __future__ import annotations

from daemon.api.errors import ApiError, invalid, too_large
from daemon.intake.formats.json_body import (
    IDEMPOTENCY_KEY_CHARACTERS_MAX,
    PARTITION_MAX,
    SEQUENCE_MAX,
    check_record,
    is_array,
    parse_array,
    parse_object,
)
from daemon.intake.formats.keys import key_field
from daemon.intake.formats.limits import (
    ACK_TIMEOUT_MS_MAX,
    ACK_TIMEOUT_MS_MIN,
    BodyLimits,
    check_ts,
)
from daemon.intake.formats.msgpack_body import parse_msgpack
from daemon.intake.formats.ndjson import parse_lines
from daemon.intake.formats.produce import Produce, Row, row
from ledger.types import Dedupe

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
MSGPACK = ("application/msgpack", "application/x-msgpack")
BYTES = "application/octet-stream"
CONTENT_TYPES = (JSON, *NDJSON, *MSGPACK, BYTES)

# ``create`` is read by whoever finds the topic.
_OBJECT_PARAMETERS = frozenset({"create"})
_BATCH_PARAMETERS = frozenset(
    {
        "create", "partition", "key", "idempotency_key", "expected_seq", "disable_backpressure",
        "ack_timeout_ms", "dedupe",
    }
)  # fmt: skip
_NUMBER_MAX = 10**20 - 1  # what is looked at as a number
_BYTES_PARAMETERS = _BATCH_PARAMETERS | {"tag", "node", "ts"}


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
            return Produce(parse_array(body, limits, None), arrival_ms)
    elif content_type in NDJSON:
        if not query:
            return Produce(parse_lines(body, limits, None), arrival_ms)
    elif content_type in MSGPACK:
        if query:
            _check_parameters(query, _OBJECT_PARAMETERS, "a msgpack map")
        return parse_msgpack(body, limits, arrival_ms)
    elif content_type == BYTES:
        return _parse_bytes(query, body, limits, arrival_ms)
    else:
        raise _unsupported(content_type)
    _check_parameters(query, _BATCH_PARAMETERS, "a batch")
    name = query.get("key")
    field = None if name is None else key_field(name)
    rows = (parse_array if content_type == JSON else parse_lines)(body, limits, field)
    return _with_query(query, rows, arrival_ms, keyed=field is not None, timed=False)


def _parse_bytes(
    query: dict[str, str], body: bytes, limits: BodyLimits, arrival_ms: int
) -> Produce:
    """The body is one record of bytes; its fields stand in the query, ``key`` as it is."""
    _check_parameters(query, _BYTES_PARAMETERS, "a body of bytes")
    if not body:
        raise invalid("the body is empty; a record of bytes needs at least one")
    key, tag, node = query.get("key"), query.get("tag"), query.get("node")
    ts = _number(query, "ts", _NUMBER_MAX)
    if ts is not None:
        check_ts(ts, {"record": 0})
    check_record(body, (key, tag, node), {"record": 0}, limits)
    rows = [row(body, ts, key, tag, node, None)]
    return _with_query(query, rows, arrival_ms, keyed=key is not None, timed=ts is not None)


def _with_query(
    query: dict[str, str], rows: list[Row], arrival_ms: int, *, keyed: bool, timed: bool
) -> Produce:
    idempotency_key = query.get("idempotency_key")
    if idempotency_key is not None and not (
        0 < len(idempotency_key) <= IDEMPOTENCY_KEY_CHARACTERS_MAX
    ):
        raise invalid(
            f"idempotency_key must have 1 to {IDEMPOTENCY_KEY_CHARACTERS_MAX} characters, not"
            f" {len(idempotency_key)}",
            parameter="idempotency_key",
        )
    disable_backpressure = query.get("disable_backpressure", "false")
    if disable_backpressure not in ("true", "false"):
        raise invalid(
            f"disable_backpressure must be true or false, not {disable_backpressure!r}",
            parameter="disable_backpressure",
        )
    return Produce(
        rows,
        arrival_ms,
        _number(query, "partition", PARTITION_MAX),
        idempotency_key,
        _number(query, "expected_seq", SEQUENCE_MAX),
        disable_backpressure == "true",
        keyed,
        timed,
        _number(query, "ack_timeout_ms", ACK_TIMEOUT_MS_MAX, ACK_TIMEOUT_MS_MIN),
        _dedupe(query),
    )


def _dedupe(query: dict[str, str]) -> Dedupe | None:
    match query.get("dedupe"):
        case None:
            return None
        case "body":
            return "body"
        case "none":
            return "none"
        case other:
            raise invalid(f"dedupe must be body or none, not {other[:40]!r}", parameter="dedupe")


def _number(query: dict[str, str], name: str, highest: int, lowest: int = 0) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 20:
        number = int(text)
        if lowest <= number <= highest:
            return number
    raise invalid(
        f"{name} must be a whole number from {lowest} to {highest}, not {text[:40]!r}",
        parameter=name,
    )


def _check_parameters(query: dict[str, str], known: frozenset[str], what: str) -> None:
    for name in query:
        if name not in known:
            hint = "; say it in the body" if name in _BATCH_PARAMETERS else ""
            raise invalid(
                f"the query parameter {name!r} is not known for {what}{hint}", parameter=name
            )


def _unsupported(content_type: str) -> ApiError:
    said = (
        f"Content-Type {content_type[:80]!r} is not supported"
        if content_type
        else ("the request has no Content-Type")
    )
    return ApiError(
        415,
        "unsupported_media_type",
        f"{said}; send one of {', '.join(CONTENT_TYPES)}",
        {"supported": list(CONTENT_TYPES)},
    )
