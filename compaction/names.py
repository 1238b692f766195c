"""From a topic's name to its table's, and where the table's files are. Pure functions.

A table is called as its topic with ``.``, ``:`` and ``-`` as ``_``. Its location has the topic's id
in it, which is never used twice, so a topic that is made again never writes among the files of the
former one, whatever the tables are renamed to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from compaction.lake_errors import NamesClash

NAMESPACE = "headgate"

_REPLACED = re.compile(r"[.:\-]")
# <run>-<task>-<n>.parquet; task and n are numbers. A run has no dash: other engines' files, which
# hold a UUID, are none of ours even where the UUID ends in digits.
_FILE = re.compile(r"(?P<run>[A-Za-z0-9]+)-\d+-\d+\.parquet")
_DAY = re.compile(r"/timestamp_day=(-?\d{3,}-\d{2}-\d{2})/[^/]+$")


def table_name(topic: str) -> str:
    """The name of a topic's table, without its namespace."""
    return _REPLACED.sub("_", topic)


def former_name(table: str, topic_id: int) -> str:
    """What the table of a former topic is renamed to."""
    return f"{table}__{topic_id}"


def table_location(lake: str, table: str, topic_id: int) -> str:
    """Where the table of a topic is made, without a slash at its end."""
    return f"{lake.rstrip('/')}/{table}-{topic_id}"


def clashes(topics: Iterable[str]) -> dict[str, NamesClash]:
    """The topics whose table's name is another's too, each with its error."""
    by_table: dict[str, list[str]] = {}
    for topic in topics:
        by_table.setdefault(table_name(topic), []).append(topic)
    return {
        topic: NamesClash(
            f"the topics {', '.join(map(repr, sorted(names)))} would share the table {table!r}",
            "delete all but one of them, or move their records to topics of other names",
        )
        for table, names in by_table.items()
        if len(names) > 1
        for topic in names
    }


def run_of_file(name: str) -> str | None:
    """The run that wrote a Parquet file, by the last part of its path; None if it is not ours."""
    found = _FILE.fullmatch(name)
    return None if found is None else found["run"]


def day_of_file(path: str) -> str | None:
    """The day that a data file's path names, as YYYY-MM-DD."""
    found = _DAY.search(path)
    return None if found is None else found[1]
