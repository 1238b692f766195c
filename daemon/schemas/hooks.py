"""Hooks, requests of others that are stored as they came: what their URL says."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from daemon.schemas.api import LABEL_CHARACTERS_MAX, ProduceOptions

HEADERS_MAX = 32  # that a URL can name; more do not fit into what most senders allow for it


class HookQuery(ProduceOptions, kw_only=True):
    """The query of a hook: how what comes is stored."""

    create: Annotated[bool, Meta(description="false: 404 for a topic that does not exist")] = True
    header: Annotated[
        list[str],
        Meta(
            max_length=HEADERS_MAX,
            description="a header to keep in the record's `meta`; repeatable",
        ),
    ] = field(default_factory=list)
    key: (
        Annotated[
            str,
            Meta(
                max_length=LABEL_CHARACTERS_MAX,
                description="the field of JSON data that is the record's key",
            ),
        ]
        | None
    ) = None
    tag: (
        Annotated[
            str,
            Meta(
                max_length=LABEL_CHARACTERS_MAX,
                description="of the record; by default the kind of event that a header names",
            ),
        ]
        | None
    ) = None
    node: (
        Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX, description="of the record")] | None
    ) = None
