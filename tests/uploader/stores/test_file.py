"""The embedded store: objects, listings, deletion, entries, threads and processes."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c

from uploader.stores import segment
from uploader.stores.base import ObjectMissing, ObjectStore, StoreError, StoreRefused
from uploader.stores.file import DESCRIPTORS_MAX, FileStore
from uploader.stores.segment import ALLOCATE_BYTES, ALLOCATE_SHARE, allocation

Opens = Callable[..., FileStore]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    """Opens the store in the test's folder, as often as a test likes, as its daemons would."""
    stores: list[FileStore] = []

    def open_one(segment_bytes: int = 10_000) -> FileStore:
        stores.append(
            FileStore(tmp_path / "store", segment_bytes=segment_bytes, now_ms=lambda: 1_234)
        )
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def put(store: ObjectStore, key: str, body: bytes) -> str:
    return store.put(key, body, crc32c(body))


def segments(store: FileStore) -> list[str]:
    return sorted(path.name for path in (store.directory / "segments").iterdir())


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [head.key for head in store.list(prefix, start_after)]


def link_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def test_an_object_is_read_whole_and_in_ranges(opens: Opens) -> None:
    store = opens()
    put(store, "l0/0", b"before")
    locator = put(store, "l0/1", b"0123456789")
    put(store, "l0/2", b"behind")
    assert store.get(locator) == b"0123456789"
    assert store.get(locator, 3) == b"3456789"
    assert store.get(locator, 3, 4) == b"3456"
    assert store.get(locator, 8, 100) == b"89"
    assert store.get(locator, 3, 0) == b""
    assert store.get(put(store, "l0/3", b"")) == b""


def test_a_read_after_the_end_is_refused_by_name(opens: Opens) -> None:
    locator = put(opens(), "l0/1", b"0123456789")
    with pytest.raises(StoreError, match="has 10 bytes; cannot read from byte 10"):
        opens().get(locator, 10)
    with pytest.raises(ValueError, match="start -1"):
        opens().get(locator, -1)


def test_another_process_can_read_a_put_immediately(opens: Opens) -> None:
    writer, reader = opens(), opens()
    locator = put(writer, "l0/1", b"body")
    assert reader.get(locator) == b"body"
    assert keys(reader) == ["l0/1"]


@pytest.mark.parametrize("locator", ["none:0:4", "0-0-0:8:4", "l0/1", "none", "1234-1-1:999999:4"])
def test_an_object_that_never_existed_is_missing(opens: Opens, locator: str) -> None:
    store = opens()
    put(store, "l0/1", b"body")
    with pytest.raises(ObjectMissing, match=locator):
        store.get(locator)


def test_another_place_or_length_in_a_segment_is_missing(opens: Opens) -> None:
    store = opens()
    segment, position, _ = put(store, "l0/1", b"body").split(":")
    for locator in (f"{segment}:{int(position) + 8}:4", f"{segment}:{position}:3"):
        with pytest.raises(ObjectMissing):
            store.get(locator)


@pytest.mark.parametrize("locator", ["x:1", "x:1:y", "../x:1:1", ":1:1"])
def test_an_invalid_locator_is_refused_by_name(opens: Opens, locator: str) -> None:
    with pytest.raises(ValueError, match="is not a locator"):
        opens().get(locator)


@pytest.mark.parametrize("key", ["", "k" * 1025, "é" * 513])
def test_a_key_that_is_empty_or_too_long_is_refused(opens: Opens, key: str) -> None:
    with pytest.raises(ValueError, match="it must have 1 to 1024"):
        put(opens(), key, b"")


