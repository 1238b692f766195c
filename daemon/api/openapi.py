"""``/openapi.json``: the API as OpenAPI 3.1, made from the table of routes and the Structs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

from daemon.api.route import Route
from daemon.api.routes import ROUTES
from daemon.schemas.api import ErrorAnswer
from daemon.schemas.names import TOPIC_NAME

Schema = dict[str, Any]

_ERRORS: dict[int, str] = {
    400: "the request is wrong; nothing was stored",
    401: "unauthenticated: a token that is in force is needed",
    403: "forbidden: the token does not allow this, or not for this topic; nothing was changed",
    404: "there is no such topic, subscription, router, cursor, plan or path, or no such blocked"
    " message",
    406: "not_acceptable: no format of a stream is acceptable to the client",
    409: "table_name_taken, router_cycle, router_bound, routers_full, subscriptions_full,"
    " dead_letter_cycle, dead_letter_topic, moving, not_finished, quarantined, cursors_full,"
    " stale_epoch, push_subscription, not_pushed or secret_missing; nothing was changed",
    412: "expected_seq does not hold, or a cursor is not where it is expected; nothing was stored",
    413: "a body, record or count is over its limit; nothing was stored",
    415: "the content type or encoding is not supported; nothing was stored",
    416: "offset_out_of_range: from_seq is greater than head_seq",
    422: "topic_full or partitions_full: a cap of a topic that rejects, or of all partitions;"
    " idempotency_key_reused: other records have this key; nothing was stored",
    429: "throttled, over_limit, too_many_consumers, too_many_filters or push_limited; nothing was"
    " or will be stored, send it again after Retry-After",
    503: "not now; nothing was or will be stored, send it again after Retry-After",
    504: "outcome_unknown: not durable within ack_timeout_ms, and it may be stored; send it again"
    " with the same idempotency key",
}
_PARAMETERS: dict[str, Schema] = {
    "topic": {"type": "string", "pattern": f"^{TOPIC_NAME.pattern}$"},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document; internal routes are not in it."""
    routes = [route for route in routes if not route.is_internal]
    types: list[Any] = [ErrorAnswer]
    for route in routes:
        types += [each for answer in route.answers.values() for each in _alternatives(answer)]
        types += [each for each in (route.body, route.error) if each is not None]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    for schema in components.values():
        if "properties" in schema and schema.get("additionalProperties") is not False:
            _all_there(schema)
    schema_of = {id(type_): schema for type_, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Schema] = {}
    for route in routes:
        item = paths.setdefault(route.path, _path_item(route.path))
        item[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": "0",
            "description": "Durable topics on object storage, over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _all_there(answer: Schema) -> None:
    """An answer has its fields also where they are as by default."""
    names = answer["properties"]
    there = {*answer.get("required", ())} | {name for name in names if "default" in names[name]}
    answer["required"] = [name for name in names if name in there]


def _path_item(path: str) -> Schema:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PARAMETERS.get(name, {"type": "string"}),
        }
        for name in re.findall(r"{(\w+)}", path)
    ]
    return {"parameters": parameters} if parameters else {}


def _operation(route: Route, schema_of: dict[int, Schema]) -> Schema:
    responses = {
        str(status): _answer(
            " Or: ".join(map(_summary_of, _alternatives(answer))),
            _one_of([schema_of[id(type_)] for type_ in _alternatives(answer)]),
        )
        for status, answer in route.answers.items()
    }
    if route.streams:
        also = responses.get("200", {"description": "", "content": {}})
        responses["200"] = {
            "description": also["description"]
            + " A stream that goes on until one side closes: "[not also["description"] :]
            + "; ".join(f"{kind}: {what}" for kind, what in route.streams.items()),
            "content": also["content"]
            | {kind: {"schema": {"type": "string"}} for kind in route.streams},
        }
    if route.texts:
        responses["200"] = {
            "description": "By the header Accept: "
            + "; ".join(f"{kind}: {what}" for kind, what in route.texts.items()),
            "content": {kind: {"schema": {"type": "string"}} for kind in route.texts},
        }
    errors = [schema_of[id(each)] for each in (ErrorAnswer, route.error) if each is not None]
    for status in (*(() if route.is_open else (401, 403)), *route.errors):
        responses[str(status)] = _answer(_ERRORS[status], _one_of(errors))
    operation: Schema = {"summary": route.summary, "responses": responses}
    if not route.is_open:
        # {}: a daemon without an auth_file asks for none.
        operation["security"] = [{"token": [*route.scopes]}, {}]
    parameters = _parameters("query", route.query) + _parameters("header", route.headers)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[id(route.body)]}}
        binary = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {
            "required": route.body_required,
            "content": content | dict.fromkeys(route.other_content_types, binary),
        }
    return operation


def _parameters(place: str, type_: Any) -> list[Schema]:
    """The fields of a type as parameters."""
    if type_ is None:
        return []
    (_, components) = msgspec.json.schema_components([type_])
    return [
        {
            "name": name,
            "in": place,
            "description": schema.pop("description", ""),
            "schema": schema,
        }
        for name, nullable in components[type_.__name__]["properties"].items()
        for schema in [_not_null(nullable)]
    ]


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _not_null(schema: Schema) -> Schema:
    """A parameter's schema: one that is not given is absent, never null."""
    present = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return dict(present[0]) if len(present) == 1 else dict(schema)


def _alternatives(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def _one_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"oneOf": schemas}


def _summary_of(type_: Any) -> str:
    """The first sentence of the docstring of an answer's type."""
    info = inspect.type_info(type_)
    text = info.cls.__doc__ if isinstance(info, inspect.StructType) else None
    return " ".join((text or "JSON.").split()).partition(". ")[0].removesuffix(".") + "."


def encoded() -> bytes:
    """The document of all routes as JSON. It takes about 0.2 s, a third of a shard's start."""
    return msgspec.json.encode(document(ROUTES))
