"""What a handler returns: the Struct that is the answer, for 200, or Created of it, for 201."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class Created(NamedTuple):
    """An answer with the status 201."""

    document: Struct
