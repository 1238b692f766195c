"""The owner's log on real stores: racing starts, seals that stay, logs with holes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Barrier

import msgspec
import pytest
from crc32c import crc32c

from ledger.log.backup import Mark
from ledger.log.entry import (
    PREFIX,
    Entry,
    EntryError,
    Image,
    Owner,
    entry_key,
    image_key,
    parse_image_key,
)
from tests.minio import Bucket
from uploader.ownership.ownerlog import (
    QUESTION_BYTES_MAX,
    Former,
    OwnedByAnother,
    OwnerLog,
    Question,
    SealedLog,
    question_key,
    question_of,
)
from uploader.ownership.ownership import ANSWER_NS, TAKE_OVER_NS
from uploader.stores import open_store
from uploader.stores.base import ObjectHead, ObjectStore, PartedStore

LATER = Owner("host", 1, "later", 1, 100, "/data")
FIRST = Owner("host", 1, "boot", 1, 100, "/data")
COPY = msgspec.structs.replace(FIRST, pid=2, inode=200, data_dir="/copy")
MARK = Mark(commit_number=7)


@pytest.fixture(params=["embedded", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path,
          monkeypatch: pytest.MonkeyPatch) -> Iterator[PartedStore]:  # fmt: skip
    if request.param == "embedded":
        made = open_store(f"file://{tmp_path}/store")
    else:
        bucket: Bucket = request.getfixturevalue("bucket")
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        made = open_store(bucket.url, endpoint_url=bucket.endpoint_url)
    with contextlib.closing(made):
        yield made


class Waits(list[float]):
    """The waits that a log asked for; they take no time."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def log_of(store: ObjectStore, owner: Owner = FIRST) -> tuple[OwnerLog, Waits]:
    waits = Waits()
    return OwnerLog(store, owner, waits), waits


def write(log: OwnerLog, incarnation: int, *kinds: str, first: int = 1) -> list[Entry]:
    """Entries of these kinds, numbered from ``first``."""
    written = []
    for number, kind in enumerate(kinds, first):
        assert kind in ("entry", "snapshot", "seal", "release")
        entry = log.entry(incarnation, number, kind, MARK)  # type: ignore[arg-type]  # looked at above
        if kind == "snapshot":  # as versions up to 2 wrote them
            entry = msgspec.structs.replace(entry, image=b"image")
        assert log.put(entry)
        written.append(entry)
    return written


def test_of_racing_writers_exactly_one_gets_each_number(store: ObjectStore) -> None:
    racers = 3
    logs = [log_of(store, msgspec.structs.replace(FIRST, pid=n))[0] for n in range(racers)]
    gate = Barrier(racers)

    def race(log: OwnerLog, number: int) -> tuple[bytes, bool]:
        entry = log.entry(1, number, "entry", MARK)
        gate.wait()
        return entry.nonce, log.put(entry)

    with ThreadPoolExecutor(racers) as pool:
        for number in range(1, 11):
            fates = list(pool.map(race, logs, [number] * racers))
            (winner,) = [nonce for nonce, accepted in fates if accepted]
            assert logs[0].read(1, number).nonce == winner
    assert logs[0].keys() == [(1, number) for number in range(1, 11)]


def test_of_two_simultaneous_starts_one_gets_the_first_entry(store: ObjectStore) -> None:
    write(log_of(store)[0], 1, "entry", "release")
    logs = [log_of(store, owner)[0] for owner in (FIRST, COPY)]
    gate = Barrier(2)

    def start(log: OwnerLog) -> bool:
        gate.wait()
        taken = log.take(take_over=True)
        assert taken.last is not None and taken.last.kind == "release"
        gate.wait()
        return log.put(log.entry(taken.incarnation + 1, 1, "entry", MARK))

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(start, logs)) == [False, True]


def test_a_lost_answer_is_recognized_by_the_nonce(store: ObjectStore) -> None:
    log, _ = log_of(store)
    sent = log.entry(1, 1, "entry", MARK)
    assert log.put(sent)  # and suppose that nobody heard of it
    assert not log.put(sent)
    assert log.read(1, 1).nonce == sent.nonce
    assert log.entry(1, 1, "entry", MARK).nonce != sent.nonce


