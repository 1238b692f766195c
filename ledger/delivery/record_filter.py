"""Which records a router copies, and which a subscription delivers: the setting ``filter``.

How records are compared with it is in ``delivery/filters.py``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

WHERE_MAX = 8  # each is looked up in each record
WHERE_CHARACTERS_MAX = 256

Pattern = Annotated[
    str, Meta(max_length=1_024, description="exact text, or a pattern with `*` and `?`")
]
Where = Annotated[
    tuple[Annotated[str, Meta(max_length=WHERE_CHARACTERS_MAX)], ...],
    Meta(
        max_length=WHERE_MAX,
        description="conditions `FIELD=PATTERN` on the data, such as `status=paid`: the field"
        " is a text, a number, true, false or null that matches",
    ),
]


class RecordFilter(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Records that match every pattern and every condition that is given."""

    tag: Pattern | None = None
    node: Pattern | None = None
    key: Pattern | None = None
    where: Where = ()

    def __bool__(self) -> bool:
        """Whether anything is given."""
        return self != NO_FILTER


NO_FILTER = RecordFilter()
