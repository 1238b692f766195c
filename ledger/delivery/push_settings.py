"""The settings of a push subscription: where its records are sent, how, and how fast.

What is secret is not among them: signing secrets and the values of own headers are in a file next
to the ledger, under ``secrets_id`` (images of the ledger go to the store).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from ledger.types import TokenName

RATE_MIN = 1 / 60
RATE_MAX = 100_000
SENDERS_MAX = 64
_IN_DATA = "data."
PushFormat = Literal["binary", "structured", "batch"]


class PushTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how the daemon's own senders deliver a subscription."""

    endpoint: Annotated[
        str, Meta(max_length=2_048, description="the URL, `http` or `https`, that gets the POSTs")
    ]
    rate_max: Annotated[
        float,
        Meta(
            ge=RATE_MIN, le=RATE_MAX,
            description="most POSTs a second, of all senders together; they find out what the"
            " receiver takes",
        ),
    ] = 100.0  # fmt: skip
    rate_start: (
        Annotated[
            float,
            Meta(
                ge=RATE_MIN, le=RATE_MAX,
                description="POSTs a second with which all senders together begin; null: a"
                " fifth of `rate_max`",
            ),
        ]
        | None
    ) = None  # fmt: skip
    senders: Annotated[
        int,
        Meta(
            ge=1, le=SENDERS_MAX,
            description="shards that send; they share `rate_max`, and each needs one a minute",
        ),
    ] = 1  # fmt: skip
    connections_max: Annotated[
        int, Meta(ge=1, le=256, description="POSTs that a sender has under way at a time")
    ] = 16
    timeout_ms: Annotated[
        int,
        Meta(ge=100, le=300_000, description="how long a POST may take, to the end of its answer"),
    ] = 10_000
    format: Annotated[
        PushFormat,
        Meta(
            description="`binary`: the body is a record, headers are its attributes;"
            " `structured`: a CloudEvents document; `batch`: a list of these"
        ),
    ] = "binary"
    batch_max: Annotated[int, Meta(ge=1, le=1_000, description="records in a POST of `batch`")] = (
        100
    )
    batch_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=4 << 20,
            description="bytes of the records in a POST of `batch`; a larger record goes alone",
        ),
    ] = 256 << 10
    batch_wait_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="how long a batch waits for more records")
    ] = 100
    type_from: (
        Annotated[
            str,
            Meta(
                max_length=255,
                description="where the `type` of an event is from: `tag` or `data.FIELD`;"
                " null, and where there is none: `headgate.record`",
            ),
        ]
        | None
    ) = None
    headers: Annotated[
        list[str], Meta(description="names of own headers; their values are not shown")
    ] = []
    signed: Annotated[bool, Meta(description="POSTs are signed (Standard Webhooks)")] = False
    secrets_count: Annotated[
        int, Meta(description="secrets that sign each POST: more than one during a rotation")
    ] = 0


class PushSettings(PushTarget, frozen=True, forbid_unknown_fields=True):
    """The same, with the name under which its secrets are kept, null: it has none; and the token
    with which it was set up last."""

    secrets_id: str | None = None
    token: TokenName | None = None

    @property
    def type_field(self) -> str | None:
        """The field of the data that the type of an event is, if it is one."""
        if self.type_from is None or not self.type_from.startswith(_IN_DATA):
            return None
        return self.type_from.removeprefix(_IN_DATA)

    @property
    def start_part(self) -> float | None:
        """The part of their maximum with which senders begin; None: it is not said."""
        return None if self.rate_start is None else min(1.0, self.rate_start / self.rate_max)


TYPE_LEVELS_MAX = 8  # of objects in each other: each is a pass over what it has


class SettingProblem(NamedTuple):
    """Why a setting cannot be: what follows its name in a sentence."""

    field: str
    says: str


def problem_of(push: PushSettings) -> SettingProblem | None:
    """What is wrong with settings whose fields are each within their limits; None: nothing."""
    if push.type_from is not None and push.type_from != "tag" and not push.type_field:
        return SettingProblem(
            "type_from",
            f"is {push.type_from!r}; give tag, or data.FIELD for a field of the data, such as"
            " data.type",
        )
    if push.type_from is not None and push.type_from.count(".") > TYPE_LEVELS_MAX:
        return SettingProblem(
            "type_from",
            f"is {push.type_from.count('.')} levels deep, the limit is {TYPE_LEVELS_MAX}",
        )
    if push.senders > push.rate_max * 60:
        return SettingProblem(
            "senders",
            f"is {push.senders}, but each sender needs one POST a minute, and rate_max allows"
            f" {push.rate_max * 60:g}; use fewer senders, or raise rate_max",
        )
    return None
