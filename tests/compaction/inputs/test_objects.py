"""Objects are read once, damage is named by extent, and a store that fails fails the task."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import compaction.inputs.objects as fetching
from compaction.inputs.objects import (
    Fetched,
    StoreFailed,
    TaskExtent,
    TaskObject,
    fetch,
    fetch_all,
    ranges_of,
)
from compaction.inputs.place import Place
from ledger.lake.types import PlannedObject
from shards.checksum import crc32c
from tests.compaction.objects import NOON_MS, Draft, Heads, put
from uploader.l0.records import Record
from uploader.stores.base import ObjectStore, StoreBusy, StoreError, StoreRefused
from uploader.stores.file import FileStore
from uploader.stores.retry import Budget
from uploader.stores.verified import READS_MAX


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    """A store on a folder."""
    store = FileStore(tmp_path / "store")
    yield store
    store.close()


class Counting(FileStore):
    """A store that counts its reads, and whose first reads fail as they are told."""

    def __init__(self, store: FileStore, *errors: StoreError) -> None:
        super().__init__(store.directory)
        self._errors = list(errors)
        self.gets: list[tuple[int, int | None]] = []

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        self.gets.append((start, length))
        if self._errors:
            raise self._errors.pop(0)
        return super().get(locator, start, length)


def drafts(topics: int = 3, size: int = 1000) -> list[Draft]:
    """An extent of about that size for each topic."""
    record = Record("x" * size)
    return [Draft(topic, 0, [(NOON_MS, [record])]) for topic in range(1, topics + 1)]


def wanted(planned: PlannedObject, *topics: int) -> TaskObject:
    """The object with the extents of these topics, all without; the group is the topic's id."""
    return TaskObject(
        planned.key,
        planned.locator,
        planned.size_bytes,
        tuple(
            TaskExtent(e.topic_id, e.partition, e.first_offset, e.last_offset, e.byte_start,
                       e.byte_length, e.crc32c, e.voids)
            for e in planned.extents
            if not topics or e.topic_id in topics
        ),
    )  # fmt: skip


def reasons(fetched: Fetched) -> dict[int, str]:
    """The holes by topic."""
    return {extent.group: data for extent, data in fetched.extents if isinstance(data, str)}


def read(store: ObjectStore, each: TaskObject) -> dict[int, bytes]:
    """The bytes by topic."""
    return {
        extent.group: bytes(data.data)
        for extent, data in fetch(store, each).extents
        if not isinstance(data, str)
    }


def test_an_object_is_read_by_one_request(store: FileStore) -> None:
    planned = put(store, Heads(), drafts())
    counting = Counting(store)
    fetched = fetch(counting, wanted(planned))
    assert counting.gets == [(0, None)] and fetched.requests == 1
    assert fetched.bytes_read == planned.size_bytes and not reasons(fetched)
    body = store.get(planned.locator)
    for extent, data in fetched.extents:
        assert not isinstance(data, str)
        assert bytes(data.data) == body[extent.byte_start :][: extent.byte_length]


def test_of_an_object_of_which_little_is_needed_only_that_is_read(store: FileStore) -> None:
    planned = put(store, Heads(), drafts(topics=6, size=100_000))
    whole = read(store, wanted(planned))
    counting = Counting(store)
    fetched = fetch(counting, wanted(planned, 2, 3, 5))
    needed = sum(e.byte_length for e in planned.extents if e.topic_id in (2, 3, 5))
    assert fetched.bytes_read == needed and fetched.requests == len(counting.gets) == 2
    assert read(store, wanted(planned, 2, 3, 5)) == {topic: whole[topic] for topic in (2, 3, 5)}