def test_a_new_prefix_is_taken_without_a_seal(store: ObjectStore) -> None:
    log, waits = log_of(store)
    taken = log.take(take_over=False)
    assert (taken.incarnation, taken.last, taken.former) == (0, None, Former.NONE)
    assert log.keys() == [] and not waits and list(log.chain()) == []


@pytest.mark.parametrize(
    ("kinds", "owner", "former", "waited_s"),
    [
        (("entry", "release"), COPY, Former.RELEASED, []),
        (("entry", "entry"), msgspec.structs.replace(FIRST, pid=9), Former.OURS, []),
    ],
)
def test_a_start_seals_the_log_and_waits_if_the_former_owner_may_live(
    store: ObjectStore, kinds: tuple[str, ...], owner: Owner, former: Former, waited_s: list[float]
) -> None:
    writer, _ = log_of(store)
    *_, last = write(writer, 1, *kinds)
    log, waits = log_of(store, owner)
    taken = log.take(take_over=False)
    assert (taken.incarnation, taken.last, taken.former) == (1, last, former)
    assert waits == waited_s
    assert log.read(1, 3).kind == "seal" and log.read(1, 3).owner == owner
    assert log.last() == last
    # The former owner's next number is taken, by a nonce that is not its own.
    late = writer.entry(1, 3, "entry", MARK)
    assert not writer.put(late) and writer.read(1, 3).nonce != late.nonce


def test_after_a_reboot_a_start_asks_for_the_owner_and_continues_without_an_answer(
    store: ObjectStore,
) -> None:
    write(log_of(store)[0], 1, "entry", "entry")
    log, waits = log_of(store, LATER)
    assert log.take(take_over=False).former is Former.REBOOTED
    assert waits.pop() == TAKE_OVER_NS / 1e9
    assert sum(waits) == ANSWER_NS / 1e9
    assert log.keys()[-1] == (1, 3) and not list(store.list("probe"))


def test_a_copy_of_a_running_machine_does_not_take_over_unasked(store: ObjectStore) -> None:
    writer, _ = log_of(store)
    write(writer, 1, "entry", "entry")
    assert writer.question(1) is None
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:  # the original is idle, and looks now and then
            assert writer.question(1) is not None
            write(writer, 1, "entry", first=3)

    log = OwnerLog(store, LATER, wait)
    with pytest.raises(OwnedByAnother, match="its log grows, so that daemon runs"):
        log.take(take_over=False)
    assert log.keys() == [(1, 1), (1, 2), (1, 3)], "the original is not sealed off"
    assert len(waits) == 2 and writer.question(1) is None
    assert log.take(take_over=True).former is Former.REBOOTED
    assert waits[2:] == [TAKE_OVER_NS / 1e9]


def test_a_question_left_by_a_dead_start_serves_the_next_one(store: ObjectStore) -> None:
    class Killed(BaseException):
        pass

    def killed(_: float) -> None:
        raise Killed

    writer, _ = log_of(store)
    write(writer, 1, "entry")
    with pytest.raises(Killed):
        OwnerLog(store, LATER, killed).take(take_over=False)
    assert writer.question(1) is not None and writer.keys() == [(1, 1)]
    log, waits = log_of(store, LATER)
    assert log.take(take_over=False).former is Former.REBOOTED
    assert sum(waits) == (ANSWER_NS + TAKE_OVER_NS) / 1e9 and writer.question(1) is None


def test_another_directory_is_refused_naming_the_owner_and_leaves_no_trace(
    store: ObjectStore,
) -> None:
    write(log_of(store)[0], 1, "entry", "entry")
    log, waits = log_of(store, COPY)
    with pytest.raises(OwnedByAnother, match=r"/data of host host \(pid 1, its last entry \d+ s"):
        log.take(take_over=False)
    assert log.keys() == [(1, 1), (1, 2)] and not waits


