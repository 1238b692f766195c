"""The tables of docs/http-api.md and docs/observability/README.md, generated from the code.

``python -m daemon.api.api_docs docs/http-api.md`` rewrites the tables of a page; a test compares.
A table is between a comment that names it and ``<!-- end -->``: ``<!-- routes: /v0/topics -->``
lists the routes whose path begins so, but for those of a longer prefix on the page,
``<!-- struct: TopicState -->`` the fields of a type and of the types inside it that the page has
not shown yet, ``<!-- metrics: headgate_ -->`` the metrics
whose name begins so, ``<!-- stages: all -->`` the stages of latency.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from daemon.api import push_schemas, schemas, shapes, subscription_schemas
from daemon.api.metric_table import METRICS
from daemon.api.route import Route
from daemon.api.routes import ROUTES
from delivery.push import schemas as pushed_schemas
from delivery.routers import schemas as router_schemas
from delivery.subscriptions import schemas as owner_schemas
from shards.latency import MEANINGS

_BLOCK = re.compile(
    r"(<!-- (routes|struct|metrics|stages): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def with_tables(page: str) -> str:
    """The page with its tables as they must be."""
    shown: set[type] = set()
    prefixes = [name for _, kind, name, _ in _BLOCK.findall(page) if kind == "routes"]

    def block(match: re.Match[str]) -> str:
        opening, kind, name, end = match.groups()
        if kind == "struct":
            lines = _struct(_named(name), shown)
        elif kind == "routes":
            lines = _routes(name, prefixes)
        else:
            lines = {"metrics": _metrics, "stages": _stages}[kind](name)
        return "\n".join([opening, *lines, "", end])

    return _BLOCK.sub(block, page)


def _named(name: str) -> type:
    """The type of this name in one of the modules that define some."""
    modules = (
        schemas,
        router_schemas,
        subscription_schemas,
        owner_schemas,
        push_schemas,
        pushed_schemas,
    )
    found: type = next(getattr(each, name) for each in modules if hasattr(each, name))
    return found


def _routes(prefix: str, prefixes: list[str]) -> Iterator[str]:
    """The routes of a prefix, but for those of a longer one on the page."""
    others = tuple(each for each in prefixes if each != prefix and each.startswith(prefix))
    yield "| request | what it does | body | answer | errors |"
    yield "|---|---|---|---|---|"
    for route in ROUTES:
        if route.path.startswith(prefix) and not route.path.startswith(others):
            yield _route_row(route)


def _metrics(prefix: str) -> Iterator[str]:
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in METRICS:
        if metric.name.startswith(prefix):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.says} |"


def _stages(_: str) -> Iterator[str]:
    yield "| stage | what it is |"
    yield "|---|---|"
    for stage, meaning in MEANINGS.items():
        yield f"| `{stage.name.lower()}` | {meaning} |"


def _route_row(route: Route) -> str:
    path = route.path.replace("{topic}", "{t}").replace("{plan}", "{p}")
    path = path.replace("{subscription}", "{s}")
    body = _type(inspect.type_info(route.body)) if route.body is not None else ""
    answers = dict.fromkeys(
        _type(inspect.type_info(type_))
        for answer in route.answers.values()
        for type_ in (answer if isinstance(answer, tuple) else (answer,))
    )
    answers |= dict.fromkeys(f"a stream of `{kind}`" for kind in route.streams)
    answers |= dict.fromkeys(f"`{kind}`" for kind in route.texts)
    errors = ", ".join(map(str, route.errors))
    return (
        f"| `{route.method} {path}` | {route.summary} | {body} | {' or '.join(answers)}"
        f" | {errors} |"
    )


def _struct(type_: Any, shown: set[type]) -> Iterator[str]:
    """The table of a type, then those of the types inside it."""
    shown.add(type_)
    info = inspect.type_info(type_)
    assert isinstance(info, inspect.StructType)
    is_query = type_.__name__.endswith(("Query", "Headers"))
    is_request = info.forbid_unknown_fields or is_query
    yield f"**`{type_.__name__}`**: {_text(type_.__doc__)}"
    yield ""
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    inside: list[type] = []
    for field in info.fields:
        allowed = _type(field.type)
        if is_query:
            allowed = allowed.removesuffix(" or null")  # a parameter is absent, never null
        if is_request:
            allowed += _default(field)
        yield f"| `{field.encode_name}` | {allowed} | {_description(field.type)} |"
        inside += _structs(field.type)
    for each in dict.fromkeys(inside):
        if each not in shown:
            yield ""
            yield from _struct(each, shown)


def _default(field: inspect.Field) -> str:
    if field.required:
        return "; required"
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is None or default is msgspec.NODEFAULT:
        return ""
    return f"; default `{msgspec.json.encode(default).decode()}`"


def _type(type_: inspect.Type) -> str:
    text = shapes.describe(type_)
    return re.sub(r"\b[A-Z][a-z]\w+", r"`\g<0>`", text).replace("|", "\\|")


def _description(type_: inspect.Type) -> str:
    if isinstance(type_, inspect.Metadata):
        return (type_.extra_json_schema or {}).get("description") or _description(type_.type)
    if isinstance(type_, inspect.UnionType):
        return next(filter(None, map(_description, type_.types)), "")
    return ""


def _structs(type_: inspect.Type) -> Iterator[type]:
    """The Structs inside a type."""
    if isinstance(type_, inspect.Metadata):
        yield from _structs(type_.type)
    elif isinstance(type_, inspect.UnionType):
        for each in type_.types:
            yield from _structs(each)
    elif isinstance(type_, inspect.ListType | inspect.VarTupleType):
        yield from _structs(type_.item_type)
    elif isinstance(type_, inspect.DictType):
        yield from _structs(type_.value_type)
    elif isinstance(type_, inspect.StructType):
        yield type_.cls


def _text(doc: str | None) -> str:
    return " ".join((doc or "").replace("``", "`").split())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(with_tables(path.read_text()))