def test_a_listing_is_ordered_by_key_within_a_prefix_after_a_start(opens: Opens) -> None:
    store = opens(segment_bytes=100)
    for number in (3, 1, 2):
        put(store, f"l0/{number}", b"x" * number)
    store.put_if_absent("ledger/7/1", b"entry")
    assert keys(store) == ["l0/1", "l0/2", "l0/3", "ledger/7/1"]
    assert keys(store, "l0/") == ["l0/1", "l0/2", "l0/3"]
    assert keys(store, "l0/", "l0/1") == ["l0/2", "l0/3"]
    assert keys(store, "nothing/") == []
    heads = list(store.list("l0/"))
    assert [(head.size_bytes, head.modified_ms) for head in heads] == [
        (1, 1234),
        (2, 1234),
        (3, 1234),
    ]
    assert [len(store.get(head.locator)) for head in heads] == [1, 2, 3]


def test_equal_frames_may_have_one_key(opens: Opens) -> None:
    store = opens()
    one, two = put(store, "l0/1", b"body"), put(store, "l0/1", b"body")
    assert one != two and store.get(one) == store.get(two)
    assert sorted(head.locator for head in store.list("")) == sorted([one, two])


def test_a_store_that_does_not_exist_lists_nothing_and_is_not_made(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "none")
    assert list(store.list("")) == []
    store.delete(["x", "segment:0:4"])
    with pytest.raises(ObjectMissing):
        store.get("segment:0:4")
    assert list(tmp_path.iterdir()) == []


def test_a_full_segment_is_followed_by_a_new_one(opens: Opens) -> None:
    store = opens(segment_bytes=210)
    locators = [put(store, f"l0/{n}", b"x" * 60) for n in range(5)]
    assert [len(segments(store)), len({each.split(":")[0] for each in locators})] == [3, 3]
    assert all(store.get(each) == b"x" * 60 for each in locators)


def test_an_object_larger_than_a_segment_has_its_own(opens: Opens) -> None:
    store = opens(segment_bytes=210)
    put(store, "l0/1", b"small")
    large = put(store, "l0/2", os.urandom(5_000))
    put(store, "l0/3", b"small")
    assert len(store.get(large)) == 5_000
    assert len(segments(store)) == 3


def test_a_restart_begins_a_new_segment(opens: Opens) -> None:
    first = opens()
    one = put(first, "l0/1", b"1")
    first.close()
    two = put(opens(), "l0/2", b"2")
    assert one.split(":")[0] != two.split(":")[0]


def test_puts_of_many_threads_do_not_mix(opens: Opens) -> None:
    store = opens(segment_bytes=20_000)
    barrier = threading.Barrier(4)

    def work(thread: int) -> dict[str, bytes]:
        barrier.wait()
        bodies = {f"l0/{thread}-{n}": os.urandom(n * 7) for n in range(100)}
        return {put(store, key, body): body for key, body in bodies.items()}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for each in found:
        for locator, body in each.items():
            assert store.get(locator) == body
    assert len(keys(store)) == 400
    assert store.damage() == ()


def test_a_deleted_object_is_gone_for_every_process(opens: Opens) -> None:
    writer, other = opens(), opens()
    one, two = put(writer, "l0/1", b"1"), put(writer, "l0/2", b"2")
    assert other.get(one) == b"1"
    other.delete([one, one, "gone:0:4"])
    other.delete([one])
    for store in (writer, other, opens()):
        with pytest.raises(ObjectMissing):
            store.get(one)
        assert store.get(two) == b"2"
        assert keys(store) == ["l0/2"]


def test_a_segment_without_live_objects_is_removed(opens: Opens) -> None:
    store = opens(segment_bytes=210)
    locators = [put(store, f"l0/{n}", b"x" * 60) for n in range(5)]
    opens().delete(locators[:1])
    assert len(segments(store)) == 3
    opens().delete(locators[1:4])
    assert segments(store) == [locators[4].split(":")[0]]
    assert store.get(locators[4]) == b"x" * 60


def test_a_segment_stays_until_its_writer_ends_it(opens: Opens) -> None:
    store = opens()
    first = put(store, "l0/1", b"1")
    opens().delete([first])
    assert len(segments(store)) == 1
    second = put(store, "l0/2", b"2")
    assert second.split(":")[0] == first.split(":")[0]
    assert store.get(second) == b"2"
    store.delete([second])
    store.close()
    assert segments(store) == []


