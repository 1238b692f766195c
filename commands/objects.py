"""``headgate objects``: what lies in the store, read from the ledger and the store themselves.

It needs no running daemon and disturbs none: the ledger is only read, and objects never change.
So it takes --data, --store and --config like ``serve``, not --url.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from commands.exits import CommandFailed
from commands.output import bytes_text, count_text
from daemon.config import Config
from ledger.ledger import Ledger
from ledger.types import ObjectRow
from uploader.l0 import (
    FooterExtent,
    L0Error,
    read_extent,
    read_footer,
    records_of,
    verify,
)
from uploader.stores.base import ObjectMissing, ObjectStore
from uploader.stores.open import open_store
from uploader.stores.verified import verified

PAGE_OBJECTS = 1_000
ROW = "{:<48}  {:>10}  {:>10}  {:>7}  {:>9}  {}"


@contextmanager
def opened_ledger(config: Config) -> Iterator[Ledger]:
    """The ledger of a data folder, to read from.

    Without the ledger lock, which keeps writers apart: reading takes SQLite's own locks only.
    """
    ledger = Ledger(Path(config.ledger_path), nullcontext(), must_exist=True)
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def opened_store(config: Config) -> Iterator[ObjectStore]:
    """The store, for one thread; nothing is contacted before the first call."""
    store = open_store(
        config.store_url,
        endpoint_url=config.s3_endpoint_url,
        region=config.s3_region,
        threads=1,
    )
    try:
        yield store
    finally:
        store.close()


def rows(ledger: Ledger) -> Iterator[ObjectRow]:
    """All objects in commit order."""
    after = 0
    while page := ledger.objects(after, PAGE_OBJECTS):
        yield from page
        after = page[-1].commit_number


def row_of(ledger: Ledger, key: str) -> ObjectRow:
    """One object. Raises CommandFailed for a key that the ledger does not have."""
    row = ledger.object_by_key(key)
    if row is None:
        raise CommandFailed(
            f"the ledger {ledger.path} has no object {key!r}",
            hint="`headgate objects ls` lists the keys",
        )
    return row


def head_text() -> str:
    """The head of the table, of fixed widths so that rows need not be gathered first."""
    return ROW.format("key", "size", "records", "extents", "commit", "created")


def row_text(row: ObjectRow) -> str:
    """One object of the table."""
    created = datetime.fromtimestamp(row.created_ms / 1000, tz=UTC)
    return ROW.format(
        row.key,
        bytes_text(row.size_bytes),
        count_text(row.records),
        row.extents,
        row.commit_number,
        created.isoformat(sep=" ", timespec="milliseconds"),
    )


def lines_of(ledger: Ledger, store: ObjectStore, row: ObjectRow) -> Iterator[bytes]:
    """An object's live records as NDJSON, extent by extent, with the offsets they were given.

    Raises CommandFailed when the object cannot be read.
    """
    try:
        body = store.get(row.locator)
        footer = read_footer(body, row.key)
        there = {
            (extent.topic_id, extent.partition): extent
            for extent in ledger.extents_of_commit(row.commit_number)
        }
        for extent in footer.extents:
            live = there.get((extent.topic_id, extent.partition))
            if live is None:
                continue
            data = read_extent(body, extent, row.key)
            for seq, ts, record in records_of(data, live.first_offset, live.voids, key=row.key):
                yield _line(extent, seq, ts, record)
    except (L0Error, ObjectMissing) as error:
        raise CommandFailed(str(error), hint=f"`headgate objects verify {row.key}`") from error


class BadObject(Struct, frozen=True):
    """An element of ``bad`` in ``objects verify -o json``."""

    key: str
    problems: list[str]


def problems_of(store: ObjectStore, row: ObjectRow) -> list[str]:
    """What is wrong with an object as it lies in the store; [] when it is sound.

    Raises StoreError when the store itself cannot be asked.
    """
    try:
        verified(lambda: _check(store, row), store.reconnect, _Bad, row.key)
    except ObjectMissing as error:
        return [f"{row.key} is not in the store: {error}"]
    except _Bad as bad:
        return bad.problems
    return []


class _Bad(Exception):
    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems[0])
        self.problems = problems


def _check(store: ObjectStore, row: ObjectRow) -> None:
    body = store.get(row.locator)
    found = [str(problem) for problem in verify(body, row.key)]
    if len(body) != row.size_bytes:
        found.append(f"{row.key} has {len(body)} bytes, the ledger says {row.size_bytes}")
    if found:
        raise _Bad(found)


def _line(extent: FooterExtent, seq: int, ts: int, record: Any) -> bytes:
    line: dict[str, Any] = {
        "topic": extent.topic_name, "partition": extent.partition, "seq": seq, "ts": ts,
    }  # fmt: skip
    if isinstance(record.data, bytes):
        line["data_b64"] = base64.b64encode(record.data).decode()
    else:
        line["data"] = _json_text(record.data)
    for name in ("key", "tag", "node"):
        value = getattr(record, name)
        if value is not None:
            line[name] = value
    if record.meta is not None:
        line["meta"] = _json_text(record.meta)
    return msgspec.json.encode(line)


def _json_text(text: str) -> msgspec.Raw:
    raw = text.encode()
    return msgspec.Raw(msgspec.json.format(raw, indent=-1) if b"\n" in raw or b"\r" in raw else raw)
