"""Elasticsearch's ``_bulk``: lines of actions, each with its document on the next line.

``index`` and ``create`` append a record to the topic that has the index's name; the document is
its data, and ``_id``, if there is one, its key. ``update`` and ``delete`` are refused, since a
topic only grows, and so is what would make an action depend on what is stored. Each action has an
item of the answer, in their order, which says what became of it; those of a topic are stored
together or not.

Clients repeat what has the status 429 and nothing else, so whatever was not stored for now has it:
a full ring, a closed gate, a limit of the token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct, field

from daemon.http.request import Answer
from daemon.http.response import JSON
from daemon.intake.formats import BodyLimits, check_record, given_twice, has_twice, too_many_records
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from daemon.schemas.decoding import UNREADABLE
from daemon.schemas.errors import ApiError, invalid
from daemon.schemas.foreign import BulkError, BulkReason

CONTENT_TYPES = (
    "application/x-ndjson", "application/json", "application/vnd.elasticsearch+x-ndjson",
    "application/vnd.elasticsearch+json",
)  # fmt: skip
# Clients of Elasticsearch refuse an answer without it.
PRODUCT: tuple[tuple[str, str], ...] = (("X-Elastic-Product", "Elasticsearch"),)
ELASTIC = msgspec.json.encode(
    {
        "name": "headgate",
        "cluster_name": "headgate",
        "cluster_uuid": "headgate",
        "version": {
            "number": "9.0.0",
            "build_flavor": "default",
            "minimum_wire_compatibility_version": "8.18.0",
            "minimum_index_compatibility_version": "8.0.0",
        },
        "tagline": "You Know, for Search",
    }
)
"""What a server of this API says of itself."""
_STORED = (
    b'"_version":1,"result":"created","_shards":{"total":1,"successful":1,"failed":0},'
    b'"status":201}}'
)
_APPENDS = frozenset({"index", "create"})
_ACTIONS = _APPENDS | {"update", "delete"}
ITEM_BYTES = 200  # of an item without its texts, and of its place
BLANK_LINES_MAX = 1_000


class BulkAction(Struct, gc=False):
    """What a line says of its action. Fields that are not here change nothing that is stored."""

    index: str | None = field(name="_index", default=None)
    id: str | int | None = field(name="_id", default=None)
    pipeline: str | None = None
    if_seq_no: int | None = None
    if_primary_term: int | None = None
    version: int | None = None
    version_type: str | None = None


class BulkItem(NamedTuple):
    """An action: the beginning of its item, its topic, and why it is refused, if it is."""

    opening: bytes
    topic: str
    refused: bytes = b""


_actions = msgspec.json.Decoder(dict[str, BulkAction])
_members = msgspec.json.Decoder(dict[str, Raw])
_raw = msgspec.json.Decoder(Raw)
_encode = msgspec.json.Encoder().encode


class BulkRefusal(ApiError):
    """A refusal of a whole request, or of what an item asks for. 503, which promises that nothing
    is stored, is what these clients know as 429."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(
            429 if error.status == 503 else error.status,
            error.code,
            error.message,
            error.detail,
            retry_after_s=error.retry_after_s,
            close=error.close,
            names=error.names,
        )

    def body(self) -> bytes:
        """As Elasticsearch has it."""
        return _encode(BulkError(_reason(self), self.status))

    def end_of_item(self) -> bytes:
        """The same for one action."""
        return b'"status":%d,"error":%b}}' % (self.status, _encode(_reason(self)))


