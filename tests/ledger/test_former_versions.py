"""What a former headgate told the bucket is still read: the files in ``tests/golden/ledger``.

Both were written by the program of version 1, which knew nothing of the lake: a snapshot (zlib,
for its many empty pages), and the entry after it.
"""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import reads, schema, topics
from ledger.checks import invariants
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.lake import lake_tables, readleases
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import VERSION, Entry, EntryError, decode, entry_key
from ledger.space import orphans
from ledger.types import Gap, PartitionState
from tests.ledger.lakes import compact
from tests.ledger.requests import Request, draft_of, key_of, lease

GOLDEN = Path(__file__).parent.parent / "golden" / "ledger"


def golden() -> tuple[Entry, Entry]:
    snapshot = zlib.decompress((GOLDEN / "snapshot-of-version-1.zlib").read_bytes())
    entry = (GOLDEN / "entry-of-version-1.msgpack").read_bytes()
    return decode(snapshot, entry_key(1, 1)), decode(entry, entry_key(1, 2))


def test_a_ledger_is_rebuilt_from_what_a_former_version_told(tmp_path: Path) -> None:
    snapshot, entry = golden()
    assert snapshot.version == entry.version == 1
    assert snapshot.image is not None and entry.changes is not None
    path = tmp_path / "ledger.db"
    path.write_bytes(snapshot.image)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    with closing(Ledger(path, nullcontext())) as ledger:
        with closing(sqlite3.connect(path)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()
        assert version == (len(schema.MIGRATIONS),)
        for _ in range(2):
            ledger.write(backup.apply, entry.changes)
        ledger.read(invariants.check)
        assert ledger.read(reads.partition_states, 1) == [
            PartitionState(0, 11, 1, 12, 7, 80, 0, 0, ""),
            PartitionState(1, 2, 1, 3, 2, 20, 0, 0, ""),
        ]
        assert [topic.name for topic in ledger.read(topics.page)] == ["orders"]
        assert ledger.read(reads.gaps, 1, 0) == [Gap(1, 0, 6, 9, "recovery")]
        assert ledger.read(orphans.named) == [key_of(lease(9))]
        assert [row.commit_number for row in ledger.read(reads.objects)] == [1, 2, 3]
        assert ledger.read(lake_tables.every) == [] and ledger.read(readleases.live, 0) == []
        # And it goes on as any ledger.
        draft = draft_of(lease(20, epoch=2), [Request(1, ((0, 2),))])
        ledger.commit(draft, 60, lambda _: None)
        compact(ledger, "r")
        assert ledger.read(lake_tables.compacted_seqs, 1) == {0: 13, 1: 2}
        ledger.read(invariants.check)


def test_entries_alone_of_a_former_version_leave_what_they_do_not_know(tmp_path: Path) -> None:
    _, entry = golden()
    assert entry.changes is not None
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger:
        ledger.write(backup.apply, entry.changes)
        assert [
            (s.compacted_seq, s.lost_reason) for s in ledger.read(reads.partition_states, 1)
        ] == [(0, ""), (0, "")]


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_versions_before_the_first_and_after_ours_are_refused(version: int) -> None:
    data = (GOLDEN / "entry-of-version-1.msgpack").read_bytes()
    at = data.index(b"version") + len(b"version")
    with pytest.raises(EntryError, match=f"has version {version}, this headgate knows {VERSION}"):
        decode(data[:at] + bytes([version]) + data[at + 1 :], entry_key(1, 2))


def test_a_ledger_of_a_former_version_takes_subscriptions_to_the_topics_that_it_has(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    before = schema.MIGRATIONS[:7]  # topics, the lake, cursors and routers
    with closing(schema.connect(path, must_exist=False)) as connection:
        schema.migrate(connection, path, before)
        connection.execute("INSERT INTO topics VALUES (1, 'orders', '{}', 1, NULL, 1, 'orders')")
        connection.execute("INSERT INTO partitions (topic_id, partition, next_seq, earliest_seq,"
                           " count, bytes, max_timestamp_ms, deleted) VALUES (1, 0, 6, 1, 0, 0, 0,"
                           " 0)")  # fmt: skip
        connection.execute("UPDATE state SET last_topic_id = 1, catalog_version = 1")
    with closing(Ledger(path, nullcontext())) as ledger:
        made = ledger.write(subscriptions.create, "orders", "s", SubscriptionConfig(), "latest", 2)
        view = ledger.read(subscriptions.view, 1, "s")
        assert view is not None and view.subscription == made
        assert view.topic.config.retain_for_subscriptions is None
        assert [floor for floor, _ in view.partitions] == [5] and view.growth == []
