"""What a type of the API allows, in words: for error messages and for the tables of the docs.

Pure functions of types (``msgspec.inspect``).
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def describe(type_: inspect.Type) -> str:
    """``integer from 1 to 1000``, ``one of "old", "reject"``, ``array of TopicState``."""
    if isinstance(type_, inspect.Metadata):
        return describe(type_.type)
    if isinstance(type_, inspect.UnionType):
        return " or ".join(describe(each) for each in type_.types)
    if isinstance(type_, inspect.IntType):
        return "integer" + _range(type_.ge, type_.le)
    if isinstance(type_, inspect.FloatType):
        return "number" + _range(type_.ge, type_.le)
    if isinstance(type_, inspect.BoolType):
        return "true or false"
    if isinstance(type_, inspect.StrType):
        return "string" + _length(type_.min_length, type_.max_length, "characters")
    if isinstance(type_, inspect.LiteralType):
        return "one of " + ", ".join(f'"{value}"' for value in type_.values)
    if isinstance(type_, inspect.NoneType):
        return "null"
    if isinstance(type_, inspect.ListType | inspect.VarTupleType):
        return f"array of {describe(type_.item_type)}" + _length(
            type_.min_length, type_.max_length, "elements"
        )
    if isinstance(type_, inspect.TupleType):
        return "[" + ", ".join(describe(each) for each in type_.item_types) + "]"
    if isinstance(type_, inspect.DictType):
        text = "object" + _length(type_.min_length, type_.max_length, "fields")
        if isinstance(type_.value_type, inspect.AnyType):
            return text
        return f"{text}, each value: {describe(type_.value_type)}"
    if isinstance(type_, inspect.StructType):
        return type_.cls.__name__
    return "any JSON value"


def type_at(type_: inspect.Type, path: str) -> inspect.Type:
    """The type at a path like ``.records[0].ts``; as far as the path can be followed."""
    for name, _ in _STEP.findall(path):
        found = next(filter(None, (_step(each, name) for each in _alternatives(type_))), None)
        if found is None:
            break
        type_ = found
    return type_


def _step(type_: inspect.Type, name: str) -> inspect.Type | None:
    """The type of a member, or of what is at an index if ``name`` is empty."""
    if isinstance(type_, inspect.StructType) and name:
        return next((each.type for each in type_.fields if each.encode_name == name), None)
    if isinstance(type_, inspect.ListType | inspect.VarTupleType):
        return type_.item_type
    return type_.value_type if isinstance(type_, inspect.DictType) else None


def _alternatives(type_: inspect.Type) -> list[inspect.Type]:
    """The types that a value may have, without descriptions."""
    if isinstance(type_, inspect.Metadata):
        return _alternatives(type_.type)
    if isinstance(type_, inspect.UnionType):
        return [found for each in type_.types for found in _alternatives(each)]
    return [type_]


def value_at(value: Any, path: str) -> Any:
    """The value at a path. Raises LookupError where the path does not name one."""
    for name, index in _STEP.findall(path):
        if index == "...":
            raise LookupError(path)
        try:
            value = value[name] if name else value[int(index)]
        except (TypeError, KeyError, IndexError) as error:
            raise LookupError(path) from error
    return value


def kind(type_: inspect.Type) -> type[inspect.Type]:
    """The kind of a value that is not null: the first of several."""
    return next(kind for kind in map(type, _alternatives(type_)) if kind is not inspect.NoneType)


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None and high < (1 << 62):
        return f" from {_number(low)} to {_number(high)}"
    return "" if low is None else f" of at least {_number(low)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _length(low: int | None, high: int | None, what: str) -> str:
    if low is not None and high is not None:
        return f" with {low} to {high} {what}"
    if high is not None:
        return f" with at most {high} {what}"
    return "" if low is None else f" with at least {low} {what[:-1] if low == 1 else what}"
