"""A checker for the part of JSON Schema that the API's document uses.

Any other keyword in a schema is an error, so that nothing only seems to be checked. These 60 lines
replace a dependency for one test.
"""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,),
    "number": (int, float), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
_NOTES = {"title", "description", "default", "format"}


class Mismatch(AssertionError):
    """A value that its schema does not allow, and where."""


def check(value: Any, schema: dict[str, Any], document: dict[str, Any], at: str = "$") -> None:
    """Raises Mismatch; ``document`` holds the components that ``$ref`` names."""
    if "$ref" in schema:
        check(value, resolve(schema, document), document, at)
        return
    for keyword, wanted in schema.items():
        if keyword in _NOTES or keyword == "required":
            continue
        if keyword == "type":
            _check_type(value, wanted, at)
        elif keyword == "enum":
            _must(value in wanted, at, f"{value!r} is none of {wanted}")
        elif keyword == "pattern":
            _must(re.search(wanted, value) is not None, at, f"{value!r} does not match {wanted}")
        elif keyword == "minimum":
            _must(value >= wanted, at, f"{value} is below {wanted}")
        elif keyword == "maximum":
            _must(value <= wanted, at, f"{value} is above {wanted}")
        elif keyword == "minItems":
            _must(len(value) >= wanted, at, f"{len(value)} items, at least {wanted}")
        elif keyword == "maxItems":
            _must(len(value) <= wanted, at, f"{len(value)} items, at most {wanted}")
        elif keyword == "minLength":
            _must(len(value) >= wanted, at, f"{len(value)} characters, at least {wanted}")
        elif keyword == "maxLength":
            _must(len(value) <= wanted, at, f"{len(value)} characters, at most {wanted}")
        elif keyword == "maxProperties":
            _must(len(value) <= wanted, at, f"{len(value)} fields, at most {wanted}")
        elif keyword == "prefixItems":
            for index, (item, inner) in enumerate(zip(value, wanted, strict=True)):
                check(item, inner, document, f"{at}[{index}]")
        elif keyword == "items":
            for index, item in enumerate(value if wanted is not False else ()):
                check(item, wanted, document, f"{at}[{index}]")
        elif keyword == "properties":
            _check_properties(value, schema, document, at)
        elif keyword == "additionalProperties":
            if isinstance(wanted, dict):
                for name in value.keys() - schema.get("properties", {}).keys():
                    check(value[name], wanted, document, f"{at}.{name}")
        elif keyword == "anyOf":
            fits = any(_matches(value, each, document) for each in wanted)
            _must(fits, at, f"{value!r} matches none of the alternatives")
        elif keyword == "oneOf":
            matching = sum(_matches(value, each, document) for each in wanted)
            _must(matching == 1, at, f"{matching} of {len(wanted)} alternatives match {value!r}")
        else:
            raise NotImplementedError(f"the schema keyword {keyword!r} at {at}")


def resolve(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """What a ``$ref`` names."""
    found: Any = document
    for part in schema["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    assert isinstance(found, dict)
    return found


def _check_type(value: Any, wanted: str | list[str], at: str) -> None:
    names = [wanted] if isinstance(wanted, str) else wanted
    fits = any(
        isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
        for name in names
    )
    _must(fits, at, f"{value!r} is not {' or '.join(names)}")


def _check_properties(
    value: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], at: str
) -> None:
    for name in schema.get("required", ()):
        _must(name in value, at, f"{name!r} is missing")
    for name, inner in value.items():
        if name in schema["properties"]:
            check(inner, schema["properties"][name], document, f"{at}.{name}")
        else:
            _must(
                schema.get("additionalProperties", True) is not False,
                at,
                f"{name!r} is not in the schema",
            )


def _matches(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    try:
        check(value, schema, document)
    except Mismatch:
        return False
    return True


def _must(holds: bool, at: str, message: str) -> None:
    if not holds:
        raise Mismatch(f"at {at}: {message}")
