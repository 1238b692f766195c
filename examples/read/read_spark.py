"""Reads the topic `orders` with Spark, from the tables and from objects that are not compacted yet.

    python read_spark.py [URL]

It needs the extra `spark` and Java 17 or 21. Every committed record is there once, whether
`headgate compact` has run or not.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import headgate_server


def main(url: str = "http://127.0.0.1:7440") -> None:
    """Prints offset and data of each record."""
    spark = SparkSession.builder.master("local[2]").appName("headgate-example").getOrCreate()
    try:
        headgate_server.register(spark)
        orders = (
            spark.read.format("headgate").option("url", url).option("subscribe", "orders").load()
        )
        rows = orders.selectExpr("offset", "cast(value AS string) AS data").orderBy("offset")
        for row in rows.collect():
            print(row["offset"], row["data"])
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