def test_a_take_over_waits_even_if_another_start_has_sealed_before(store: ObjectStore) -> None:
    _, last = write(log_of(store)[0], 1, "entry", "entry")
    log_of(store, msgspec.structs.replace(COPY, pid=3))[0].take(take_over=True)
    log, waits = log_of(store, COPY)
    taken = log.take(take_over=True)
    assert (taken.incarnation, taken.last, taken.former) == (1, last, Former.ANOTHER)
    assert waits == [20.0]
    assert log.keys() == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_an_entry_between_reading_and_sealing_is_the_last_one(store: ObjectStore) -> None:
    writer, _ = log_of(store)
    write(writer, 1, "entry")
    log, _ = log_of(store, COPY)
    look = log._entry

    def read_late(head: ObjectHead) -> Entry:
        found = look(head)
        if writer.keys() == [(1, 1)]:
            write(writer, 1, "entry", first=2)
        return found

    log._entry = read_late  # type: ignore[method-assign]  # the moment between two calls
    taken = log.take(take_over=True)
    assert taken.last is not None and taken.last.number == 2
    assert log.read(1, 3).kind == "seal"


def put_image(store: PartedStore, incarnation: int, after: int, nonce: int = 1) -> Image:
    body = b"image of %d" % nonce
    key = image_key(incarnation, after, nonce.to_bytes(8, "big"))
    made = store.put_in_parts(key)
    made.put(body)
    made.finish()
    return Image(key, len(body), crc32c(body), after, 7)


def images(store: ObjectStore) -> list[str]:
    return [head.key for head in store.list(PREFIX) if parse_image_key(head.key)]


def test_an_image_removes_what_it_covers_except_seals_and_first_entries(
    store: PartedStore,
) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry", "entry", "entry", "seal", "seal")
    write(log, 2, "entry", "release", "seal")
    put_image(store, 2, 1, nonce=1)
    put_image(store, 3, 2, nonce=2)  # begun before it, and never named
    write(log, 3, "entry", "entry")
    image = put_image(store, 3, 2, nonce=3)
    later = put_image(store, 3, 3, nonce=4)
    write(log, 3, "entry", first=3)  # sent while the image was on its way
    assert log.image() is None
    naming = log.entry(3, 4, "entry", MARK, names=image)
    assert log.put(naming)
    write(log, 3, "entry", first=5)
    file = BytesIO(b"something that is longer than the image")
    log.get_image(image, file)
    assert log.image() == image and file.getvalue() == b"image of 3"
    assert log.forget_before(image) == (2 + 1 + 1, 2)
    assert log.keys() == [(1, 1), (1, 4), (1, 5), (2, 1), (2, 3), (3, 1), (3, 3), (3, 4), (3, 5)]
    assert images(store) == [image.key, later.key]
    # Entries from before the image was named are applied after it.
    assert log.image() == image
    assert [(e.incarnation, e.number) for e in log.chain(image)] == [(3, 3), (3, 4), (3, 5)]
    assert log.forget_before(image) == (0, 0)
    # Who was stopped before all that still cannot write.
    assert not log.put(log.entry(1, 4, "entry", MARK))
    assert not log.put(log.entry(2, 3, "entry", MARK))
    # Nor can a start that was stopped after its seal.
    assert not log.put(log.entry(2, 1, "entry", MARK))
    assert not log.put(log.entry(3, 1, "entry", MARK))


def test_an_image_is_followed_across_the_seals_of_later_starts(store: PartedStore) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry")
    image = put_image(store, 1, 1)
    assert log.put(log.entry(1, 2, "release", MARK, names=image))
    write(log, 1, "seal", first=3)
    write(log, 2, "entry", "seal")
    log.forget_before(image)
    assert [(e.incarnation, e.number) for e in log.chain(log.image())] == [
        (1, 2), (1, 3), (2, 1), (2, 2)
    ]  # fmt: skip
    newer = put_image(store, 3, 1, nonce=2)
    write(log, 3, "entry")
    assert log.put(log.entry(3, 2, "entry", MARK, names=newer))
    assert log.image() == newer


def test_a_former_owner_that_wakes_up_leaves_a_later_owners_image(store: PartedStore) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry", "entry")
    former = put_image(store, 1, 2, nonce=1)
    assert log.put(log.entry(1, 3, "entry", MARK, names=former))  # and is stopped here
    write(log, 1, "seal", first=4)
    write(log, 2, "entry", "entry")
    later = put_image(store, 2, 2, nonce=2)
    assert log.put(log.entry(2, 3, "entry", MARK, names=later))
    assert log.forget_before(later) == (3, 1)
    assert log.forget_before(former) == (0, 0)
    assert images(store) == [later.key] and log.image() == later