def test_a_segment_that_could_not_be_removed_is_removed_by_the_next_deletion(
    opens: Opens,
) -> None:
    store = opens()
    locator = put(store, "l0/1", b"1")
    store.close()
    path = store.directory / "segments" / locator.split(":")[0]
    other = opens()
    with path.open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        other.delete([locator])
        assert path.exists()
    other.delete([])
    assert not path.exists()


def test_the_space_of_a_removed_segment_is_free_even_if_another_process_has_it_open(
    opens: Opens, tmp_path: Path
) -> None:
    writer, reader = opens(), opens()
    locator = put(writer, "l0/1", os.urandom(5_000))
    writer.close()
    reader.get(locator)
    held = os.open(tmp_path / "store" / "segments" / locator.split(":")[0], os.O_RDONLY)
    try:
        opens().delete([locator])
        assert (os.fstat(held).st_nlink, os.fstat(held).st_size) == (0, 0)
        with pytest.raises(ObjectMissing):
            reader.get(locator)
    finally:
        os.close(held)


def test_an_entry_is_made_once(opens: Opens) -> None:
    store = opens()
    assert store.put_if_absent("ledger/7/1", b"first")
    assert not store.put_if_absent("ledger/7/1", b"second")
    assert not opens().put_if_absent("ledger/7/1", b"first")
    (head,) = store.list("ledger/")
    assert (head.key, head.size_bytes) == ("ledger/7/1", 5)
    assert store.get(head.locator) == b"first"
    assert store.get(head.locator, 1, 2) == b"ir"
    store.delete([head.locator, head.locator])
    assert keys(store) == []
    with pytest.raises(ObjectMissing):
        store.get(head.locator)
    assert store.put_if_absent("ledger/7/1", b"third")


