"""A Spark session for the tests of a module: one per process, so that no two overlap.

Two cores, and two partitions in a shuffle, because test data is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; it is stopped, and its JVM gone, after the module's last test."""
    from compaction.run.session import spark_session

    conf = {"spark.sql.shuffle.partitions": "2"}
    with spark_session("local[2]", tmp_path_factory.mktemp("spark"), conf=conf) as session:
        yield session