@pytest.mark.parametrize("size", [300_000, 6_000_000])
def test_of_an_object_of_which_most_is_needed_a_twentieth_more_is_read_at_most(
    store: FileStore, size: int
) -> None:
    """Row C6; below 64 KiB another request costs more than the bytes."""
    other = Draft(10, 0, [(NOON_MS, [Record("x" * (size // 12))])])
    planned = put(store, Heads(), [*drafts(topics=9, size=size // 9), other])
    each = wanted(planned, *range(1, 10))
    needed_bytes = sum(extent.byte_length for extent in each.extents)
    read_bytes = fetch(store, each).bytes_read
    assert needed_bytes <= read_bytes <= max(1.05 * needed_bytes, needed_bytes + 65_536)
    assert (read_bytes == planned.size_bytes) == (size == 300_000)


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 200_000)), min_size=1))
def test_ranges_cover_what_is_needed_and_little_else(places: list[tuple[int, int]]) -> None:
    start = 0
    extents = []
    for gap, size in places:
        extents.append(TaskExtent(0, 0, 1, 1, start + gap, size, 0, ()))
        start += gap + size
    ranges = ranges_of(extents)
    for extent in extents:
        end = extent.byte_start + extent.byte_length
        assert any(first <= extent.byte_start and end <= last for first, last in ranges)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
    needed = sum(extent.byte_length for extent in extents)
    assert sum(last - first for first, last in ranges) <= needed * 1.05


class BadConnection(FileStore):
    """A store whose connection spoils what it reads, until there is a new one."""

    def __init__(self, store: FileStore, spoil: Callable[[bytes], bytes]) -> None:
        super().__init__(store.directory)
        self._spoil = spoil
        self.gets = 0
        self.connections = 1

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        self.gets += 1
        body = super().get(locator, start, length)
        return self._spoil(body) if self.connections == 1 else body

    def reconnect(self) -> None:
        self.connections += 1
        super().reconnect()


def _flipped(body: bytes) -> bytes:
    at = len(body) // 3
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


@pytest.mark.parametrize(
    "spoil", [_flipped, lambda body: body[:-7], lambda body: bytes(len(body)), lambda body: b""]
)
@pytest.mark.parametrize("topics", [(), (1, 3)], ids=["whole", "by ranges"])
def test_what_one_connection_spoils_is_read_again_on_another_and_is_no_hole(
    store: FileStore, spoil: Callable[[bytes], bytes], topics: tuple[int, ...]
) -> None:
    planned = put(store, Heads(), drafts(topics=3, size=100_000))
    whole = read(store, wanted(planned, *topics))
    bad = BadConnection(store, spoil)
    fetched = fetch(bad, wanted(planned, *topics))
    assert not reasons(fetched)
    assert whole == {
        e.group: bytes(data.data) for e, data in fetched.extents if not isinstance(data, str)
    }
    assert bad.connections == 2 and fetched.requests == bad.gets


def test_what_stays_damaged_is_read_three_times_on_three_connections(store: FileStore) -> None:
    planned = put(store, Heads(), drafts())
    body = bytearray(store.get(planned.locator))
    body[planned.extents[1].byte_start + 40] ^= 1
    again = store.put("again", bytes(body), crc32c(bytes(body)))
    bad = BadConnection(store, lambda found: found)
    damaged = TaskObject(planned.key, again, planned.size_bytes, wanted(planned).extents)
    assert list(reasons(fetch(bad, damaged))) == [2]
    assert (bad.gets, bad.connections) == (3, 3)


def test_a_damaged_extent_is_a_hole_and_the_others_are_read(store: FileStore) -> None:
    planned = put(store, Heads(), drafts())
    body = bytearray(store.get(planned.locator))
    body[planned.extents[1].byte_start + 40] ^= 1
    again = store.put("again", bytes(body), crc32c(bytes(body)))
    damaged = TaskObject(planned.key, again, planned.size_bytes, wanted(planned).extents)
    fetched = fetch(store, damaged)
    assert list(reasons(fetched)) == [2] and "CRC32C" in reasons(fetched)[2]
    assert sorted(read(store, damaged)) == [1, 3]


def _torn(body: bytes) -> bytes:
    return body[:-10]


def _footer_flipped(body: bytes) -> bytes:
    return body[:-40] + bytes([body[-40] ^ 1]) + body[-39:]


def _garbage(body: bytes) -> bytes:
    return bytes(len(body))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_torn, "torn: it has"), (_footer_flipped, "damaged: .*CRC32C"), (_garbage, "damaged")],
)
def test_an_object_that_is_none_is_a_hole_altogether(
    store: FileStore, spoil: Callable[[bytes], bytes], words: str
) -> None:
    planned = put(store, Heads(), drafts())
    body = spoil(store.get(planned.locator))
    locator = store.put("again", body, crc32c(body))
    each = TaskObject(planned.key, locator, planned.size_bytes, wanted(planned).extents)
    found = reasons(fetch(store, each))
    assert list(found) == [1, 2, 3]
    assert re.search(words, found[1])


def test_an_object_with_another_lease_is_foreign(store: FileStore) -> None:
    heads = Heads()
    planned, other = put(store, heads, drafts()), put(store, heads, drafts())
    each = TaskObject(planned.key, other.locator, planned.size_bytes, wanted(planned).extents)
    found = reasons(fetch(store, each))
    assert (
        list(found) == [1, 2, 3] and f"foreign: its footer names the object {other.key}" in found[1]
    )


def test_an_object_that_is_not_there_is_looked_for_again_and_is_a_hole_then(
    store: FileStore,
) -> None:
    planned = put(store, Heads(), drafts())
    store.delete([planned.locator])
    fetched = fetch(store, wanted(planned))
    assert set(reasons(fetched)) == {1, 2, 3} and reasons(fetched)[1].startswith("missing")
    assert fetched.requests == READS_MAX and fetched.bytes_read == 0


def test_a_segment_that_was_cut_off_is_a_hole(store: FileStore, tmp_path: Path) -> None:
    planned = put(store, Heads(), drafts())
    (segment,) = (tmp_path / "store" / "segments").iterdir()
    with segment.open("r+b") as file:
        file.truncate(planned.size_bytes - 5)
    assert reasons(fetch(store, wanted(planned)))[1].startswith("torn")


def test_a_busy_store_is_asked_again(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BULK", Budget("bulk", 4, 1e-4, 1e-3))
    planned = put(store, Heads(), drafts())
    busy = Counting(store, StoreBusy("503 SlowDown"), StoreBusy("503 SlowDown"))
    fetched = fetch(busy, wanted(planned))
    assert not reasons(fetched) and fetched.requests == 3


@pytest.mark.parametrize(
    ("error", "gets"),
    [(StoreBusy("503 SlowDown"), 4), (StoreRefused("the credentials need s3:GetObject"), 1)],
)
def test_a_store_that_does_not_answer_fails_the_task_and_makes_no_hole(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, error: StoreError, gets: int
) -> None:
    monkeypatch.setattr(fetching, "BULK", Budget("bulk", 4, 1e-4, 1e-3))
    planned = put(store, Heads(), drafts())
    failing = Counting(store, *[error] * 9)
    with pytest.raises(StoreFailed, match=str(error)):
        fetch(failing, wanted(planned))
    assert len(failing.gets) == gets


def test_objects_come_in_their_order(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri())
    heads = Heads()
    objects = [put(place.store(), heads, drafts(size=at)) for at in range(1, 30)]
    fetched = list(fetch_all(place, [wanted(each) for each in objects]))
    place.store().close()
    assert [each.key for each in fetched] == [each.key for each in objects]
