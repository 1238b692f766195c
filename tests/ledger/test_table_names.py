"""Each live topic has a table of its own: decided with the topic, kept, bounded."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import topics
from ledger.checks import invariants
from ledger.errors import TableNameTaken
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import Mark
from ledger.log.recovery import TopicSeen
from ledger.table_names import TABLE_NAME_MAX, table_name
from ledger.types import Topic, TopicConfig


def made(ledger: Ledger, name: str) -> Topic:
    return ledger.write(topics.create, name, TopicConfig(), 1)[0]


def forget_tables(path: Path) -> None:
    """Leaves the ledger as a former version did, which decided no names."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE topics SET table_name = NULL")


@pytest.mark.parametrize("second", ["web_logs", "web.logs", "web:logs", "Web-Logs", "WEB_LOGS"])
def test_the_topic_that_has_a_table_keeps_it_and_the_new_one_is_refused_naming_it(
    ledger: Ledger, second: str
) -> None:
    first = made(ledger, "web-logs")
    assert first.table == "web_logs"
    with pytest.raises(TableNameTaken, match="with topic 'web-logs'") as caught:
        made(ledger, second)
    assert (caught.value.name, caught.value.other) == (second, "web-logs")
    assert ledger.read(topics.find, second) is None
    assert made(ledger, "web-logs") == first


def test_a_deleted_topics_table_name_is_free_again(ledger: Ledger) -> None:
    made(ledger, "web-logs")
    ledger.write(topics.delete, "web-logs", 2)
    assert made(ledger, "web.logs").table == "web_logs"


def test_a_table_name_is_bounded_and_tells_long_names_apart() -> None:
    longest, other = "n" * 255, "n" * 254 + "m"
    assert len(table_name(longest)) == len(table_name(other)) == TABLE_NAME_MAX
    assert table_name(longest) != table_name(other)
    assert table_name(longest).startswith("nnnn") and table_name(longest) == table_name(longest)
    assert table_name("n" * TABLE_NAME_MAX) == "n" * TABLE_NAME_MAX


def test_settings_and_deletion_leave_a_topics_table_as_it_is(ledger: Ledger) -> None:
    first = made(ledger, "a.b")
    assert (
        ledger.write(topics.alter, "a.b", TopicConfig(partitions=3)).table == first.table == "a_b"
    )
    assert ledger.write(topics.delete, "a.b", 2).table == "a_b"
    assert ledger.read(topics.by_id, first.topic_id) == ledger.read(topics.by_id, first.topic_id)


def test_topics_of_a_former_version_that_clash_go_on_with_a_table_each(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    names = ["web-logs", "zebra", "n" * 255]
    with closing(Ledger(path, nullcontext())) as ledger:
        first, *_ = (made(ledger, name) for name in names)
        for number, name in enumerate(("web_logs", "Web.Logs"), 10):
            # As a recovery does, which refuses no topic.
            ledger.write(recovery.prepare, Mark(), [TopicSeen(number, name, 1, 1)], {}, 0, 1)
    forget_tables(path)
    with closing(Ledger(path, nullcontext())) as ledger:
        tables = {topic.name: topic.table for topic in ledger.read(topics.page)}
        assert tables["web-logs"] == first.table == "web_logs", "the oldest has the name"
        assert len({table.lower() for table in tables.values()}) == 5
        assert all(len(table) <= TABLE_NAME_MAX for table in tables.values())
        assert tables["web_logs"].startswith("web_logs_")
        ledger.read(invariants.check)
        version = ledger.read(topics.catalog_version)
    with closing(Ledger(path, nullcontext())) as again:
        assert {topic.name: topic.table for topic in again.read(topics.page)} == tables
        assert again.read(topics.catalog_version) == version, "decided once"


def test_what_is_compacted_already_keeps_its_table(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(Ledger(path, nullcontext())) as ledger:
        made(ledger, "a-b")
        ledger.write(recovery.prepare, Mark(), [TopicSeen(9, "a_b", 1, 1)], {}, 0, 1)
    forget_tables(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO lake_tables VALUES (9, 'headgate.a_b', 'm.json', 1, 1)")
    with closing(Ledger(path, nullcontext())) as ledger:
        tables = {topic.name: topic.table for topic in ledger.read(topics.page)}
        assert tables["a_b"] == "a_b", "its table is there"
        assert tables["a-b"].startswith("a_b_")


def test_the_owners_log_tells_the_names_so_a_recovered_ledger_has_the_same(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "one.db", nullcontext())) as ledger:
        mark = ledger.read(backup.mark)
        made(ledger, "web-logs")
        made(ledger, "n" * 255)
        _, changes = ledger.read(backup.changes_since, mark)
        tables = [topic.table for topic in ledger.read(topics.page)]
    with closing(Ledger(tmp_path / "two.db", nullcontext())) as recovered:
        recovered.write(backup.apply, changes)
        assert [topic.table for topic in recovered.read(topics.page)] == tables
