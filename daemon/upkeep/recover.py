"""Recovery: a ledger from the store alone (protocol 6), and what a start does with the one it has.

The entries of the owner's log are applied in order to a new file next to the ledger; then come the
objects that no entry lists. Complete, the file takes the ledger's place, and the one before stays
next to it under another name. Until then the data directory is as it was, so a recovery that was
broken off is begun again.

The caller holds the directory's lock, has sealed the former owner's log and waited
(``OwnerLog.take``), so nobody commits meanwhile. What is not listed may have been acknowledged:
its records are kept, at offsets that nobody can have been given.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import select
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path

from msgspec import Struct

from daemon.access.audit import note_command
from daemon.config import Config
from daemon.upkeep.lake_catalog import register_tables
from daemon.upkeep.owner import OtherHistory, check_history, this_owner
from ledger import commits, cursors, epochs, reads, topics
from ledger.dedupe import DedupeLimits
from ledger.errors import DraftInvalid
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import Mark
from ledger.private_files import opener
from ledger.space import deletions
from ledger.types import Commit, CommitDraft, LeaseId, ObjectRow
from shards.clock import monotonic_ns, wall_ms
from uploader.l0 import Footer, L0Error, epoch_prefix, fetch_footer, parse_key
from uploader.ownership.ownerlog import Former, OwnedByAnother, OwnerLog, SealedLog
from uploader.ownership.unlisted import (
    RingOrder,
    Unlisted,
    cursors_of,
    is_orphan,
    records_by_partition,
    records_without_key,
    topics_of,
    without_renamed,
)
from uploader.stores.base import ObjectHead, ObjectMissing, ObjectStore
from uploader.stores.disk import sync_directory
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore
from uploader.stores.verified import verified

log = logging.getLogger("headgate.recover")

FOOTER_THREADS = 8
TAKEN_AT_ONCE = 256  # objects in one transaction
RECORD_BYTES_MIN = 2  # a record in a payload; how many a damaged object held at most

Advance = Callable[[int], object]


class UnreadableObject(Struct, frozen=True):
    """An object that is not as it must be, and why; it is left where it is."""

    key: str
    problem: str


class GapMade(Struct, frozen=True):
    """Offsets that no record has: they may have been given to records that are now behind."""

    topic: str
    partition: int
    gap_from: int
    gap_to: int


class RecoveryReport(Struct):
    """What a recovery found and did. Objects: all under ``l0/`` are in one of the counts.

    ``records_void``: of unlisted objects, and not stored, for their ``expected_seq`` or the
    position of their cursor did not hold. ``records_copied_again``: not stored either, for a router
    copies them again, or a subscription sends their origin again. ``records_may_be_doubled``: their
    producers may have no answer and have sent them again, and no idempotency key, expectation or
    cursor tells.
    """

    entries: int = 0
    objects: int = 0
    objects_listed: int = 0
    objects_taken: int = 0
    objects_orphan: int = 0
    objects_named_for_deletion: int = 0
    corrupt: list[UnreadableObject] = []
    missing: list[str] = []
    records_listed: int = 0
    records_taken: int = 0
    records_void: int = 0
    records_copied_again: int = 0
    records_may_be_doubled: int = 0
    topics_restored: list[str] = []
    gaps: list[GapMade] = []
    kept_ledger: str | None = None
    tables_registered: list[str] = []
    seconds: float = 0.0
    objects_per_second: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing was damaged or missing."""
        return not self.corrupt and not self.missing


