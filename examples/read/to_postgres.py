"""Copies the records of a topic to a table of PostgreSQL, each one once, and follows it.

    pip install dist/headgate_client-*.whl 'psycopg[binary]'
    python to_postgres.py TOPIC CONNINFO [URL]

Records and the place up to which they were copied change in one transaction of the database. So it
may be killed at any time, and started again anywhere; of two of them, one waits and copies nothing
twice. CONNINFO is libpq's, such as "host=/run/postgresql dbname=shop".
"""

import json
import sys
import time
from itertools import islice

import psycopg

from headgate import Client

BATCH = 1_000
PAUSE_S = 0.5
TABLES = """
CREATE TABLE IF NOT EXISTS records (
    topic_id bigint, part int, seq bigint, ts timestamptz, key text, data jsonb,
    PRIMARY KEY (topic_id, part, seq));
CREATE TABLE IF NOT EXISTS places (
    topic_id bigint, part int, seq bigint NOT NULL, PRIMARY KEY (topic_id, part));
"""


def copy(headgate: Client, database: psycopg.Connection, topic: str) -> int:
    """Copies a batch of each partition; returns how many records that were."""
    state = headgate.topic(topic)
    copied = 0
    for partition in range(len(state["partitions"])):
        place = (state["topic_id"], partition)  # a topic that is created again has another id
        with database.transaction():
            database.execute("INSERT INTO places VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", place)
            ((seq,),) = database.execute(
                "SELECT seq FROM places WHERE topic_id = %s AND part = %s FOR UPDATE", place
            ).fetchall()
            records = headgate.read(topic, from_seq=seq, partition=partition)
            rows = [
                (*place, each.seq, each.ts / 1000, each.key, json.dumps(each.data))
                for each in islice(records, BATCH)
            ]
            if rows:
                database.cursor().executemany(
                    "INSERT INTO records VALUES (%s, %s, %s, to_timestamp(%s), %s, %s)", rows
                )
                database.execute(
                    "UPDATE places SET seq = %s WHERE topic_id = %s AND part = %s",
                    (rows[-1][2], *place),
                )
        copied += len(rows)
    return copied


def main(topic: str, conninfo: str, url: str = "http://127.0.0.1:7440") -> None:
    """Copies until it is killed."""
    with Client(url) as headgate, psycopg.connect(conninfo, autocommit=True) as database:
        database.execute(TABLES)
        while True:
            if not copy(headgate, database, topic):
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
