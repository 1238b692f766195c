"""A topic's rows as three readers see them: ``diff``, the Iceberg table, and what was sent.

The table is read by DuckDB, which shares no code with what wrote it.
"""

from __future__ import annotations

import base64
import json
import random
from typing import Any, NamedTuple

from tests.e2e.daemon import Daemon

DAY_MS = 86_400_000


class Row(NamedTuple):
    """A record as every reader must see it."""

    partition: int
    offset: int
    ts_ms: int
    key: str | None
    tag: str | None
    node: str | None
    meta: Any
    data: Any


def diff_rows(daemon: Daemon, topic: str) -> list[Row]:
    """All rows of a topic by ``diff``, sorted by partition and offset."""
    partitions = len(daemon.get(f"/v0/topics/{topic}").json["partitions"])
    return [
        Row(
            partition, record["seq"], record["ts"], record.get("key"), record.get("tag"),
            record.get("node"), record.get("meta"),
            base64.b64decode(record["data_b64"]) if "data_b64" in record else record["data"],
        )
        for partition in range(partitions)
        for record in daemon.read_all(topic, partition)
    ]  # fmt: skip


def table_rows(metadata_location: str, settings: dict[str, str] | None = None) -> list[Row]:
    """All rows of a table by DuckDB, sorted by partition and offset."""
    from tests.compaction.lakes import duckdb_with_iceberg

    connection = duckdb_with_iceberg()
    for name, value in (settings or {}).items():
        connection.execute(f"SET {name} = '{value}'")
    found = connection.execute(
        'SELECT partition, "offset", epoch_ms("timestamp"), key, tag, node, meta, data,'
        " data_is_base64 FROM iceberg_scan(?) ORDER BY 1, 2",
        [metadata_location.removeprefix("file://")],
    ).fetchall()
    return [
        Row(
            partition, offset, ts_ms, key, tag, node, None if meta is None else json.loads(meta),
            base64.b64decode(data) if is_base64 else json.loads(data),
        )
        for partition, offset, ts_ms, key, tag, node, meta, data, is_base64 in found
    ]  # fmt: skip


def some_records(rng: random.Random, count: int, now_ms: int) -> list[dict[str, Any]]:
    """Records with and without each field, of JSON and bytes, over a few days."""
    records = []
    for _ in range(count):
        record: dict[str, Any] = {}
        if rng.random() < 0.2:
            record["data_b64"] = base64.b64encode(rng.randbytes(rng.randrange(40))).decode()
        else:
            record["data"] = rng.choice(
                [None, 1, 1.5, "", "ä€😀", [1, {"a": []}], {"n": rng.randrange(1000), "s": "x"}]
            )
        for name in ("key", "tag", "node"):
            if rng.random() < 0.4:
                record[name] = rng.choice(["", "a", "bb", "ü"])
        if rng.random() < 0.3:
            record["meta"] = {"m": rng.randrange(10)}
        if rng.random() < 0.3:
            record["ts"] = now_ms - rng.randrange(3 * DAY_MS)
        records.append(record)
    return records


def produce_some(daemon: Daemon, rng: random.Random, topic: str, count: int, now_ms: int) -> None:
    """``count`` records in requests of a few; all must be acknowledged."""
    records = some_records(rng, count, now_ms)
    while records:
        batch = [records.pop() for _ in range(min(len(records), rng.randrange(1, 20)))]
        answer = daemon.json("POST", f"/v0/topics/{topic}", {"records": batch})
        assert answer.status == 200, answer.body
