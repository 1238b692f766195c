"""``?key=FIELD``: the field of each record's data that is its key."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Raw

from daemon.bodies.limits import place
from daemon.errors import invalid

# One decoder is built per field name; a client that varies the name must not fill the memory.
_DECODERS_MAX = 64
_ABSENT = Raw()


class KeyField:
    """Takes keys out of JSON texts that are known to be valid."""

    __slots__ = ("_decoder", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        shape = msgspec.defstruct("Keyed", [("key", Raw, _ABSENT)], rename={"key": name}, gc=False)
        self._decoder = msgspec.json.Decoder(shape)

    def of(self, data: str, where: dict[str, int]) -> str | None:
        """The key of a record: a string, or a number's text; None when the field is absent or
        null, or the data is no object. Raises ApiError 400 for any other type."""
        if not data.startswith("{"):
            return None
        found: Raw = self._decoder.decode(data).key  # type: ignore[attr-defined]  # made above
        if found is _ABSENT:
            return None
        text = str(found, "utf-8")
        if text[0] == '"':
            return msgspec.json.decode(text, type=str)
        if text[0] in "-0123456789":
            return text
        if text == "null":
            return None
        raise invalid(
            f"the field {self._name!r} of {place(where)} is the key, so it must be a string or"
            " a number",
            field=self._name,
            **where,
        )


key_field = lru_cache(_DECODERS_MAX)(KeyField)
