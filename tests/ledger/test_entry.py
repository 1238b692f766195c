"""Entries of the owner's log as bytes: round trips, and what is refused by name."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.log.backup import Changes, Mark
from ledger.log.entry import (
    VERSION,
    Entry,
    EntryError,
    Owner,
    decode,
    encode,
    entry_key,
    parse_entry_key,
)
from ledger.types import LeaseId

OWNER = Owner("host", 42, "boot", 1, 2, "/data")
numbers = st.integers(0, 10**12 - 1)
big = st.integers(0, 2**63 - 1)
marks = st.builds(
    Mark,
    big,
    big,
    big,
    big,
    big,
    big,
    st.none() | st.builds(LeaseId, big, big, big, big),
    st.text(),
)
cells = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary()
changes = st.builds(
    Changes,
    st.dictionaries(st.text(), big),
    st.dictionaries(st.text(), st.lists(st.lists(cells, max_size=4), max_size=3)),
)
entries = st.builds(
    Entry, st.just(VERSION), st.binary(min_size=16, max_size=16), numbers, numbers,
    st.sampled_from(["entry", "snapshot", "seal", "release"]), st.just(OWNER), big, marks,
    st.none() | changes, st.none() | st.binary(),
)  # fmt: skip


@given(entries)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    assert decode(encode(entry), entry_key(entry.incarnation, entry.number)) == entry


@given(entries, st.data())
def test_damaged_bytes_are_an_entry_or_an_error_that_names_the_key(
    entry: Entry, data: st.DataObject
) -> None:
    key = entry_key(entry.incarnation, entry.number)
    damaged = bytearray(encode(entry))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(damaged), key)
    except EntryError as error:
        message = str(error)
    else:
        return
    assert key in message


def test_a_text_that_is_not_utf8_is_an_error_that_names_the_key() -> None:
    key = entry_key(1, 2)
    entry = Entry(
        VERSION, bytes(16), 1, 2, "entry", OWNER, 0, Mark(0, 0, 0, 0, 0, 0, None, "boot one"),
        None, None,
    )  # fmt: skip
    with pytest.raises(EntryError, match=key):
        decode(encode(entry).replace(b"boot one", b"boot\xffone"), key)


@given(numbers, numbers, numbers, numbers)
def test_keys_sort_as_their_numbers_do(a: int, b: int, c: int, d: int) -> None:
    assert (entry_key(a, b) < entry_key(c, d)) == ((a, b) < (c, d))
    assert parse_entry_key(entry_key(a, b)) == (a, b)


@pytest.mark.parametrize(
    "key", ["ledger/1/2", "ledger/000000000001", "l0/000000000001/000000000001",
            "ledger/000000000001/00000000000x", "ledger/000000000001/000000000001/1"],
)  # fmt: skip
def test_a_key_that_is_none_is_named(key: str) -> None:
    with pytest.raises(EntryError, match=key):
        parse_entry_key(key)


def _entry(number: int = 3) -> Entry:
    return Entry(VERSION, b"n" * 16, 1, number, "entry", OWNER, 5, Mark())


def test_an_entry_of_a_later_version_is_refused_by_name() -> None:
    later = msgspec.msgpack.encode({**msgspec.to_builtins(_entry()), "version": VERSION + 1})
    with pytest.raises(EntryError, match=f"has version {VERSION + 1}.*use the newer one"):
        decode(later, entry_key(1, 3))


def test_a_field_of_a_later_program_is_passed_over() -> None:
    plain = msgspec.msgpack.decode(encode(_entry()))
    assert decode(msgspec.msgpack.encode({**plain, "more": 1}), entry_key(1, 3)) == _entry()


@pytest.mark.parametrize("data", [b"", b"foreign", b"\x81", msgspec.msgpack.encode([1, 2])])
def test_bytes_that_are_no_entry_are_named_by_their_key(data: bytes) -> None:
    with pytest.raises(EntryError, match=entry_key(1, 3)):
        decode(data, entry_key(1, 3))


def test_an_entry_under_another_key_is_refused() -> None:
    with pytest.raises(EntryError, match="holds the entry 1/3"):
        decode(encode(_entry()), entry_key(1, 4))


@pytest.mark.parametrize(
    ("other", "same", "before"),
    [
        (OWNER, True, False),
        (msgspec.structs.replace(OWNER, pid=7), True, False),
        (msgspec.structs.replace(OWNER, inode=7), False, False),
        (msgspec.structs.replace(OWNER, device=7), False, False),
        (msgspec.structs.replace(OWNER, boot_id="later"), False, True),
        (msgspec.structs.replace(OWNER, boot_id="later", device=7), False, True),
        (msgspec.structs.replace(OWNER, boot_id="later", inode=7), False, False),
        (msgspec.structs.replace(OWNER, boot_id="later", host="else"), False, False),
    ],
)
def test_whose_directory_it_was_is_told_by_boot_and_lock_file(
    other: Owner, same: bool, before: bool
) -> None:
    assert OWNER.same_directory(other) is same
    assert OWNER.before_a_boot(other) is before
