"""A topic's table in the catalog, and where the table's files are. Pure functions.

Which name a table has is decided with its topic (``ledger/table_names.py``). Its location has the
topic's id in it, which is never used twice, so a topic that is made again never writes among the
files of the former one, whatever the tables are renamed to.
"""

from __future__ import annotations

import re

from ledger.table_names import NAMESPACE
from ledger.types import Topic

# <run>-<task>-<n>.parquet; task and n are numbers. A run has no dash: other engines' files, which
# hold a UUID, are none of ours even where the UUID ends in digits.
_FILE = re.compile(r"(?P<run>[A-Za-z0-9]+)-\d+-\d+\.parquet")
_DAY = re.compile(r"/timestamp_day=(\d{4}-\d{2}-\d{2})/[^/]+$")


def identifier_of(topic: Topic) -> str:
    """The table of a topic, as the catalog knows it."""
    return f"{NAMESPACE}.{topic.table}"


def former_name(table: str, topic_id: int) -> str:
    """What the table of a former topic is renamed to."""
    return f"{table}__{topic_id}"


def table_location(lake: str, table: str, topic_id: int) -> str:
    """Where the table of a topic is made, without a slash at its end."""
    return f"{lake.rstrip('/')}/{table}-{topic_id}"


def run_of_file(name: str) -> str | None:
    """The run that wrote a Parquet file, by the last part of its path; None if it is not ours."""
    found = _FILE.fullmatch(name)
    return None if found is None else found["run"]


def day_of_file(path: str) -> str | None:
    """The day that a data file's path names, as YYYY-MM-DD."""
    found = _DAY.search(path)
    return None if found is None else found[1]
