"""The ledger's tables, their versions, and how the file is opened.

Vocabulary and writers. Every write happens under the ledger lock; any process reads.

- ``state``: one row. ``incarnation``, ``epoch`` and ``epoch_floor`` are written by the supervisor,
  ``commit_number`` by commits, ``catalog_version``, ``last_topic_id`` and ``partitions``
  (how many there are that are not deleted) by changes of topics.
- ``meta``: notes, texts by name.
- ``incarnations``: every start of a daemon on this ledger. Rows stay.
- ``topics``: one row for each topic that ever existed. ``deleted_ms`` is null while it lives; no
  two live topics have one name. Ids are never used twice, so rows stay. ``changed`` is the catalog
  version of the last change. ``table_name`` is the name of the topic's table in the lake, decided
  when the topic is created; a former version left it null, until ``table_names.decide``.
- ``partitions``: one row for each partition of a topic, created with the topic. Commits write
  ``next_seq`` (the next offset), ``count`` (records that can be read), ``bytes`` (of the extents or
  files that hold them) and ``max_timestamp_ms`` (the greatest timestamp so far). Trims and
  evictions raise ``earliest_seq``. Up to ``compacted_seq``, which switches raise, ``bytes`` are
  those of the lake's ranges. Quarantined records have offsets and are counted. ``lost_seq`` is the
  last offset that a cap or a time to live evicted (not a trim), ``lost_reason`` which of the two.
  ``freed_seq`` is up to where unreferenced objects have been looked for.
- ``objects``: one row for each commit and so for each L0 object. ``result`` is msgpack of
  [ranges, runs, heads, verdicts], the answer of the commit; it is emptied once no process asks for
  it (``space/reclaim.py``). ``free_ms`` is since when nothing in the object is needed, null while
  something is. After the grace time a collection deletes the object and then its rows, but never
  those of the last commit, by which a ledger is recognized.
- ``extents``: offsets [first_offset, last_offset] of a partition in the object of a commit. Readers
  look for the first extent whose last offset is not below a given one: the primary key.
  ``running_max_ms`` is the greatest timestamp up to and including this extent. It only rises along
  the offsets, so a time is found by bisection without an index. ``voids`` is msgpack of
  [[record index, record count], ...] or null.
- ``void_extents``: extents of which no record got an offset.
- ``gaps``: offsets [gap_from, gap_to] that no record has or will have. Recovery creates them.
- ``quarantine``: offsets whose object cannot be read, and since when; the object is kept. ``lost``:
  those that an operator has given up; their object may be collected.
- ``lake_tables``, ``lake_files``, ``lake_ranges``, ``runs`` and ``read_leases``: the lake, see
  ``lake/types.py``. ``changed`` is the catalog version of a row's last change.
- ``deletions``: objects and files of the lake that a collection may delete once an entry of the
  owner's log names them (``space/deletions.py``). A row is removed after its object.
- ``cursors`` and ``cursor_positions``: where readers and routers are (``cursors.py``). A position
  without a row is 0. ``set_seq`` is the last explicit setting, ``set_change`` its change number.
  ``changed`` is the change number of a row's last change: ``state.change_number`` counts changes of
  delivery and never touches ``catalog_version``. ``last_cursor_id``: ids are never used twice.
  ``source``, ``source_topic_id`` and ``source_bytes``: what a client told of what its cursor
  follows, at ``told_ms``; null if it told nothing, and of deleted cursors. ``metadata``: a text
  that a group of Kafka's consumers has committed with a position (``group_commits.py``), and
  ``used_ms``: when such a group has last committed, or had members, by the clock of ages.
- ``routers``: which topics are copied into which (``routers.py``). ``config`` is the filter,
  ``slot`` the router's place in the shared segment. ``token`` is the TokenName, as JSON, with which
  it was set up last; null: without one. Rows stay.
- ``subscriptions``: who shares a topic's records, and how (``subscriptions.py``). ``config`` is the
  settings. Rows stay. ``subscription_epochs``: the number of the last batch that a flush told of.
  ``finished_rows``: offsets that are finished above the position of a subscription's cursor, a bit
  for each of 4,096 (``progress.py``). ``partition_growth``: the heads, as JSON, of the partitions
  before ``first_partition`` when it and those after it were added.
- ``push_rates``: what senders of push subscriptions have learned (``push_rates.py``).
- ``dedupe``: answers of requests with an idempotency key. ``id`` rises with time and is never used
  twice, so the oldest are at the front; the owner's log knows by it what is new (as by a deletion's
  id). ``answer`` is msgpack of [[[partition, first, last], ...], head,
  fingerprint of the records]; a former version had no fingerprint.
- ``producers``: idempotent producers in each partition that they write to, with their newest epoch.
  ``recent`` is msgpack of [[first, last, first offset], ...], the sequence numbers of their last
  batches. ``changed`` is as of ``cursors``.

The owner's log does not carry ``runs``, ``push_rates``, ``free_ms`` and ``freed_seq``.

A migration is a list of statements; its place in MIGRATIONS, from 1, is the version it leads to
(``PRAGMA user_version``). Released migrations are never edited. Statements are limited to what
PostgreSQL also accepts, except for WITHOUT ROWID and BLOB (bytea).

Only SQLite opens these files: POSIX locks of a file are released when a process closes any
descriptor of it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ledger.errors import LedgerCorrupt, LedgerFromFuture, LedgerMissing, LedgerUnusable
from ledger.private_files import make_file

Migration = tuple[str, ...]

# Writers queue at the ledger lock; this only covers SQLite's own short holds (recovery of the
# WAL after a kill, a checkpoint that ends).
BUSY_TIMEOUT_MS = 30_000
# 16 MiB of WAL before a commit has to copy it back.
WAL_AUTOCHECKPOINT_PAGES = 4_000
# A long read makes the WAL grow; it is cut to this size when it next starts over.
WAL_KEPT_BYTES = 32 << 20
# Part of the daemon's memory bound, per connection. Every commit of another process empties it.
PAGE_CACHE_BYTES = 4 * 1024 * 1024
STATEMENTS_CACHED = 128

MIGRATIONS: tuple[Migration, ...] = (
    (
        """CREATE TABLE state (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            incarnation BIGINT NOT NULL,
            epoch BIGINT NOT NULL,
            epoch_floor BIGINT NOT NULL,
            commit_number BIGINT NOT NULL,
            catalog_version BIGINT NOT NULL,
            last_topic_id BIGINT NOT NULL
        )""",
        "INSERT INTO state VALUES (1, 0, 0, 0, 0, 0, 0)",
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        """CREATE TABLE incarnations (
            incarnation INTEGER PRIMARY KEY,
            epoch BIGINT NOT NULL,
            started_ms BIGINT NOT NULL
        )""",
        """CREATE TABLE topics (
            topic_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            config TEXT NOT NULL,
            created_ms BIGINT NOT NULL,
            deleted_ms BIGINT,
            changed BIGINT NOT NULL
        )""",
        "CREATE INDEX topics_changed ON topics (changed)",
        "CREATE UNIQUE INDEX topics_live_name ON topics (name) WHERE deleted_ms IS NULL",
        """CREATE TABLE partitions (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            next_seq BIGINT NOT NULL,
            earliest_seq BIGINT NOT NULL,
            count BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            max_timestamp_ms BIGINT NOT NULL,
            deleted INTEGER NOT NULL,
            PRIMARY KEY (topic_id, partition)
        ) WITHOUT ROWID""",
        """CREATE TABLE objects (
            commit_number INTEGER PRIMARY KEY,
            key TEXT NOT NULL,
            locator TEXT NOT NULL,
            size_bytes BIGINT NOT NULL,
            created_ms BIGINT NOT NULL,
            incarnation BIGINT NOT NULL,
            epoch BIGINT NOT NULL,
            shard INTEGER NOT NULL,
            counter BIGINT NOT NULL,
            extents INTEGER NOT NULL,
            records BIGINT NOT NULL,
            result BLOB NOT NULL
        )""",
        "CREATE UNIQUE INDEX objects_key ON objects (key)",
        "CREATE UNIQUE INDEX objects_lease ON objects (incarnation, shard, counter, epoch)",
        """CREATE TABLE extents (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            last_offset BIGINT NOT NULL,
            first_offset BIGINT NOT NULL,
            commit_number BIGINT NOT NULL,
            byte_start BIGINT NOT NULL,
            byte_length BIGINT NOT NULL,
            record_count INTEGER NOT NULL,
            first_timestamp_ms BIGINT NOT NULL,
            last_timestamp_ms BIGINT NOT NULL,
            running_max_ms BIGINT NOT NULL,
            codec INTEGER NOT NULL,
            crc32c BIGINT NOT NULL,
            voids BLOB,
            PRIMARY KEY (topic_id, partition, last_offset)
        ) WITHOUT ROWID""",
        "CREATE INDEX extents_commit ON extents (commit_number)",
        """CREATE TABLE gaps (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            gap_from BIGINT NOT NULL,
            gap_to BIGINT NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (topic_id, partition, gap_from)
        ) WITHOUT ROWID""",
        """CREATE TABLE deletions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL,
            locator TEXT NOT NULL,
            reason TEXT NOT NULL
        )""",
        "CREATE UNIQUE INDEX deletions_key ON deletions (key)",
        """CREATE TABLE void_extents (
            commit_number BIGINT NOT NULL,
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            byte_start BIGINT NOT NULL,
            byte_length BIGINT NOT NULL,
            record_count INTEGER NOT NULL,
            PRIMARY KEY (commit_number, topic_id, partition)
        ) WITHOUT ROWID""",
        """CREATE TABLE dedupe (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            topic_id BIGINT NOT NULL,
            key TEXT NOT NULL,
            created_ms BIGINT NOT NULL,
            answer BLOB NOT NULL
        )""",
        "CREATE UNIQUE INDEX dedupe_key ON dedupe (topic_id, key)",
    ),
    (
        "ALTER TABLE partitions ADD COLUMN compacted_seq BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE partitions ADD COLUMN lost_seq BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE partitions ADD COLUMN lost_reason TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE partitions ADD COLUMN freed_seq BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE objects ADD COLUMN free_ms BIGINT",
        "CREATE INDEX objects_free ON objects (free_ms) WHERE free_ms IS NOT NULL",
        """CREATE TABLE lake_tables (
            topic_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            metadata_location TEXT NOT NULL,
            switched_ms BIGINT NOT NULL,
            changed BIGINT NOT NULL
        )""",
        """CREATE TABLE lake_files (
            file_id INTEGER PRIMARY KEY AUTOINCREMENT,
            topic_id BIGINT NOT NULL,
            path TEXT NOT NULL,
            size_bytes BIGINT NOT NULL,
            rows BIGINT NOT NULL,
            run TEXT NOT NULL,
            dropped_ms BIGINT,
            changed BIGINT NOT NULL
        )""",
        "CREATE UNIQUE INDEX lake_files_path ON lake_files (path)",
        "CREATE INDEX lake_files_topic ON lake_files (topic_id)",
        "CREATE INDEX lake_files_changed ON lake_files (changed)",
        """CREATE TABLE lake_ranges (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            last_offset BIGINT NOT NULL,
            file_id BIGINT NOT NULL,
            first_offset BIGINT NOT NULL,
            rows BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            first_timestamp_ms BIGINT NOT NULL,
            last_timestamp_ms BIGINT NOT NULL,
            PRIMARY KEY (topic_id, partition, last_offset, file_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX lake_ranges_file ON lake_ranges (file_id)",
        """CREATE TABLE quarantine (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            first_offset BIGINT NOT NULL,
            last_offset BIGINT NOT NULL,
            key TEXT NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (topic_id, partition, first_offset)
        ) WITHOUT ROWID""",
        """CREATE TABLE runs (
            run TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            started_ms BIGINT NOT NULL,
            expires_ms BIGINT NOT NULL,
            ended_ms BIGINT
        )""",
        """CREATE TABLE read_leases (
            lease TEXT PRIMARY KEY,
            created_ms BIGINT NOT NULL,
            expires_ms BIGINT NOT NULL,
            what TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE topics ADD COLUMN table_name TEXT",
        "CREATE INDEX topics_table ON topics (lower(table_name)) WHERE deleted_ms IS NULL",
        """CREATE INDEX topics_undecided ON topics (topic_id)
            WHERE table_name IS NULL AND deleted_ms IS NULL""",
    ),
    (
        "ALTER TABLE quarantine ADD COLUMN found_ms BIGINT NOT NULL DEFAULT 0",
        """CREATE TABLE lost (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            first_offset BIGINT NOT NULL,
            last_offset BIGINT NOT NULL,
            key TEXT NOT NULL,
            reason TEXT NOT NULL,
            found_ms BIGINT NOT NULL,
            accepted_ms BIGINT NOT NULL,
            PRIMARY KEY (topic_id, partition, first_offset)
        ) WITHOUT ROWID""",
    ),
    # A lock of the kernel says whether a run lives (decision 0004); its lease was never renewed.
    ("ALTER TABLE runs DROP COLUMN expires_ms",),
    (
        "ALTER TABLE state ADD COLUMN change_number BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE state ADD COLUMN last_cursor_id BIGINT NOT NULL DEFAULT 0",
        """CREATE TABLE cursors (
            cursor_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            kind TEXT NOT NULL,
            created_ms BIGINT NOT NULL,
            deleted_ms BIGINT,
            changed BIGINT NOT NULL
        )""",
        "CREATE INDEX cursors_changed ON cursors (changed)",
        "CREATE UNIQUE INDEX cursors_live_name ON cursors (name) WHERE deleted_ms IS NULL",
        """CREATE TABLE cursor_positions (
            cursor_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            seq BIGINT NOT NULL,
            set_change BIGINT NOT NULL,
            set_seq BIGINT NOT NULL,
            changed BIGINT NOT NULL,
            PRIMARY KEY (cursor_id, partition)
        ) WITHOUT ROWID""",
        "CREATE INDEX cursor_positions_changed ON cursor_positions (changed)",
    ),
    (
        """CREATE TABLE routers (
            router_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            config TEXT NOT NULL,
            created_ms BIGINT NOT NULL,
            deleted_ms BIGINT,
            source_id BIGINT NOT NULL,
            dest_id BIGINT NOT NULL,
            cursor_id BIGINT NOT NULL,
            slot INTEGER NOT NULL,
            paused INTEGER NOT NULL,
            changed BIGINT NOT NULL
        )""",
        "CREATE INDEX routers_changed ON routers (changed)",
        "CREATE UNIQUE INDEX routers_live_name ON routers (name) WHERE deleted_ms IS NULL",
        "CREATE UNIQUE INDEX routers_live_slot ON routers (slot) WHERE deleted_ms IS NULL",
    ),
    (
        """CREATE TABLE subscriptions (
            subscription_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            config TEXT NOT NULL,
            created_ms BIGINT NOT NULL,
            deleted_ms BIGINT,
            topic_id BIGINT NOT NULL,
            dead_letter_id BIGINT,
            cursor_id BIGINT NOT NULL,
            slot INTEGER NOT NULL,
            changed BIGINT NOT NULL
        )""",
        "CREATE INDEX subscriptions_changed ON subscriptions (changed)",
        """CREATE UNIQUE INDEX subscriptions_live_name ON subscriptions (topic_id, name)
            WHERE deleted_ms IS NULL""",
        """CREATE UNIQUE INDEX subscriptions_live_slot ON subscriptions (slot)
            WHERE deleted_ms IS NULL""",
        """CREATE TABLE subscription_epochs (
            subscription_id INTEGER PRIMARY KEY,
            epoch BIGINT NOT NULL,
            changed BIGINT NOT NULL
        )""",
        "CREATE INDEX subscription_epochs_changed ON subscription_epochs (changed)",
        """CREATE TABLE finished_rows (
            cursor_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            row_number BIGINT NOT NULL,
            bits BLOB NOT NULL,
            changed BIGINT NOT NULL,
            PRIMARY KEY (cursor_id, partition, row_number)
        ) WITHOUT ROWID""",
        "CREATE INDEX finished_rows_changed ON finished_rows (changed)",
        """CREATE TABLE partition_growth (
            topic_id BIGINT NOT NULL,
            first_partition INTEGER NOT NULL,
            heads TEXT NOT NULL,
            PRIMARY KEY (topic_id, first_partition)
        ) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE push_rates (
            subscription_id BIGINT NOT NULL,
            sender INTEGER NOT NULL,
            mode INTEGER NOT NULL,
            rate DOUBLE PRECISION NOT NULL,
            ceiling DOUBLE PRECISION,
            PRIMARY KEY (subscription_id, sender)
        ) WITHOUT ROWID""",
    ),
    # Rows of what was deleted are found by these, and go (ledger/space/leftovers.py). A former
    # version would miss them.
    (
        "CREATE INDEX topics_deleted ON topics (changed) WHERE deleted_ms IS NOT NULL",
        """CREATE INDEX cursors_deleted ON cursors (changed)
            WHERE deleted_ms IS NOT NULL AND kind <> 'client'""",
        "CREATE INDEX routers_deleted ON routers (changed) WHERE deleted_ms IS NOT NULL",
        """CREATE INDEX subscriptions_deleted ON subscriptions (changed)
            WHERE deleted_ms IS NOT NULL""",
    ),
    (
        "ALTER TABLE cursors ADD COLUMN source TEXT",
        "ALTER TABLE cursors ADD COLUMN source_topic_id BIGINT",
        "ALTER TABLE cursors ADD COLUMN source_bytes BIGINT",
        "ALTER TABLE cursors ADD COLUMN told_ms BIGINT",
        "CREATE INDEX cursors_told ON cursors (told_ms) WHERE told_ms IS NOT NULL",
    ),
    # Settings of push have a token too, in their JSON.
    ("ALTER TABLE routers ADD COLUMN token TEXT",),
    (
        """CREATE TABLE producers (
            topic_id BIGINT NOT NULL,
            partition INTEGER NOT NULL,
            producer_id BIGINT NOT NULL,
            epoch INTEGER NOT NULL,
            recent BLOB NOT NULL,
            used_ms BIGINT NOT NULL,
            changed BIGINT NOT NULL,
            PRIMARY KEY (topic_id, partition, producer_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX producers_changed ON producers (changed)",
    ),
    (
        "ALTER TABLE state ADD COLUMN partitions BIGINT NOT NULL DEFAULT 0",
        "UPDATE state SET partitions = (SELECT count(*) FROM partitions WHERE deleted = 0)",
    ),
    ("ALTER TABLE cursor_positions ADD COLUMN metadata TEXT",),
    # Results of commits may have the verdict key_reused, which a former version cannot read.
    (),
    ("ALTER TABLE cursors ADD COLUMN used_ms BIGINT",),
)


def connect(path: Path, must_exist: bool) -> sqlite3.Connection:
    """A connection that commits durably. Raises LedgerMissing, LedgerUnusable, LedgerCorrupt.

    The caller holds the ledger lock: switching a new file to WAL needs exclusive access.
    """
    if must_exist and not path.exists():
        raise LedgerMissing(path)
    if not path.parent.is_dir():
        raise LedgerUnusable(path, f"there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise LedgerUnusable(path, f"the directory {path.parent} is not writable")
    make_file(path)  # its log gets the same mode
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
    )
    try:
        # Only before the first page of a new file; a former version's file stays as it is.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise LedgerUnusable(path, f"its file system gives journal mode {mode}, not wal")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = {-PAGE_CACHE_BYTES // 1024}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(
    connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS
) -> int:
    """Brings the schema to the last migration and returns its version; the lock is held.

    All missing migrations are one transaction. Raises LedgerFromFuture, and LedgerCorrupt for a
    database of another program.
    """
    found = _version(connection)
    if found > len(migrations):
        raise LedgerFromFuture(path, found, len(migrations))
    if found == len(migrations):
        return found
    connection.execute("BEGIN IMMEDIATE")
    try:
        if found == 0:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables:
                raise LedgerCorrupt(path, f"an SQLite file with {tables} tables of another program")
        for migration in migrations[found:]:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return len(migrations)


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