def settle(
    ledger_path: str, lock: contextlib.AbstractContextManager[object], store: ObjectStore,
    taken: SealedLog, owner_log: OwnerLog, limits: DedupeLimits | None = None, *, take_over: bool,
    warm: Path | None = None,
) -> RecoveryReport | None:  # fmt: skip
    """Makes the ledger in the data directory one that may be served from; for a start. ``warm``: a
    standby's, which holds all entries.

    After another's seal only the store knows what was acknowledged. Our own ledger holds all of
    it, but after a boot: its last seconds may be another disk's (a replica, a copied machine).
    Raises OtherHistory, LedgerError, StoreError, EntryError.
    """
    path = Path(ledger_path)
    if warm is not None and taken.last is None and not take_over:
        with contextlib.closing(Ledger(path, lock)) as ledger:
            check_history(ledger, None, store.url)  # a mistyped store looks like a new one
    if taken.former is Former.ANOTHER or warm is not None:
        return rebuild(path, lock, store, taken, owner_log, limits, warm=warm)
    with contextlib.closing(Ledger(path, lock, dedupe_limits=limits)) as ledger:
        try:
            check_history(ledger, taken.last, store.url)
        except OtherHistory:
            if not take_over:
                raise
        else:
            if taken.former is not Former.REBOOTED:
                return None
            report = RecoveryReport()
            take_unlisted(ledger, store, taken.incarnation, taken.told, report, lambda _: None)
            return report
    return rebuild(path, lock, store, taken, owner_log, limits)