class BulkTranslation:
    """One request."""

    def __init__(self, content_type: str, *values: Any) -> None:
        *topic, query = values
        self._content_type = content_type
        self._topic: str | None = topic[0] if topic else None
        self._pipeline = query.pipeline
        self.records: dict[str, list[bytes]] = {}
        self._items: list[BulkItem] = []
        self.kept_bytes = 0

    def steps(self, body: bytes, limits: BodyLimits) -> Iterator[None]:
        """Translates a body, and stops after each action. Raises ApiError: 415, 413, and 400 for
        a line that leaves open where the next action begins."""
        if self._content_type not in CONTENT_TYPES:
            raise ApiError(
                415,
                "unsupported_media_type",
                f"Content-Type {self._content_type[:80]!r} is not supported; send one of"
                f" {', '.join(CONTENT_TYPES)}",
            )
        lines = _lines(body)
        for number, line in lines:
            name, action = _action(number, line)
            document = (0, b"") if name == "delete" else next(lines, None)
            if document is None:
                raise invalid(f"line {number} has an action, and no document follows it")
            if len(self._items) >= limits.records_max:
                raise too_many_records(limits)
            self._take(name, action, document, limits)
            yield
        if not self._items:
            raise invalid("the request has no actions")

    def _take(
        self, name: str, action: BulkAction, document: tuple[int, bytes], limits: BodyLimits
    ) -> None:
        topic = action.index if action.index is not None else self._topic or ""
        key = None if action.id is None else str(action.id)
        opening = b'{"%b":{"_index":%b,' % (name.encode(), _encode(topic))
        if key is not None:
            opening += b'"_id":%b,' % _encode(key)
        refused = b""
        try:
            _check(name, action, self._pipeline)
            data = _checked_document(document, key, limits)
        except ApiError as error:
            refused = BulkRefusal(error).end_of_item()
        else:
            begin = b"{" if key is None else b'{"key":%b,' % _encode(key)
            self.records.setdefault(topic, []).append(b'%b"data":%b}' % (begin, data))
        self._items.append(BulkItem(opening, topic, refused))
        self.kept_bytes += len(opening) + len(refused) + ITEM_BYTES

    def answer(self, refused: dict[str, ApiError], took_ms: int) -> Answer:
        """An item for each action."""
        ends = {topic: BulkRefusal(error).end_of_item() for topic, error in refused.items()}
        items = [
            opening + (wrong or ends.get(topic, _STORED)) for opening, topic, wrong in self._items
        ]
        has_errors = bool(refused) or any(item.refused for item in self._items)
        body = b'{"took":%d,"errors":%b,"items":[%b]}' % (
            took_ms, b"true" if has_errors else b"false", b",".join(items),
        )  # fmt: skip
        return (200, body, JSON, PRODUCT, False)

    @staticmethod
    def refusal(error: ApiError, content_type: str) -> ApiError:
        """As Elasticsearch has it."""
        return BulkRefusal(error)


def _lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers. Raises ApiError 400 for many that are: nothing
    stops between them."""
    at, number, blank, size = 0, 0, 0, len(body)
    while at < size:
        end = body.find(b"\n", at)
        if end < 0:
            end = size
        line = body[at:end].strip(b" \t\r")
        at = end + 1
        number += 1
        if line:
            yield number, line
        else:
            blank += 1
            if blank > BLANK_LINES_MAX:
                raise invalid(f"line {number} is one of more than {BLANK_LINES_MAX} blank lines")


def _action(number: int, line: bytes) -> tuple[str, BulkAction]:
    try:
        found = _actions.decode(line)
    except UNREADABLE as error:
        raise invalid(
            f'line {number} must be an action such as {{"index":{{}}}}, and is not: {error};'
            " nothing of the request was stored",
            line=number,
        ) from error
    if len(found) != 1 or not found.keys() <= _ACTIONS:
        shown = ", ".join(found)[:40]
        raise invalid(
            f"line {number} must have one of the actions index, create, update and delete, got"
            f" {shown!r}; nothing of the request was stored",
            line=number,
        )
    name, action = next(iter(found.items()))
    if line.count(b'"_index"') > 1 or line.count(b'"_id"') > 1:
        inner = bytes(_members.decode(line)[name])
        for twice in ("_index", "_id"):
            if has_twice(inner, b'"%b"' % twice.encode()):
                raise given_twice(twice, {"line": number})
    return name, action


def _check(name: str, action: BulkAction, pipeline: str | None) -> None:
    """Raises ApiError 400 for what cannot be done to a topic."""
    if name not in _APPENDS:
        raise ApiError(
            400,
            "unsupported_action",
            f"{name} is not possible: a topic only grows; send index or create",
        )
    if action.pipeline not in (None, "_none") or pipeline not in (None, "_none"):
        raise ApiError(
            400,
            "unsupported_action",
            "there are no ingest pipelines here: send without one",
        )
    if (action.if_seq_no, action.if_primary_term, action.version, action.version_type) != (
        None, None, None, None,
    ):  # fmt: skip
        raise ApiError(
            400,
            "unsupported_action",
            f"{name} cannot depend on a version or if_seq_no: records are appended, and none is"
            " replaced; send without them",
        )


def _checked_document(document: tuple[int, bytes], key: str | None, limits: BodyLimits) -> bytes:
    """The document. Raises ApiError 400 and 413."""
    number, line = document
    where = {"line": number}
    try:
        _raw.decode(line)
        text = str(line, "utf-8")
    except UNREADABLE as error:
        raise invalid(f"line {number} is not JSON: {error}", **where) from error
    if not line.startswith(b"{"):
        raise invalid(f"line {number} must be a JSON object", **where)
    if key is not None and len(key) > LABEL_CHARACTERS_MAX:
        raise invalid(
            f"_id has {len(key)} characters, and a record's key at most {LABEL_CHARACTERS_MAX}"
        )
    check_record(text, (key,), where, limits)
    return line


def _reason(error: ApiError) -> BulkReason:
    return BulkReason(error.code, error.message)
