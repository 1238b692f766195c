"""The lake: compaction into Iceberg tables, and reading topics with Spark.

``from compaction import HeadgateDataSource`` imports the Spark source. Importing this package
imports neither Spark nor pyarrow nor boto3. Everything here, and what it imports of ``uploader``,
``shards``, and ``ledger``, runs on Spark executors that have pyarrow, boto3, and msgspec
(``archive.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compaction.source.data_source import HeadgateDataSource

__all__ = ["HeadgateDataSource"]


def __getattr__(name: str) -> object:
    if name == "HeadgateDataSource":
        from compaction.source.data_source import HeadgateDataSource

        return HeadgateDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
