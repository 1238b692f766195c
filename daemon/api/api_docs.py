"""The generated parts of docs/http-api.md and docs/observability/README.md.

``python -m daemon.api.api_docs docs/http-api.md`` rewrites those of a page; a test compares.
A part is between a comment that names it and ``<!-- end -->``: ``<!-- routes: /v0/topics -->``
lists the routes whose path begins so, except those of a longer prefix on the page,
``<!-- struct: TopicState -->`` the fields of one or more types and of those inside them that the
page has not shown yet, ``<!-- metrics: headgate_ -->`` the metrics whose name begins so,
``<!-- stages: all -->`` the stages of latency. A page says things once: fields that an earlier type
has too refer to it, those of the status to their metrics, and routes name only the statuses that
not every route may answer. A scope that all routes of a list need is above it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from daemon.access.token_file import Scope
from daemon.api.figures.metric_table import METRICS
from daemon.api.route import Route
from daemon.api.routes import ROUTES
from daemon.schemas import api as schemas
from daemon.schemas import bill as bill_schemas
from daemon.schemas import foreign as foreign_schemas
from daemon.schemas import hooks as hook_schemas
from daemon.schemas import kafka as kafka_schemas
from daemon.schemas import overview as overview_schemas
from daemon.schemas import push as push_schemas
from daemon.schemas import shapes
from daemon.schemas import standby as standby_schemas
from daemon.schemas import status as status_schemas
from daemon.schemas import subscriptions as subscription_schemas
from daemon.schemas import topic_settings as topic_schemas
from delivery.routers import schemas as router_schemas
from delivery.subscriptions import schemas as owner_schemas
from shards.boards.figures import figures_of
from shards.latency import MEANINGS

# What a type of the page says of its fields, by their names.
_Shown = dict[type, dict[str, str]]

_AS_IN_MIN = 2  # one explained field is quicker read than looked up,
_LONG_WORDS = 9  # unless its explanation is long
_EVERY_ROUTE = {400, 503}  # what any route may answer
_WITH_BODY = {413, 415}  # and any that takes a body

# Types with figures that the page of metrics explains, if they have a metric.
_WITH_METRICS = (bill_schemas, kafka_schemas, standby_schemas, status_schemas)

# What the top of docs/http-api.md says of all such fields.
_SAID_ONCE = {"asks for the next page; null: no more", "epoch milliseconds"}

_BLOCK = re.compile(
    r"(<!-- (routes|struct|metrics|stages): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL
)


def with_tables(page: str) -> str:
    """The page with its tables as they must be."""
    shown: _Shown = {}
    prefixes = [name for _, kind, name, _ in _BLOCK.findall(page) if kind == "routes"]

    def block(match: re.Match[str]) -> str:
        opening, kind, name, end = match.groups()
        if kind == "struct":
            lines = _structs_named(name, shown)
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
        hook_schemas,
        topic_schemas,
        router_schemas,
        subscription_schemas,
        owner_schemas,
        push_schemas,
        overview_schemas,
        foreign_schemas,
    )
    found: type = next(getattr(each, name) for each in modules if hasattr(each, name))
    return found


def _routes(prefix: str, prefixes: list[str]) -> Iterator[str]:
    """The routes of a prefix, except those of a longer one on the page."""
    others = tuple(each for each in prefixes if each != prefix and each.startswith(prefix))
    rows: dict[tuple[str, ...], list[str]] = {}
    for route in ROUTES:
        if route.path.startswith(prefix) and not route.path.startswith(others):
            rows.setdefault(_route_row(route), []).append(route.method)
    every_scope = {scopes for *_, scopes in rows}
    if len(every_scope) == 1:
        yield f"Scope: {every_scope.pop()}."
        yield ""
        every_scope.clear()
    for (path, does, exchange, errors, scopes), methods in rows.items():
        allowed = f" ({scopes})" if every_scope else ""
        refused = f"; {errors}" if errors else ""
        yield f"- `{' or '.join(methods)} {path}`{allowed}: {does}{exchange}{refused}"


def _metrics(prefix: str) -> Iterator[str]:
    """The metrics by their labels. A counter's name tells it; other kinds than gauges are named."""
    shown = [metric for metric in METRICS if metric.name.startswith(prefix)]
    by_labels = sorted({tuple(metric.labels) for metric in shown})
    for number, labels in enumerate(by_labels):
        if number:
            yield ""
        yield f"By {', '.join(f'`{label}`' for label in labels)}:" if labels else "Of the daemon:"
        yield ""
        for metric in shown:
            if tuple(metric.labels) == labels:
                kind = "" if metric.kind in ("counter", "gauge") else f" ({metric.kind})"
                yield f"- `{metric.name}`{kind}: {metric.says}"


def _stages(_: str) -> Iterator[str]:
    yield "| stage | what it is |"
    yield "|---|---|"
    for stage, meaning in MEANINGS.items():
        yield f"| `{stage.name.lower()}` | {meaning} |"


def _route_row(route: Route) -> tuple[str, ...]:
    """Path, summary, body and answer, errors and scopes."""
    path = route.path.replace("{topic}", "{t}").replace("{plan}", "{p}")
    path = path.replace("{subscription}", "{s}")
    body = ". " + _type(inspect.type_info(route.body)) if route.body is not None else ""
    answers = dict.fromkeys(
        _type(inspect.type_info(type_))
        for answer in route.answers.values()
        for type_ in (answer if isinstance(answer, tuple) else (answer,))
    )
    answers |= dict.fromkeys("a [stream](#streams)" for _ in route.streams)
    answers |= dict.fromkeys(f"`{kind}`" for kind in route.texts)
    errors = ", ".join(map(str, sorted({*route.errors} - _EVERY_ROUTE - _WITH_BODY)))
    scopes = " or ".join(f"`{scope}`" for scope in route.scopes)
    if route.is_open:
        scopes = "-"
    elif len(route.scopes) == len(Scope):
        scopes = "any"
    if route.concerns_all_topics:
        scopes += ", of all topics"
    return path, route.summary, f"{body} → {' or '.join(answers)}", errors, scopes