def test_of_racing_entries_one_wins_and_is_complete(opens: Opens) -> None:
    stores = [opens() for _ in range(8)]
    bodies = [bytes([n]) * 10_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            key = f"ledger/1/{number}"
            made = list(
                pool.map(lambda n, key=key: stores[n].put_if_absent(key, bodies[n]), range(8))
            )
            assert made.count(True) == 1
            assert stores[0].get(key) == bodies[made.index(True)]
    assert [path.name for path in (stores[0].directory / "entries").glob(".*")] == []


@pytest.mark.parametrize("key", ["", ".new-x", "..", "x" * 256, "/" * 100])
def test_a_key_that_is_not_a_file_name_is_refused(opens: Opens, key: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        opens().put_if_absent(key, b"")


def test_check_makes_the_store_and_leaves_no_probe(opens: Opens) -> None:
    store = opens()
    store.check()
    store.check()
    assert keys(store) == []
    assert segments(store) == []
    assert list((store.directory / "entries").iterdir()) == []


@pytest.mark.parametrize("blocked", ["store", "store/segments", "store/entries"])
def test_check_refuses_a_place_that_is_not_a_directory(opens: Opens, blocked: str) -> None:
    store = opens()
    path = store.directory.parent / blocked
    path.parent.mkdir(exist_ok=True)
    path.write_text("a file")
    with pytest.raises(StoreRefused, match="cannot be used") as caught:
        store.check()
    assert str(store.directory) in str(caught.value)


def test_check_seals_and_removes_what_a_killed_writer_left(opens: Opens, tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
from crc32c import crc32c
from uploader.stores.file import FileStore
from uploader.stores.segment import ALLOCATE_BYTES, ALLOCATE_SHARE, allocation
store = FileStore({str(tmp_path / "store")!r})
locator = store.put("l0/1", b"1", crc32c(b"1"))
if sys.argv[1] == "dead":
    store.delete([locator])
open(store.directory / "entries" / ".new-abc", "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "store" / "entries").mkdir(parents=True)
    for state in ("dead", "live"):
        assert subprocess.run([sys.executable, "-c", program, state]).returncode == -9
    store = opens()
    assert len(segments(store)) == 2
    store.check()
    (left,) = segments(store)
    assert (store.directory / "segments" / left).stat().st_size < 200
    assert list((store.directory / "entries").iterdir()) == []
    assert [store.get(head.locator) for head in store.list("")] == [b"1"]


def test_check_leaves_the_segments_of_running_writers_alone(opens: Opens) -> None:
    writer = opens()
    one = put(writer, "l0/1", b"1")
    opens().check()
    two = put(writer, "l0/2", b"2")
    assert [writer.get(one), opens().get(two)] == [b"1", b"2"]


def test_descriptors_are_bounded_and_all_closed_in_the_end(opens: Opens) -> None:
    store = opens(segment_bytes=1)

    def descriptors() -> int:
        # By path: other tests' leftovers may be collected meanwhile.
        paths = [link_of(fd) for fd in os.listdir("/proc/self/fd")]
        return sum(path.startswith(str(store.directory)) for path in paths)

    locators = [put(store, f"l0/{n}", b"%d" % n) for n in range(DESCRIPTORS_MAX + 40)]
    for n, locator in enumerate(locators):
        assert store.get(locator) == b"%d" % n
    assert 0 < descriptors() <= DESCRIPTORS_MAX + 1
    store.close()
    assert descriptors() == 0


def test_a_closed_store_accepts_nothing(opens: Opens) -> None:
    store = opens()
    store.close()
    with pytest.raises(ValueError, match="is closed"):
        put(store, "l0/1", b"1")


def test_there_are_as_many_segments_as_simultaneous_puts(opens: Opens) -> None:
    store = opens()
    for number in range(4):  # one after the other, by threads of their own
        thread = threading.Thread(target=put, args=(store, f"l0/{number}", b"x"))
        thread.start()
        thread.join()
    assert len({head.locator.split(":")[0] for head in store.list("l0/")}) == 1
    assert keys(store) == [f"l0/{number}" for number in range(4)]


class SmallDisk:
    """A directory with a limit: what the kernel says of a small file system, without one."""

    def __init__(self, path: Path, limit_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._fallocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self._allocate)
        monkeypatch.setattr(segment, "_free_bytes", lambda _: self.free_bytes)

    @property
    def used_bytes(self) -> int:
        return sum(each.stat().st_blocks * 512 for each in self.path.rglob("*") if each.is_file())

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def _allocate(self, fd: int, offset: int, length: int) -> None:
        with self._mutex:
            if length > self.free_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._fallocate(fd, offset, length)


def fill(store: FileStore) -> None:
    """Puts objects of 1 MiB until one is refused."""
    number = 0
    while True:
        put(store, f"l0/{number}", bytes(1 << 20))
        number += 1


def test_space_ahead_is_a_small_part_of_the_free_space() -> None:
    assert allocation(1 << 40) == ALLOCATE_BYTES
    assert allocation(ALLOCATE_BYTES * ALLOCATE_SHARE - 1) == ALLOCATE_BYTES - 4096
    assert allocation(40 << 20) == 640 << 10
    assert allocation(0) == allocation(ALLOCATE_SHARE * 4096 - 1) == 0


def test_freed_space_goes_to_objects_and_not_to_space_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 24 MiB were full and 40 MiB more were added: five new segments took all of that for 20 KB.
    disk = SmallDisk(tmp_path, 24 << 20, monkeypatch)
    store = FileStore(tmp_path / "store")
    with pytest.raises(StoreError, match="No space left"):
        fill(store)
    full = len(keys(store))
    assert full >= 22
    disk.limit_bytes = 64 << 20
    before = disk.used_bytes
    barrier = threading.Barrier(5)

    def work(thread: int) -> None:
        barrier.wait()
        for small in range(20):
            put(store, f"small/{thread}-{small}", bytes(200))

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, range(5)))
    assert disk.used_bytes - before < 5 << 20
    for more in range(34):
        put(store, f"more/{more}", bytes(1 << 20))
    store.close()
    store = FileStore(tmp_path / "store")
    assert len(keys(store)) == full + 5 * 20 + 34
    assert store.damage() == ()
    store.close()


def test_a_full_disk_frees_the_space_ahead_of_idle_segments_which_stay_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(tmp_path, 1 << 30, monkeypatch)
    store = FileStore(tmp_path / "store")
    barrier = threading.Barrier(4)

    def work(thread: int) -> None:
        barrier.wait()
        put(store, f"l0/{thread}", bytes(2 << 20))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    there = segments(store)
    ahead = disk.used_bytes - 4 * (2 << 20)
    assert ahead >= ALLOCATE_BYTES - (2 << 20)  # of one segment at least
    disk.limit_bytes = disk.used_bytes  # another program took the rest
    with pytest.raises(StoreError, match="No space left"):
        put(store, "l0/large", bytes(30 << 20))
    assert disk.free_bytes >= ahead - len(there) * 4096
    assert put(store, "l0/small", bytes(100)).split(":")[0] in there
    assert segments(store) == there
    store.close()


def test_a_put_that_the_disk_refuses_is_retryable_and_ends_its_segment(
    tmp_path: Path,
) -> None:
    # A file size limit makes the kernel take the first MiB of a frame and refuse the rest.
    program = f"""
import resource, signal
from crc32c import crc32c
from uploader.stores.base import StoreError
from uploader.stores.file import FileStore
from uploader.stores.segment import ALLOCATE_BYTES, ALLOCATE_SHARE, allocation
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = FileStore({str(tmp_path / "store")!r})
body = bytes(3_000_000)
first = store.put("l0/1", b"1", crc32c(b"1"))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
for key in ("l0/2", "l0/3"):
    try:
        store.put(key, body, crc32c(body))
    except StoreError as error:
        print(error.retryable, "File too large" in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
second = store.put("l0/2", body, crc32c(body))
print(first.split(":")[0] != second.split(":")[0], store.get(second) == body)
print([head.key for head in store.list("")], store.damage())
store.close()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stderr == ""
    assert found.stdout.splitlines() == [
        "True True",
        "True True",
        "True True",
        "['l0/1', 'l0/2'] ()",
    ]
    assert len(list((tmp_path / "store" / "segments").iterdir())) == 2


def test_an_object_in_parts_is_invisible_until_it_is_finished(opens: Opens) -> None:
    store = opens()
    made = store.put_in_parts("ledger/7/image-1")
    made.put(b"first-")
    made.put(b"second")
    assert keys(opens()) == []
    assert opens().discard_unfinished("ledger/") == 0
    opens().check()  # its writer lives: nothing of it is tidied up
    made.finish()
    (head,) = opens().list("ledger/")
    assert (head.key, head.size_bytes) == ("ledger/7/image-1", 12)
    assert opens().get(head.locator) == b"first-second"
    assert opens().get(head.locator, 4, 4) == b"t-se"
    assert [path.name[0] for path in (store.directory / "entries").iterdir()] == ["l"]


def test_an_object_in_parts_that_is_given_up_leaves_nothing(opens: Opens) -> None:
    store = opens()
    made = store.put_in_parts("ledger/7/image-1")
    made.abandon()
    made.put(b"first")
    made.abandon()
    made.abandon()
    assert keys(store) == [] and list((store.directory / "entries").iterdir()) == []


def test_parts_of_a_dead_writer_are_removed_by_the_next_check(opens: Opens) -> None:
    store = opens()
    store.put_in_parts("ledger/7/image-1").put(b"first")
    gc.collect()  # and its descriptor, with the lock on it, as at the death of its process
    fds = [fd for fd in os.listdir("/proc/self/fd") if ".new-" in link_of(fd)]
    for fd in fds:
        os.close(int(fd))
    opens().check()
    assert list((store.directory / "entries").iterdir()) == []
