"""The settings of a subscription, as consumers of all kinds need them, and what each mode is.

Whoever depends on the mode asks ``MODES``, by what a mode is and not by its name. Only the table of
windows (``delivery/subscriptions/window/windows.py``) has the names again.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Protocol

from msgspec import Meta, Struct

from ledger.delivery.record_filter import RecordFilter

Mode = Literal["key_shared", "shared", "exclusive"]
Poison = Literal["block", "drop", "dead_letter"]
Unmatched = Literal["hold", "skip"]
KeyFallback = Literal["none", "node"]
Order = Literal["key", "partition", "none"]


class ModeFacts(NamedTuple):
    """What a mode is."""

    order: Order  # messages of one key, or of one partition, are dealt with one after the other
    one_consumer: bool  # one gets everything, the others stand by; else all share the messages

    @property
    def is_keyed(self) -> bool:
        """Whether keys mean something: who gets a message, and what waits for what."""
        return self.order == "key"


MODES: dict[Mode, ModeFacts] = {
    "key_shared": ModeFacts("key", one_consumer=False),
    "shared": ModeFacts("none", one_consumer=False),
    "exclusive": ModeFacts("partition", one_consumer=True),
}

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


class Keyed(Protocol):
    """What has a key, or a node that may count as it."""

    @property
    def key(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...


class SubscriptionRules(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a subscription, except where it is pushed."""

    mode: Annotated[
        Mode,
        Meta(
            description="`key_shared`: consumers share the keys, each in order; `shared`:"
            " they share messages, without an order; `exclusive`: one gets all, in"
            " order"
        ),
    ] = "key_shared"
    reliable: Annotated[
        bool,
        Meta(description="false: nothing is acknowledged or sent again"),
    ] = True
    ack_timeout_ms: Annotated[
        Milliseconds,
        Meta(description="how long a consumer may take for a message; then it is sent again"),
    ] = 30_000
    redeliveries_max: Annotated[
        int,
        Meta(ge=0, le=1_000, description="how often a message is sent again, before `poison`"),
    ] = 5
    backoff_ms: Annotated[
        tuple[Milliseconds, Milliseconds],
        Meta(
            description="the pause before a message is sent again: the first, doubled each"
            " time up to the second"
        ),
    ] = (1_000, 60_000)
    poison: Annotated[
        Poison,
        Meta(
            description="for a message that was sent too often: `block` (its key waits for an"
            " operator), `drop`, or `dead_letter` (a copy in `dead_letter_topic`)"
        ),
    ] = "block"
    dead_letter_topic: (
        Annotated[str, Meta(description="a topic that exists; for `poison` = `dead_letter`")] | None
    ) = None
    window_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="messages that all consumers have at a time"),
    ] = 10_000
    consumer_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="messages that one consumer has at a time"),
    ] = 1_000
    unmatched: Annotated[
        Unmatched,
        Meta(
            description="a key that no consumer's filter matches waits (`hold`) or counts as"
            " finished (`skip`)"
        ),
    ] = "hold"
    key_fallback: Annotated[
        KeyFallback,
        Meta(
            description="with `key_shared`: the key of a message without one: none, or its `node`"
        ),
    ] = "none"
    filter: (
        Annotated[
            RecordFilter,
            Meta(
                description="which records are delivered; all others are finished. null or"
                " empty: all"
            ),
        ]
        | None
    ) = None
    paused: Annotated[bool, Meta(description="nothing is sent while it is")] = False
    paused_because: Annotated[
        str, Meta(description="why the daemon itself has paused it; empty: it has not")
    ] = ""

    @property
    def mode_facts(self) -> ModeFacts:
        """What the mode is."""
        return MODES[self.mode]

    @property
    def takes_nodes(self) -> bool:
        """Whether the node of a message without a key counts as its key."""
        return self.mode_facts.is_keyed and self.key_fallback == "node"

    def key_of(self, message: Keyed) -> str | None:
        """The key of a message, or what counts as it; None: nothing does."""
        key = message.key
        return message.node if key is None and self.takes_nodes else key
