"""``headgate objects`` with a real ledger and a real store, as a daemon leaves them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import cli
from commands.stored.objects import problems_of
from ledger import epochs, reads, topics
from ledger.ledger import Ledger
from ledger.types import (
    CommitDraft,
    Condition,
    ConditionPart,
    LeasedRange,
    LeaseId,
    TopicConfig,
)
from shards.frame import CODEC_RECORDS, encode_batch
from uploader.l0 import ExtentParts, RingRun, build, object_key
from uploader.l0.records import Record, encode
from uploader.stores.open import open_store

NOW_MS = 1_700_000_000_000


class Place:
    """A data directory with its ledger and store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ledger").mkdir(parents=True)
        self.ledger = Ledger(folder / "ledger" / "ledger.db", nullcontext())
        self.store = open_store(f"file://{folder}/store")
        self.store.check()
        self.incarnation, self.epoch = self.ledger.write(epochs.begin_incarnation, NOW_MS)
        topic, _ = self.ledger.write(topics.create, "orders", TopicConfig(), NOW_MS)
        self.topic_id = topic.topic_id
        self.position = 0

    def put(self, counter: int, *requests: list[Record], key: str | None = None) -> str:
        """Commits one object; with ``key`` its last request carries that idempotency key."""
        lease = LeaseId(self.incarnation, self.epoch, 0, counter)
        batches = [
            encode_batch(len(each), NOW_MS, encode(each), CODEC_RECORDS) for each in requests
        ]
        count = sum(map(len, requests))
        conditions: tuple[Condition, ...] = ()
        if key is not None:
            last = len(requests[-1])
            part = ConditionPart(0, count - last, last)
            conditions = (Condition(0, self.position + 8, self.topic_id, (part,), key),)
        run = RingRun(0, self.position, 0, count)
        extent = ExtentParts(
            "orders", self.topic_id, 0, CODEC_RECORDS, batches, count, NOW_MS, NOW_MS, (run,)
        )
        built = build(lease, NOW_MS, [extent], conditions)
        name = object_key(lease)
        locator = self.store.put(name, built.body, built.crc32c)
        source = LeasedRange(0, self.position, self.position + 4096)
        self.position += 4096
        self.ledger.commit(
            CommitDraft(
                lease, name, locator, len(built.body), NOW_MS, (source,), built.drafts, conditions
            ),
            NOW_MS,
            lambda commit: None,
        )
        return name

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli.headgate, ["objects", *arguments, "--data", str(self.folder)])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data")
    yield place
    place.store.close()
    place.ledger.close()


def test_ls_lists_all_objects_in_commit_order(place: Place) -> None:
    first = place.put(1, [Record("1"), Record("2")])
    second = place.put(2, [Record("3")])
    listed = json.loads(place.run("ls", "-o", "json").stdout)
    assert [(row["key"], row["records"], row["commit_number"]) for row in listed] == [
        (first, 2, 1), (second, 1, 2),
    ]  # fmt: skip
    assert set(listed[0]) == {
        "key", "locator", "size_bytes", "created_ms", "commit_number", "extents", "records",
    }  # fmt: skip
    table = place.run("ls").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["key", first, second]
    assert "2023-11-14 22:13:20.000+00:00" in table[1]


def test_ls_goes_through_pages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.stored.objects.PAGE_OBJECTS", 2)
    keys = [place.put(counter, [Record("1")]) for counter in range(1, 6)]
    listed = json.loads(place.run("ls", "-o", "json").stdout)
    assert [row["key"] for row in listed] == keys


def test_ls_of_an_empty_ledger_is_an_empty_list(place: Place) -> None:
    assert json.loads(place.run("ls", "-o", "json").stdout) == []


