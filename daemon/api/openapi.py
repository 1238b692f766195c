"""``/openapi.json``: the API as OpenAPI 3.1, written by hand and tested against the server.

Each operation lists every status that the server answers with; errors share one shape.
"""

from __future__ import annotations

from typing import Any

from compaction.source.schemas import PAGE_MAX
from daemon.api.topic_routes import NAME
from daemon.api.topic_settings import COLUMNS_MAX, PARTITIONS_MAX
from delivery.schemas import BYTES_MAX, LIMIT_MAX, WAIT_MS_MAX

Schema = dict[str, Any]


def _object(required: list[str], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": of, **limits}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": _json(schema)}


_OFFSET: Schema = {"type": "integer", "minimum": 0}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TEXT: Schema = {"type": "string"}
_ANY: Schema = {}
_BOOLEAN: Schema = {"type": "boolean"}
_OPEN: Schema = {"type": "object"}
_LIMIT: Schema = {
    "type": ["integer", "null"],
    "description": "of each partition, 1 or more; null: none",
}

_RECORD_FIELDS: dict[str, Schema] = {
    "data": {"description": "any JSON value; or give data_b64"},
    "data_b64": {"type": "string", "description": "bytes in base64"},
    "key": _TEXT,
    "tag": _TEXT,
    "node": _TEXT,
    "meta": _OPEN,
    "ts": {
        "type": "integer",
        "minimum": 0,
        "description": "epoch milliseconds; produced up to the end of the year 9999",
    },
}
_PART_FIELDS: dict[str, Schema] = {
    "partition": _COUNT,
    "first_seq": _OFFSET,
    "last_seq": _OFFSET,
    "count": _COUNT,
    "head_seq": _OFFSET,
}
_STATE_FIELDS: dict[str, Schema] = {
    "partition": _COUNT,
    "head_seq": _OFFSET,
    "earliest_seq": _OFFSET,
    "next_seq": _OFFSET,
    "count": _COUNT,
    "bytes": _COUNT,
    "compacted_seq": _OFFSET,
    "lost_seq": _OFFSET,
    "lost_reason": _TEXT,
}
_PLAN_PARTITION: dict[str, Schema] = {
    "topic": _TEXT,
    "topic_id": _COUNT,
    "partition": _COUNT,
    "earliest_seq": _OFFSET,
    "head_seq": _OFFSET,
    "compacted_seq": _OFFSET,
    "to": _OFFSET,
}
_PLAN_EXTENT: dict[str, Schema] = {
    "topic": _TEXT,
    "topic_id": _COUNT,
    "partition": _COUNT,
    "first_offset": _OFFSET,
    "last_offset": _OFFSET,
    "record_count": _COUNT,
    "byte_start": _COUNT,
    "byte_length": _COUNT,
    "crc32c": _COUNT,
    "codec": _COUNT,
    "voids": _list(_list(_COUNT)),
}

_SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        ["error"], error=_object(["code", "message", "detail"], code=_TEXT, message=_TEXT,
                                 detail=_OPEN),
    ),
    "TopicConfig": _object(
        [],
        partitions={"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX, "default": 1},
        columns={
            "type": "object",
            "description": "{field: string, long, double, boolean or timestamp}, at most"
            f" {COLUMNS_MAX}",
        },
        priority={"type": ["integer", "null"]},
        auto_priority=_BOOLEAN,
        lossy=_BOOLEAN,
        cap_records=_LIMIT,
        cap_bytes=_LIMIT,
        ttl_ms=_LIMIT,
        discard={"enum": ["old", "reject"]},
        dedupe={"enum": ["none", "body"]},
    ),
    "TopicState": _object(
        ["topic", "topic_id", "config", "partitions", "effective_priority"],
        topic=_TEXT,
        topic_id=_COUNT,
        table=_TEXT,
        config=_ref("TopicConfig"),
        partitions=_list(_object([*_STATE_FIELDS], **_STATE_FIELDS)),
        effective_priority={"type": "integer"},
        created_ms=_COUNT,
    ),
    "TopicPage": _object(
        ["topics", "next_cursor"],
        topics=_list(_ref("TopicState")),
        next_cursor={"type": ["string", "null"]},
    ),
    "Trim": _object(
        ["before_seq"],
        before_seq={**_OFFSET, "description": "records below it go"},
        partition=_COUNT,
    ),
    "Trimmed": _object(["topic", *_STATE_FIELDS], topic=_TEXT, **_STATE_FIELDS),
    "Record": _object([], **_RECORD_FIELDS),
    "Produce": _object(
        ["records"],
        records=_list(_ref("Record"), minItems=1),
        partition=_COUNT,
        idempotency_key=_TEXT,
        expected_seq=_OFFSET,
        disable_backpressure=_BOOLEAN,
        ack_timeout_ms={"type": "integer", "minimum": 100, "maximum": 600_000},
        dedupe={"enum": ["none", "body"]},
    ),
    "Produced": {
        "oneOf": [
            _object(["topic", *_PART_FIELDS, "deduped"], topic=_TEXT, deduped=_BOOLEAN,
                    **_PART_FIELDS),
            _object(["topic", "partitions", "count", "deduped"], topic=_TEXT, deduped=_BOOLEAN,
                    count=_COUNT, partitions=_list(_object([*_PART_FIELDS], **_PART_FIELDS))),
        ]
    },
    "Diff": _object(
        [],
        from_seq={**_OFFSET, "description": "exclusive; 0 for the beginning, head_seq at most"},
        topic_id={"type": "integer", "minimum": 1,
                  "description": "of the answer that from_seq is from"},
        from_ts={"type": "integer", "minimum": 0},
        tail=_BOOLEAN,
        partition=_COUNT,
        limit={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 256},
        max_bytes={"type": "integer", "minimum": 1, "maximum": BYTES_MAX},
        tag={"type": ["string", "null"]},
        node={"type": ["string", "null"]},
        wait_ms={"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX, "default": 0},
    ),
    "DiffAnswer": _object(
        ["records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "lag", "topic_id",
         "tombstone"],
        records=_list(
            _object(["seq", "ts"], seq=_OFFSET, **{**_RECORD_FIELDS, "data": _ANY})
        ),
        next_from_seq=_OFFSET,
        head_seq=_OFFSET,
        earliest_seq=_OFFSET,
        caught_up=_BOOLEAN,
        lag=_COUNT,
        topic_id=_COUNT,
        tombstone={
            "type": ["object", "null"],
            "description": "{gap_from, gap_to, reason}: offsets that no record has",
        },
    ),
    "PlanRequest": _object(
        ["topics"],
        topics=_list(_TEXT, minItems=1),
        **{"from": {**_OPEN, "description": "{topic: {partition: offset}}, inclusive"}},
        to={**_OPEN, "description": "{topic: {partition: offset}}, exclusive"},
        plan={"type": ["string", "null"], "description": "goes on under this plan's lease"},
        limit={"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_MAX},
    ),
    "Plan": _object(
        ["plan", "expires_ms", "store", "partitions", "objects", "files", "holes", "next"],
        plan=_TEXT,
        expires_ms=_COUNT,
        store=_object(
            ["url", "endpoint_url", "region", "lake_url"],
            url=_TEXT,
            endpoint_url={"type": ["string", "null"]},
            region={"type": ["string", "null"]},
            lake_url=_TEXT,
        ),
        partitions=_list(
            _object(
                [*_PLAN_PARTITION, "from"], **_PLAN_PARTITION, **{"from": _OFFSET},
            )
        ),
        objects=_list(
            _object(
                ["key", "locator", "size_bytes", "extents"],
                key=_TEXT,
                locator=_TEXT,
                size_bytes=_COUNT,
                extents=_list(_object([*_PLAN_EXTENT], **_PLAN_EXTENT)),
            )
        ),
        files=_list(
            _object(
                ["path", "size_bytes", "topic", "topic_id", "ranges"],
                path=_TEXT,
                size_bytes=_COUNT,
                topic=_TEXT,
                topic_id=_COUNT,
                ranges=_list(
                    _object(
                        ["partition", "first_offset", "last_offset", "rows", "bytes"],
                        partition=_COUNT, first_offset=_OFFSET, last_offset=_OFFSET, rows=_COUNT,
                        bytes=_COUNT,
                    )
                ),
            )
        ),
        holes=_list(
            _object(
                ["topic", "topic_id", "partition", "first_offset", "last_offset", "reason"],
                topic=_TEXT, topic_id=_COUNT, partition=_COUNT, first_offset=_OFFSET,
                last_offset=_OFFSET, reason=_TEXT,
            )
        ),
        next={
            "type": ["object", "null"],
            "description": "the body of the next POST; null when all that was asked is planned",
        },
    ),
    "PlanRenewed": _object(["plan", "expires_ms"], plan=_TEXT, expires_ms=_COUNT),
    "PlanEnded": _object(["plan", "ended"], plan=_TEXT, ended=_BOOLEAN),
    "Status": {"type": "object", "description": "see docs/http-api.md"},
}  # fmt: skip

_ERRORS: dict[int, str] = {
    400: "the request is wrong; nothing was stored",
    404: "no such topic or path",
    405: "the path does not know this method",
    409: "table_name_taken: another topic has the table; the detail names it, nothing was made",
    412: "expected_seq does not hold; nothing was stored",
    413: "a body, record or count is over its limit; nothing was stored",
    415: "the content type or encoding is not known; nothing was stored",
    416: "offset_out_of_range: from_seq is greater than head_seq, which the detail names",
    422: "topic_full: a cap of a topic that rejects; nothing of this request was stored",
    429: "throttled; nothing was or will be stored, send it again after Retry-After",
    503: "not now; nothing was or will be stored, send it again after Retry-After",
}


def _operation(
    summary: str, success: dict[int, Schema], errors: tuple[int, ...], **more: Any
) -> Schema:
    answers = {str(status): answer for status, answer in success.items()}
    for status in errors:
        answers[str(status)] = _answer(_ERRORS[status], _ref("Error"))
    return {"summary": summary, "responses": answers, **more}


def _query(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_TOPIC_PARAMETER: Schema = {
    "name": "topic",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{NAME.pattern}$"},
}
_PLAN_PARAMETER: Schema = {"name": "plan", "in": "path", "required": True, "schema": _TEXT}
_BYTES: Schema = {"schema": {"type": "string", "format": "binary"}}

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Headgate",
        "version": "0",
        "description": "Durable topics on object storage, over HTTP.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": {
        "/livez": {"get": _operation("the process lives", {200: _answer("it does", _OPEN)}, ())},
        "/readyz": {
            "get": _operation("all shards serve", {200: _answer("they do", _OPEN)}, (503,))
        },
        "/openapi.json": {
            "get": _operation("this document", {200: _answer("OpenAPI 3.1", _OPEN)}, ())
        },
        "/v0/status": {
            "get": _operation("what the daemon does", {200: _answer("status", _ref("Status"))}, ())
        },
        "/v0/topics": {
            "get": _operation(
                "topics by name, a page at a time",
                {200: _answer("a page", _ref("TopicPage"))},
                (400, 503),
                parameters=[
                    _query("cursor", "next_cursor of the page before", _TEXT),
                    _query("limit", "topics a page, 1 to 1000", _COUNT),
                ],
            )
        },
        "/v0/topics/{topic}": {
            "parameters": [_TOPIC_PARAMETER],
            "put": _operation(
                "create a topic or change its settings",
                {
                    200: _answer("unchanged or updated", _ref("TopicState")),
                    201: _answer("created", _ref("TopicState")),
                },
                (400, 409, 413, 415, 503),
                requestBody={"required": False, "content": _json(_ref("TopicConfig"))},
            ),
            "get": _operation(
                "one topic", {200: _answer("its state", _ref("TopicState"))}, (400, 404, 503)
            ),
            "delete": _operation(
                "delete a topic", {200: _answer("it is gone", _OPEN)}, (400, 404, 503)
            ),
            "post": _operation(
                "produce records; answered when they are durable",
                {200: _answer("stored, or deduped", _ref("Produced"))},
                (400, 404, 409, 412, 413, 415, 422, 429, 503),
                parameters=[
                    _query("create", "false: an unknown topic is 404 instead of made", _BOOLEAN),
                    _query("partition", "for bodies that cannot say it", _COUNT),
                    _query("key", "NDJSON and arrays: the field that is the key", _TEXT),
                    _query("idempotency_key", "for bodies that cannot say it", _TEXT),
                    _query("expected_seq", "for bodies that cannot say it", _OFFSET),
                ],
                requestBody={
                    "required": True,
                    "content": {
                        **_json({"oneOf": [_ref("Produce"), _list(_ANY, minItems=1)]}),
                        "application/x-ndjson": _BYTES,
                        "application/msgpack": _BYTES,
                        "application/octet-stream": _BYTES,
                    },
                },
            ),
        },
        "/v0/topics/{topic}/trim": {
            "parameters": [_TOPIC_PARAMETER],
            "post": _operation(
                "raise where a partition begins",
                {200: _answer("the partition as it is now", _ref("Trimmed"))},
                (400, 404, 413, 415, 503),
                requestBody={"required": True, "content": _json(_ref("Trim"))},
            ),
        },
        "/v0/topics/{topic}/diff": {
            "parameters": [_TOPIC_PARAMETER],
            "post": _operation(
                "records of a partition behind an offset, with a long poll",
                {200: _answer("records", _ref("DiffAnswer"))},
                (400, 404, 413, 415, 416, 503),
                requestBody={"required": False, "content": _json(_ref("Diff"))},
            ),
        },
        "/v0/plans": {
            "post": _operation(
                "what a bulk reader has to read, held from deletion for 5 minutes",
                {200: _answer("a page of the plan", _ref("Plan"))},
                (400, 404, 413, 415, 429, 503),
                requestBody={"required": True, "content": _json(_ref("PlanRequest"))},
            ),
        },
        "/v0/plans/{plan}": {
            "parameters": [_PLAN_PARAMETER],
            "put": _operation(
                "hold what was planned for another 5 minutes",
                {200: _answer("it is held", _ref("PlanRenewed"))},
                (404, 413, 503),
            ),
            "delete": _operation(
                "hold it no longer",
                {200: _answer("it is not held any more", _ref("PlanEnded"))},
                (404, 413, 503),
            ),
        },
    },
    "components": {"schemas": _SCHEMAS},
}
