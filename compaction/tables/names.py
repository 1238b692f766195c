"""Names of tables in the catalog, and locations of their files. Pure functions.

The name of a table is decided when its topic is created (``ledger/table_names.py``). Its location
contains the topic's id, which is never used again. So a topic that is deleted and created again
never writes among the files of the former one, whatever the tables are renamed to.
"""

from __future__ import annotations

import re

from ledger.table_names import NAMESPACE
from ledger.types import Topic

# <run>-<task>-<n>.parquet; task and n are numbers. A run has no dash, so files of other engines,
# whose names contain a UUID, do not match even if the UUID ends in digits.
_FILE = re.compile(r"(?P<run>[A-Za-z0-9]+)-\d+-\d+\.parquet")
_DAY = re.compile(r"/timestamp_day=(\d{4}-\d{2}-\d{2})/[^/]+$")


def identifier_of(topic: Topic) -> str:
    """The identifier of a topic's table in the catalog."""
    return f"{NAMESPACE}.{topic.table}"


def table_location(lake: str, table: str, topic_id: int) -> str:
    """The location of a new table, without a slash at the end."""
    return f"{lake.rstrip('/')}/{table}-{topic_id}"


def run_of_file(name: str) -> str | None:
    """The run that wrote a Parquet file, from the last part of its path; None: not a run's file."""
    found = _FILE.fullmatch(name)
    return None if found is None else found["run"]


def day_of_file(path: str) -> str | None:
    """The day in the path of a data file, as YYYY-MM-DD."""
    found = _DAY.search(path)
    return None if found is None else found[1]