def test_cat_prints_records_with_their_offsets_and_fields(place: Place) -> None:
    place.put(1, [Record("0")])
    key = place.put(
        2, [Record('{"a":\n 1.50}', 5, "k", "t", "n", '{"m": 1}')], [Record(b"\x00\x01")]
    )
    lines = place.run("cat", key).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "topic": "orders", "partition": 0, "seq": 2, "ts": 5, "data": {"a": 1.5},
            "key": "k", "tag": "t", "node": "n", "meta": {"m": 1},
        },
        {
            "topic": "orders", "partition": 0, "seq": 3, "ts": NOW_MS,
            "data_b64": base64.b64encode(b"\x00\x01").decode(),
        },
    ]  # fmt: skip
    assert "1.50" in lines[0]


def test_cat_leaves_out_what_the_commit_made_void(place: Place) -> None:
    place.put(1, [Record("1")], [Record("2")], key="once")
    key = place.put(2, [Record("3")], [Record("2")], key="once")
    (line,) = place.run("cat", key).stdout.splitlines()
    found = json.loads(line)
    assert (found["seq"], found["data"]) == (3, 3)


def test_cat_leaves_out_a_topic_that_was_deleted_before_the_commit(place: Place) -> None:
    place.ledger.write(topics.delete, "orders", NOW_MS)
    result = place.run("cat", place.put(1, [Record("1")]))
    assert (result.exit_code, result.stdout) == (0, "")


def test_cat_of_an_unknown_key_is_1_with_a_hint(place: Place) -> None:
    result = place.run("cat", "l0/nonsense")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "objects ls" in result.stderr


def test_verify_of_sound_objects_is_0(place: Place) -> None:
    keys = [place.put(counter, [Record("1")]) for counter in range(1, 4)]
    result = place.run("verify", "-o", "json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["objects"], found["bad"]) == (3, []) and found["bytes"] > 0
    one = place.run("verify", keys[1])
    assert one.exit_code == 0 and one.stdout.startswith("1 objects, ")


def damage(place: Place, what: bytes, by: bytes) -> None:
    for file in (place.folder / "store").rglob("*"):
        if file.is_file() and what in file.read_bytes():
            file.write_bytes(file.read_bytes().replace(what, by))
            return
    raise AssertionError(f"no file of the store holds {what!r}")


def test_verify_names_the_damaged_object_and_only_that(place: Place) -> None:
    place.put(1, [Record('"sound"')])
    bad = place.put(2, [Record('"damaged"')])
    damage(place, b"damaged", b"DAMAGED")
    result = place.run("verify", "-o", "json")
    assert result.exit_code == 1
    ((item,)) = json.loads(result.stdout)["bad"]
    assert item["key"] == bad and item["problems"]
    table = place.run("verify")
    assert table.exit_code == 1 and f"BAD  {bad}" in table.stdout
    assert table.stdout.endswith(" 1 bad\n")


def test_cat_of_a_damaged_object_is_1_and_prints_no_record(place: Place) -> None:
    bad = place.put(1, [Record('"damaged"')])
    damage(place, b"damaged", b"DAMAGED")
    result = place.run("cat", bad)
    assert (result.exit_code, result.stdout) == (1, "")
    assert bad in result.stderr


def test_verify_names_an_object_that_is_gone(place: Place) -> None:
    place.put(1, [Record("1")])
    gone = place.put(2, [Record("2")])
    row = place.ledger.read(reads.object_by_key, gone)
    assert row is not None
    place.store.delete([row.locator])
    result = place.run("verify", "-o", "json")
    assert result.exit_code == 1
    assert [item["key"] for item in json.loads(result.stdout)["bad"]] == [gone]


def test_an_object_of_another_size_than_the_ledger_says_is_bad(place: Place) -> None:
    row = place.ledger.read(reads.object_by_key, place.put(1, [Record("1")]))
    assert row is not None and problems_of(place.store, row) == []
    shorter = msgspec.structs.replace(row, size_bytes=row.size_bytes - 1)
    assert "the ledger says" in problems_of(place.store, shorter)[0]


def test_without_a_ledger_it_ends_with_1_and_creates_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.headgate, ["objects", "ls", "--data", str(tmp_path / "none")])
    assert result.exit_code == 1 and "there is no ledger" in result.stderr
    assert not (tmp_path / "none").exists()