def test_a_damaged_image_is_named_and_a_lost_one_makes_the_log_incomplete(
    store: PartedStore,
) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry", "entry")
    image = put_image(store, 1, 2)
    assert log.put(log.entry(1, 3, "entry", MARK, names=image))
    for wrong in (
        msgspec.structs.replace(image, crc32c=1),
        msgspec.structs.replace(image, size_bytes=3),
    ):
        with pytest.raises(EntryError, match=f"{image.key} is damaged"):
            log.get_image(wrong)
    log.forget_before(image)
    store.delete([head.locator for head in store.list(image.key)])
    assert log.image() is None
    with pytest.raises(EntryError, match=f"nor is the image {image.key} that {entry_key(1, 3)}"):
        list(log.chain(log.image()))


def test_entries_after_the_last_image_are_counted_across_starts(store: PartedStore) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry", "entry", "entry", "entry")
    assert log.entries_behind == 4 and log.bytes_behind > 4 * 100
    image = put_image(store, 1, 2)
    assert log.put(log.entry(1, 5, "entry", MARK, names=image))
    assert (log.entries_behind, log.bytes_behind) == (3, 0)
    write(log, 1, "entry", first=6)
    log.forget_before(image)
    again, _ = log_of(store)
    again.take(take_over=False)
    # Of 1, 3, 4, 5, 6 and our seal: first entries and seals stay, and are not news.
    assert again.entries_behind == 4 and again.bytes_behind > 4 * 100


def test_a_missing_entry_is_named_unless_a_snapshot_follows_it(store: ObjectStore) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry", "entry", "entry", "seal")
    write(log, 2, "entry")
    assert [e.number for e in log.chain()] == [1, 2, 3, 4, 1]
    store.delete([head.locator for head in store.list(entry_key(1, 2))])
    with pytest.raises(EntryError, match=entry_key(1, 2)):
        list(log.chain())
    write(log, 2, "snapshot", "entry", first=2)
    assert [e.number for e in log.chain()][-2:] == [2, 3]


def test_a_foreign_object_in_the_log_is_named(store: ObjectStore) -> None:
    log, _ = log_of(store)
    write(log, 1, "entry")
    assert store.put_if_absent("ledger/readme.txt", b"hello")
    with pytest.raises(EntryError, match=r"ledger/readme\.txt"):
        log.take(take_over=True)


def test_a_seal_at_a_number_that_an_image_has_freed_counts_for_nothing(store: ObjectStore) -> None:
    log, _ = log_of(store)
    last = write(log, 1, "entry", "entry", "entry", "entry")[-1]
    store.delete([head.locator for head in store.list(entry_key(1, 3))])
    standby, _ = log_of(store, COPY)
    assert standby.take_after((1, 2), last) is None, "the log goes on"
    # As of a standby that was stopped between its LIST and its seal.
    assert not standby._seal(standby.entry(1, 3, "seal", MARK))
    taken = standby.take_after((1, 4), last)
    assert taken is not None and (taken.last, taken.former) == (last, Former.ANOTHER)
    assert standby.take_after((1, 4), last) is None, "of two standbys one wins"


def test_a_standby_takes_a_free_or_a_released_log_without_waiting(store: ObjectStore) -> None:
    standby, waits = log_of(store, COPY)
    assert standby.take_after(None, None) == SealedLog(0, None)
    released = write(log_of(store)[0], 1, "entry", "release")[-1]
    assert standby.take_after((1, 2), released) == SealedLog(1, released, Former.RELEASED)
    assert not waits


def test_of_what_stands_for_a_question_little_is_read_whoever_put_it(store: ObjectStore) -> None:
    log, _ = log_of(store)
    for body in (b"", b"?", bytes(QUESTION_BYTES_MAX + 1)):
        assert store.put_if_absent(question_key(1), body)
        assert log.question(1) == body[:QUESTION_BYTES_MAX]
        log.forget_question(1)
    assert log.question(1) is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"[]", b'{"nonce": "1"}', b'{"x": ' + b"[" * QUESTION_BYTES_MAX,
        msgspec.json.encode(Question("1", COPY, -1)),
        msgspec.json.encode(Question("1", COPY, 1 << 63)),
    ],
    ids=["empty", "no text", "a list", "unfinished", "nested", "negative", "too large"],
)  # fmt: skip
def test_what_is_not_a_standbys_question_is_a_starts(body: bytes) -> None:
    assert question_of(body) is None