def rebuild(
    path: Path, lock: contextlib.AbstractContextManager[object], store: ObjectStore,
    taken: SealedLog, owner_log: OwnerLog, limits: DedupeLimits | None = None,
    progress: Callable[[int], contextlib.AbstractContextManager[Advance]] | None = None,
    *, warm: Path | None = None,
) -> RecoveryReport:  # fmt: skip
    """Builds the ledger at ``path`` anew from log and objects. ``progress(n)`` shows n objects.
    ``warm`` holds all entries already; then nothing is counted that takes longer the larger the
    ledger is.

    Raises LedgerError, StoreError, EntryError; then the ledger is as it was.
    """
    began_ns = monotonic_ns()
    report = RecoveryReport()
    aside = path.with_name(path.name + ".recovering")
    for suffix in ("", "-wal", "-shm"):
        aside.with_name(aside.name + suffix).unlink(missing_ok=True)
    if warm is None:
        _apply_entries(aside, lock, owner_log, report)
    else:
        for suffix in ("", "-wal"):  # a close that failed leaves a log
            part = warm.with_name(warm.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    with contextlib.closing(Ledger(aside, lock, dedupe_limits=limits)) as ledger:
        check_complete(ledger, taken, store.url)
        ledger.write(
            recovery.begin_history, secrets.token_hex(8), taken.told, followed=warm is not None
        )
        show = progress or _no_progress
        if warm is None:
            report.records_listed = sum(row.records for row in _rows(ledger))
        with show(0 if progress is None else sum(1 for _ in store.list("l0/"))) as advance:
            take_unlisted(
                ledger, store, taken.incarnation, taken.told, report, advance,
                all_objects=warm is None,
            )  # fmt: skip
    kept = f"{path.name}.before-{'standby' if warm is not None else wall_ms()}"
    report.kept_ledger = _move_into_place(aside, path, path.with_name(kept))
    report.seconds = (monotonic_ns() - began_ns) / 1e9
    report.objects_per_second = report.objects / report.seconds
    log.info(
        "the ledger was rebuilt in %.1f s: %d entries, %d objects, %d of them unlisted",
        report.seconds, report.entries, report.objects, report.objects_taken,
    )  # fmt: skip
    return report


def check_complete(ledger: Ledger, taken: SealedLog, store_url: str) -> None:
    """Raises OtherHistory when entries do not add up to what the last one says."""
    if taken.last is not None:
        there = taken.last.mark.commit_number
        here = ledger.read(commits.latest_number)
        if here < there:
            raise OtherHistory(
                f"the entries in {store_url} hold {here} commits, but the last one says {there}:"
                " a part of the owner's log was deleted or put back"
            )


class NothingThere(RuntimeError):
    """A store from which an empty ledger would be made: a mistyped name looks like that."""


def check_not_empty(store: ObjectStore, owner_log: OwnerLog) -> None:
    """Raises NothingThere when no entry tells of a topic or a commit and there is no object."""
    last = owner_log.last()
    told = last is not None and (last.mark.commit_number or last.mark.catalog_version)
    if not told and next(iter(store.list("l0/")), None) is None:
        raise NothingThere(
            f"{store.url} has no objects, and no owner's log that tells of any, so there is nothing"
            " to recover; look at --store, or make an empty ledger with --allow-empty"
        )


def recover(
    config: Config, lock: contextlib.AbstractContextManager[object], store: ObjectStore,
    *, take_over: bool, allow_empty: bool,
    sleep_s: Callable[[float], object],
    progress: Callable[[int], contextlib.AbstractContextManager[Advance]] | None = None,
) -> RecoveryReport:  # fmt: skip
    """``headgate recover``: take the prefix, rebuild, say so in the log, give it back.

    The directory's lock is held. Raises OwnedByAnother without ``take_over`` when the former
    owner is known to live, NothingThere without ``allow_empty``; OtherHistory, LedgerError,
    StoreError, EntryError.
    """
    owner_log = OwnerLog(store, this_owner(config.data_dir), sleep_s)
    if not allow_empty:
        check_not_empty(store, owner_log)  # before anything is written there
    store.check()
    last = owner_log.last()
    if last is not None and not take_over and owner_log.former(last) is Former.ANOTHER:
        mine = owner_log.owner
        if (last.owner.host, last.owner.boot_id) == (mine.host, mine.boot_id) and lives(
            last.owner.pid
        ):
            raise OwnedByAnother(last, wall_ms())
    if last is not None and not take_over and owner_log.former(last) is Former.REBOOTED:
        owner_log.await_silence()
    taken = owner_log.take(take_over=True)
    path = Path(config.ledger_path)
    report = rebuild(path, lock, store, taken, owner_log, config.dedupe_limits, progress)
    with contextlib.closing(Ledger(path, lock)) as ledger:
        tell(ledger, owner_log, taken)
        report.tables_registered = register_tables(config, ledger)
    note_command(config.audit_log, "recovered", take_over=take_over, sound=report.sound)
    return report


def tell(ledger: Ledger, owner_log: OwnerLog, taken: SealedLog) -> None:
    """An incarnation of two entries: what is new in the ledger, and that the prefix is free.

    Raises OtherHistory when another start was faster, StoreError.
    """
    incarnation, _ = ledger.write(epochs.begin_incarnation, wall_ms(), taken.incarnation)
    mark, changes = ledger.read(backup.changes_since, taken.told)
    first = owner_log.entry(incarnation, 1, "entry", mark, changes)
    if not owner_log.put(first) and owner_log.read(incarnation, 1).nonce != first.nonce:
        raise OtherHistory(
            f"another daemon started on {owner_log.store_url} at the same moment; the recovered"
            " ledger is not its: run `headgate recover` again if it must be here"
        )
    owner_log.put(owner_log.entry(incarnation, 2, "release", mark))


def lives(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and is not reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def say(report: RecoveryReport) -> None:
    """Logs what a start had to recover."""
    if report.objects_taken or report.gaps:
        log.warning(
            "%d objects with %d records that no entry lists were taken, since they may have been"
            " acknowledged; %d of their records may be duplicates; offsets were skipped in %d"
            " partitions", report.objects_taken, report.records_taken,
            report.records_may_be_doubled, len(report.gaps),
        )  # fmt: skip
    for problem in report.corrupt:
        log.error("object %s is damaged or foreign: %s", problem.key, problem.problem)
    for key in report.missing:
        log.error("object %s is in the ledger and not in the store", key)


def sleep_s(seconds: float) -> None:
    """Waits; a signal of the terminal ends the process meanwhile."""
    select.select([], [], [], seconds)


def _apply_entries(
    aside: Path, lock: contextlib.AbstractContextManager[object], owner_log: OwnerLog,
    report: RecoveryReport,
) -> None:  # fmt: skip
    image = owner_log.image()
    if image is not None:
        with open(aside, "xb", opener=opener) as file:
            owner_log.get_image(image, file)
    ledger = Ledger(aside, lock)
    try:
        for entry in owner_log.chain(image):
            report.entries += 1
            if entry.image is not None:
                ledger.close()
                for suffix in ("", "-wal", "-shm"):
                    aside.with_name(aside.name + suffix).unlink(missing_ok=True)
                with open(aside, "xb", opener=opener) as file:
                    file.write(entry.image)
                ledger = Ledger(aside, lock)
            elif entry.changes is not None:
                ledger.write(backup.apply, entry.changes)
    finally:
        ledger.close()


def take_unlisted(
    ledger: Ledger, store: ObjectStore, incarnation: int, told: Mark, report: RecoveryReport,
    advance: Advance, *, all_objects: bool = True,
) -> None:  # fmt: skip
    """Looks through the store and takes what the ledger does not list and may have been committed.
    Without ``all_objects`` only through those above the epoch floor, which no orphan is.

    Fills the report, except what a rebuild adds. Raises LedgerError, StoreError.
    """
    store = RetryingStore(store, COMMAND, random.Random(store.url), sleep_s)
    floor = ledger.read(epochs.floor)
    named = ledger.read(deletions.keys)
    heads: list[ObjectHead] = []
    seen: set[str] = set()
    epoch_max = 0
    previous = ""
    start_after = "" if all_objects else epoch_prefix(floor)
    for head in store.list("l0/", start_after):
        if head.key == previous:
            continue  # equal frames of the embedded store
        previous = head.key
        report.objects += 1
        lease = _lease_of(head.key, report)
        if lease is None:
            advance(1)
            continue
        epoch_max = max(epoch_max, lease.epoch)
        if ledger.read(reads.object_by_key, head.key) is not None:
            report.objects_listed += 1
            seen.add(head.key)
        elif head.key in named:
            report.objects_named_for_deletion += 1
        elif is_orphan(lease, floor, incarnation):
            report.objects_orphan += 1
        else:
            heads.append(head)
            continue
        advance(1)
    if all_objects:
        report.missing = [
            row.key for row in _rows(ledger) if row.key not in seen and row.key not in named
        ]
    found: list[Unlisted] = []
    damaged_bytes = 0
    for head, footer in _footers(store, heads):
        advance(1)
        if isinstance(footer, Footer):
            found.append(Unlisted(head, footer))
        else:
            damaged_bytes += head.size_bytes
            report.corrupt.append(UnreadableObject(head.key, str(footer)))
    found, renamed = without_renamed(found)
    report.objects_orphan += len(renamed)
    names, gaps = ledger.write(
        recovery.prepare,
        told,
        topics_of(found),
        records_by_partition(found),
        damaged_bytes // RECORD_BYTES_MIN,
        epoch_max,
    )
    report.topics_restored = names
    for gap in gaps:
        topic = ledger.read(topics.by_id, gap.topic_id)
        assert topic is not None
        report.gaps.append(GapMade(topic.name, gap.partition, gap.gap_from, gap.gap_to))
    ends = {
        place: state.next_seq - 1
        for place, state in ledger.read(reads.heads, [t.topic_id for t in topics_of(found)])[
            1
        ].items()
    }
    order = RingOrder(
        found, ledger.read(commits.latest_number), records_by_partition(found), ends,
        ledger.read(cursors.settings_of, cursors_of(found)), exact=not damaged_bytes,
    )  # fmt: skip
    _take(ledger, order, report)
    report.records_may_be_doubled = records_without_key(found)


def _take(ledger: Ledger, order: RingOrder, report: RecoveryReport) -> None:
    item: Unlisted

    def drafts(items: Iterable[Unlisted]) -> Iterator[CommitDraft]:
        nonlocal item
        for item in items:
            yield item.draft(order.conditions(item))

    def told(commit: Commit | DraftInvalid) -> None:
        if isinstance(commit, DraftInvalid):
            report.corrupt.append(UnreadableObject(item.head.key, str(commit)))
            return
        order.taken(commit, item)
        void = {(verdict.shard, verdict.position): verdict.kind for verdict in commit.verdicts}
        report.objects_taken += 1
        report.records_taken += sum(extent.record_count for extent in item.footer.extents)
        for condition in item.footer.conditions:
            kind = void.get((condition.shard, condition.position))
            count = sum(part.record_count for part in condition.parts)
            report.records_taken -= 0 if kind is None else count
            is_ours = condition.advance is not None and condition.advance.is_ours
            if is_ours and kind == "cursor_unknown":
                report.records_copied_again += count
            elif kind not in (None, "deduped", "topic_deleted"):
                report.records_void += count

    left = iter(order)
    while some := next(left, None):
        taken = drafts(chain([some], islice(left, TAKEN_AT_ONCE - 1)))
        ledger.write(recovery.take, taken, told, ledger.dedupe_limits)


def _lease_of(key: str, report: RecoveryReport) -> LeaseId | None:
    try:
        return parse_key(key)
    except L0Error as error:
        report.corrupt.append(
            UnreadableObject(key, f"no object of headgate has such a key: {error}")
        )
        return None


def _footers(
    store: ObjectStore, heads: list[ObjectHead]
) -> Iterator[tuple[ObjectHead, Footer | L0Error | ObjectMissing]]:
    """The footers in the order of ``heads``, several at a time."""
    with ThreadPoolExecutor(FOOTER_THREADS, thread_name_prefix="footers") as pool:
        left = iter(heads)
        while batch := list(islice(left, 64 * FOOTER_THREADS)):
            yield from zip(batch, pool.map(partial(_footer, store), batch), strict=True)


def _footer(store: ObjectStore, head: ObjectHead) -> Footer | L0Error | ObjectMissing:
    try:
        # A gap in the place of what was acknowledged is final: read again first.
        return verified(partial(_footer_once, store, head), store.reconnect, L0Error, head.key)
    except (L0Error, ObjectMissing) as error:
        return error


def _footer_once(store: ObjectStore, head: ObjectHead) -> Footer:
    footer = fetch_footer(partial(store.get, head.locator), head.size_bytes, head.key)
    if footer.lease_id != parse_key(head.key):
        raise L0Error(head.key, head.size_bytes, "the footer of this key", str(footer.lease_id))
    return footer


def _rows(ledger: Ledger) -> Iterator[ObjectRow]:
    after = 0
    while page := ledger.read(reads.objects, after):
        yield from page
        after = page[-1].commit_number


@contextlib.contextmanager
def _no_progress(_: int) -> Iterator[Advance]:
    yield lambda step: None


def _move_into_place(aside: Path, path: Path, kept: Path) -> str | None:
    """The new ledger under the ledger's name, durably; the name that the former one has now, which
    is ``kept`` if there was one.

    Each step is durable before the next one: a loss of power may keep any of the renames since
    the last sync, and a log next to a database that is not its own would be applied to it.
    """
    there_was_one = path.exists()
    if there_was_one:
        for suffix in ("", "-wal"):  # what an earlier take-over kept: one is enough
            kept.with_name(kept.name + suffix).unlink(missing_ok=True)
        sync_directory(path.parent)
        # Its log second: a database without its log is an older one, and would be believed; a
        # log without its database SQLite removes.
        for suffix in ("", "-wal"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(kept.with_name(kept.name + suffix))
                sync_directory(path.parent)
    for leftover in ("-wal", "-shm"):
        path.with_name(path.name + leftover).unlink(missing_ok=True)
    sync_directory(path.parent)
    fd = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    aside.rename(path)
    sync_directory(path.parent)
    return str(kept) if there_was_one else None
