"""``headgate objects``: the objects in the store, as ledger and store have them.

It asks a daemon that has the data directory for rows of the ledger, and reads objects from the
store itself. So it takes --data, --store and --config like ``serve``, not --url.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import msgspec
from msgspec import Struct

from commands.output import (
    bytes_text,
    count_text,
    echo,
    echo_json,
    print_lines,
    progress,
    show,
    time_text,
)
from commands.shell.exits import FAILED, CommandFailed
from commands.shell.options import loaded, output_option, place_options
from daemon.upkeep.directory import open_config_store
from daemon.upkeep.exclusive import opened_ledger
from ledger import reads
from ledger.tx import Transactions
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
from uploader.stores.verified import verified as checked

PAGE_OBJECTS = 1_000
# Fixed widths: a table of all objects need not be held in memory.
ROW = "{:<48}  {:>10}  {:>10}  {:>7}  {:>9}  {}"


@click.group()
def objects() -> None:
    """List, print and verify the objects in the store.

    Works with and without a running daemon.

    \b
    Examples:
      headgate objects ls --data /var/lib/headgate
      headgate objects verify --data /var/lib/headgate
    """


@objects.command("ls")
@place_options
@output_option
def objects_ls(as_json: bool, **options: Any) -> None:
    """List all objects in the order of their commits.

    \b
    Example:
      headgate objects ls --data /var/lib/headgate -o json
    """
    with opened_ledger(loaded(**options)) as ledger:
        if not as_json:
            echo(ROW.format("key", "size", "records", "extents", "commit", "created"))
            for row in rows(ledger):
                echo(row_text(row))
            return
        before = "["
        for row in rows(ledger):
            echo_json(before + "\n  " + msgspec.json.encode(row).decode(), nl=False)
            before = ","
        echo_json("[]" if before == "[" else "\n]")


@objects.command("cat")
@click.argument("key")
@place_options
def objects_cat(key: str, **options: Any) -> None:
    """Print the records of an object as NDJSON.

    \b
    Example:
      headgate objects cat l0/000000000000000001/1-0-2 --data /var/lib/headgate
    """
    config = loaded(**options)
    with opened_ledger(config) as ledger, closing(open_config_store(config)) as store:
        for line in lines_of(ledger, store, row_of(ledger, key)):
            print_lines([line])


class BadObject(Struct, frozen=True):
    """An object that is missing or damaged."""

    key: str
    problems: list[str]


class Verified(Struct, frozen=True):
    """What ``objects verify`` found."""

    objects: int
    bytes: int
    bad: list[BadObject]


@objects.command("verify")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@place_options
@output_option
@click.pass_context
def objects_verify(
    context: click.Context, /, keys: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Check the format and checksums of the given objects, or of all.

    Exit code 1 if one is missing or damaged.

    \b
    Examples:
      headgate objects verify --data /var/lib/headgate
      headgate objects verify l0/000000000000000001/1-0-2 --data /var/lib/headgate
    """
    config = loaded(**options)
    with opened_ledger(config) as ledger, closing(open_config_store(config)) as store:
        chosen = [row_of(ledger, key) for key in keys] or list(rows(ledger))
        bad = []
        with progress(len(chosen), "objects") as advance:
            for row in chosen:
                found = problems_of(store, row)
                if found:
                    bad.append(BadObject(row.key, found))
                advance(1)
    verified = Verified(len(chosen), sum(row.size_bytes for row in chosen), bad)
    show(verified, as_json, _verified_text)
    context.exit(FAILED if bad else 0)


def _verified_text(found: Verified) -> str:
    lines = [f"BAD  {problem}" for each in found.bad for problem in each.problems]
    total = f"{found.objects} objects, {found.bytes:,} bytes, {len(found.bad)} bad"
    return "\n".join([*lines, total])


def rows(ledger: Transactions) -> Iterator[ObjectRow]:
    """All objects in commit order."""
    after = 0
    while page := ledger.read(reads.objects, after, PAGE_OBJECTS):
        yield from page
        after = page[-1].commit_number


def row_of(ledger: Transactions, key: str) -> ObjectRow:
    """One object. Raises CommandFailed if the ledger does not have the key."""
    row = ledger.read(reads.object_by_key, key)
    if row is None:
        raise CommandFailed(
            f"the ledger has no object {key!r}",
            hint="`headgate objects ls` lists the keys",
        )
    return row


def row_text(row: ObjectRow) -> str:
    """One object of the table."""
    return ROW.format(
        row.key,
        bytes_text(row.size_bytes),
        count_text(row.records),
        row.extents,
        row.commit_number,
        time_text(row.created_ms, "milliseconds"),
    )


def lines_of(ledger: Transactions, store: ObjectStore, row: ObjectRow) -> Iterator[bytes]:
    """The records of an object that have offsets, as NDJSON.

    Raises CommandFailed if the object cannot be read.
    """
    try:
        body = store.get(row.locator)
        footer = read_footer(body, row.key)
        there = {
            (extent.topic_id, extent.partition): extent
            for extent in ledger.read(reads.extents_of_commit, row.commit_number)
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


def problems_of(store: ObjectStore, row: ObjectRow) -> list[str]:
    """What is wrong with an object in the store; empty if it is sound.

    Raises StoreError if the store does not answer.
    """
    try:
        checked(lambda: _check(store, row), store.reconnect, _Bad, row.key)
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