def _structs_named(names: str, shown: _Shown) -> Iterator[str]:
    for number, name in enumerate(names.split()):
        if number:
            yield ""
        yield from _struct(_named(name), shown)


def _struct(type_: Any, shown: _Shown) -> Iterator[str]:
    """A type's fields, then those of the types inside it."""
    info = inspect.type_info(type_)
    assert isinstance(info, inspect.StructType)
    yield f"**`{type_.__name__}`**: {_text(type_.__doc__)}"
    yield ""
    facts = {field.encode_name: _fact(field) for field in info.fields}
    left = dict.fromkeys(facts)
    for other, same in _as_in(facts, shown):
        yield f"- {_same_fields(same, shown[other])}: as in `{other.__name__}`"
        for name in same:
            del left[name]
    shown[type_] = facts
    is_query = type_.__name__.endswith(("Query", "Headers"))
    measured = _metrics_of(type_)
    referred: list[str] = []
    explained: dict[tuple[str, str], list[str]] = {}
    plain: dict[str, list[str]] = {}
    inside: list[type] = []
    for field in info.fields:
        inside += _structs(field.type)
        if field.encode_name not in left:
            continue
        allowed = _type(field.type)
        if is_query:
            allowed = _without_null(allowed)  # a parameter is absent, never null
        if info.forbid_unknown_fields or is_query:
            allowed += _default(field)
        else:
            allowed = allowed.replace(" ≥ 0", "")  # no count or offset is negative
            allowed = "" if allowed == "integer" else allowed  # as the top of the page says
        meaning = _description(field.type)
        if field.encode_name in measured:
            kind = ", ".join(filter(None, [allowed, f"`{measured[field.encode_name]}`"]))
            referred.append(f"`{field.encode_name}` ({kind})")
        elif meaning and meaning not in _SAID_ONCE:
            explained.setdefault((allowed, meaning), []).append(f"`{field.encode_name}`")
        else:
            plain.setdefault(allowed, []).append(f"`{field.encode_name}`")
    for (allowed, meaning), fields in explained.items():
        yield f"- {_of_type(fields, allowed)}: {meaning}"
    if referred:
        yield f"- metrics: {', '.join(referred)}"
    if plain:
        yield "- " + "; ".join(_of_type(each, allowed) for allowed, each in plain.items())
    for each in dict.fromkeys(inside):
        if each not in shown:
            yield ""
            yield from _struct(each, shown)


def _of_type(fields: list[str], allowed: str) -> str:
    return ", ".join(fields) + (f" ({allowed})" if allowed else "")


def _metrics_of(type_: type) -> dict[str, str]:
    """The fields of a type that their metrics explain in the same words, with these."""
    if type_.__module__ not in {module.__name__ for module in _WITH_METRICS}:
        return {}
    return {
        name: found.metric.name
        for name, (found, _) in figures_of(type_).items()
        if found.metric is not None and found.metric.says == found.says
    }


def _fact(field: inspect.Field) -> str:
    """What tells a field from one of the same name in another type."""
    return f"{_without_null(_type(field.type))}: {_description(field.type)}"


def _as_in(facts: dict[str, str], shown: _Shown) -> Iterator[tuple[type, list[str]]]:
    """Types of the page that have the same fields, and which: the one with the most first."""
    left = set(facts)
    while True:
        shared = {
            other: [name for name in facts if name in left and known.get(name) == facts[name]]
            for other, known in shown.items()
        }
        worth = {
            other: sum(_worth(facts[name]) for name in names) for other, names in shared.items()
        }
        other = max(worth, key=worth.__getitem__, default=None)
        if other is None or worth[other] < _AS_IN_MIN:
            return
        yield other, shared[other]
        left -= {*shared[other]}


def _worth(fact: str) -> int:
    """What it is worth to say a field's fact once: nothing where there is no explanation."""
    words = len(fact.partition(": ")[2].split())
    return _AS_IN_MIN if words >= _LONG_WORDS else int(words > 0)


def _same_fields(same: list[str], known: dict[str, str]) -> str:
    """Names of fields that a type has from another one: those that it has not, if these are few."""
    missing = [f"`{name}`" for name in known if name not in same]
    if 2 * len(missing) >= len(same):
        return ", ".join(f"`{name}`" for name in same)
    return "all fields but " + ", ".join(missing) if missing else "all fields"


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
    text = shapes.describe(type_).replace("true or false", "boolean")
    text = text.replace("any JSON value", "any JSON").replace(str(1 << 53), "2^53")
    text = text.replace("object, each value: ", "object of ")
    text = re.sub(r"(integer|number) of at least (-?\d+)", r"\1 ≥ \2", text)
    text = re.sub(r"(integer|number) from (\S+) to (\S+)", r"\1 \2 to \3", text)
    text = re.sub(r"string with at most (\d+) characters", r"string ≤ \1", text)
    text = re.sub(r"string with (\d+) to (\d+) characters", r"string \1 to \2", text)
    text = re.sub(r" with at most (\d+) elements", r", at most \1", text)
    text = re.sub(r"\b[A-Z][a-z]\w+", r"`\g<0>`", text)
    text = re.sub(r"\barray of (\S+?)(?=,|$| with| or)", r"\1[]", text)
    return re.sub(r"^(\S+) or null$", r"\1?", text).replace("|", "\\|")


def _without_null(text: str) -> str:
    return text.removesuffix("?").removesuffix(" or null")


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
