"""``?key=FIELD``: the field of each record's data that is its key.

``a.b`` is the field of that name or, where there is none, the field ``b`` of the object ``a``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
from msgspec import Raw

from daemon.intake.formats.limits import place
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from daemon.schemas.errors import invalid

# There is one decoder per field name; a client that varies the name must not fill the memory.
_DECODERS_MAX = 64
_ABSENT = Raw()


class KeyField:
    """Takes keys out of JSON texts that are known to be valid."""

    __slots__ = ("_field_of", "_name", "_steps")

    def __init__(self, name: str) -> None:
        self._name = name
        self._field_of = _field_of(name)
        self._steps = [_field_of(each) for each in name.split(".")] if "." in name else []

    def of(self, data: str, where: dict[str, int]) -> str | None:
        """The key of a record: a string, or the text of a number. None if the field is absent or
        null, or the data is not an object. Raises ApiError 400 for any other type."""
        if not data.startswith("{"):
            return None
        found = self._field_of(data)
        if found is _ABSENT:
            if not self._steps:
                return None
            found = self._inside(data)
            if found is _ABSENT:
                return None
        text = str(found, "utf-8")
        if text[0] == '"':
            return self._checked(msgspec.json.decode(text, type=str), where)
        if text[0] in "-0123456789":
            return self._checked(text, where)
        if text == "null":
            return None
        raise invalid(
            f"the field {self._name!r} of {place(where)} is the key: it must be a string or a"
            " number",
            field=self._name,
            **where,
        )

    def _inside(self, data: str) -> Raw:
        found = _ABSENT
        for step in self._steps:
            if not data.startswith("{"):
                return _ABSENT
            found = step(data)
            if found is _ABSENT:
                return _ABSENT
            data = str(found, "utf-8")
        return found

    def _checked(self, key: str, where: dict[str, int]) -> str:
        if len(key) > LABEL_CHARACTERS_MAX:
            raise invalid(
                f"the field {self._name!r} of {place(where)} is the key: it has {len(key)}"
                f" characters, the limit is {LABEL_CHARACTERS_MAX}",
                field=self._name,
                limit=LABEL_CHARACTERS_MAX,
                **where,
            )
        return key


def _field_of(name: str) -> Callable[[str], Raw]:
    """Takes the member of that name out of an object's text; _ABSENT if there is none."""
    if '"' in name or "\\" in name:  # not possible as a field of a Struct
        every = msgspec.json.Decoder(dict[str, Raw])
        return lambda data: every.decode(data).get(name, _ABSENT)
    shape = msgspec.defstruct("Keyed", [("key", Raw, _ABSENT)], rename={"key": name}, gc=False)
    decoder = msgspec.json.Decoder(shape)
    return lambda data: decoder.decode(data).key  # type: ignore[attr-defined]  # made above


key_field = lru_cache(_DECODERS_MAX)(KeyField)
