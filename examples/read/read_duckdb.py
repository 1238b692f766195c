"""Queries the table of the topic `orders` with DuckDB. Run `headgate compact` first.

    python read_duckdb.py [DATA]

DATA is the daemon's data directory. DuckDB needs its extensions `avro` and `iceberg`. The PyPI
packages `duckdb-extensions`, `duckdb-extension-avro` and `duckdb-extension-iceberg` bring them;
`INSTALL iceberg` in place of `import_extension` downloads them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension
from pyiceberg.catalog import load_catalog


def main(data: str = "headgate-data") -> None:
    """Prints how many records there are of each status."""
    catalog = load_catalog("headgate", uri=f"sqlite:///{Path(data).resolve() / 'catalog.db'}")
    metadata = catalog.load_table("headgate.orders").metadata_location
    catalog.close()
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            import_extension(extension, con=connection)
            connection.execute(f"LOAD {extension}")
        counts = connection.execute(
            "SELECT data->>'$.status' AS status, count(*) FROM iceberg_scan(?)"
            " GROUP BY 1 ORDER BY 1",
            [metadata.removeprefix("file://")],
        )
        for status, count in counts.fetchall():
            print(status, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
