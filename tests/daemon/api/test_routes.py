"""The table of routes fits the handlers: their arguments, and the types that they return."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from daemon.api.handlers.topics import Created
from daemon.api.openapi import document
from daemon.api.route import Handlers, Route
from daemon.api.routes import ROUTES
from daemon.api.streaming import EncodedJson, Streaming, Text

# The classes in place of their objects: their functions are looked at, not called.
CLASSES: Any = SimpleNamespace(**get_type_hints(Handlers))
HANDLED = {
    f"{route.method} {route.path}": (route, route.handler(CLASSES))
    for route in ROUTES
    if route.handler is not None
}


def test_a_method_of_a_path_has_one_row() -> None:
    rows = [(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in ROUTES]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(("route", "handler"), HANDLED.values(), ids=HANDLED)
def test_a_handler_takes_the_paths_values_the_query_the_headers_and_the_body(
    route: Route, handler: Any
) -> None:
    given = route.path.count("{") + sum(
        each is not None for each in (route.query, route.headers, route.body)
    )
    given += route.gets_rights
    _, *taken = inspect.signature(handler).parameters.values()
    assert len(taken) == given


@pytest.mark.parametrize(("route", "handler"), HANDLED.values(), ids=HANDLED)
def test_a_handler_returns_the_types_that_its_row_promises(route: Route, handler: Any) -> None:
    returned = get_type_hints(handler)["return"]
    types = set(get_args(returned)) if get_origin(returned) in (UnionType, Union) else {returned}
    types = {get_args(each)[0] if get_origin(each) is EncodedJson else each for each in types}
    assert types - {Created, Streaming, Text} == set(
        map(route.answers.get, {200} & {*route.answers})
    )
    assert (Streaming in types) == bool(route.streams)
    assert (Text in types) == bool(route.texts)
    assert (Created in types) == (201 in route.answers)


def test_a_query_parameter_of_the_document_is_described_and_is_never_null() -> None:
    found = [
        parameter
        for item in document(ROUTES)["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict)
        for parameter in operation.get("parameters", ())
    ]
    assert {"limit", "partition", "ack_timeout_ms"} <= {parameter["name"] for parameter in found}
    for parameter in found:
        assert parameter["description"] and "anyOf" not in parameter["schema"], parameter
