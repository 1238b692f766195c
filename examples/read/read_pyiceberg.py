"""Reads the table of the topic `orders` with pyiceberg. Run `headgate compact` first.

    python read_pyiceberg.py [DATA]

DATA is the daemon's data directory, which holds the default catalog. pyiceberg comes with the extra
`spark`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyiceberg.catalog import load_catalog


def main(data: str = "headgate-data") -> None:
    """Prints the first ten rows."""
    catalog = load_catalog("headgate", uri=f"sqlite:///{Path(data).resolve() / 'catalog.db'}")
    table = catalog.load_table("headgate.orders")
    rows = table.scan(row_filter="partition = 0 and offset <= 10").to_arrow()
    for row in rows.select(["offset", "timestamp", "data"]).to_pylist():
        print(row["offset"], row["timestamp"].isoformat(), row["data"])
    catalog.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
