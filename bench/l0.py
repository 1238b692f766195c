"""L0 objects for the figures of compactions, in a directory store.

Records are JSON objects of 1 KiB with words, numbers and ids, a time and a key; zstd compresses
them to about a third, as it does logs and events. Every object holds all topics in equal shares, in
batches of ``batch_records`` records. The same arguments give the same bytes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec

from ledger.lake.types import PlannedObject
from ledger.types import Extent, LeaseId
from shards.frame import CODEC_RECORDS, encode_batch
from uploader.l0 import ExtentParts, RingRun, build, object_key
from uploader.stores.open import open_store

RECORD_BYTES = 1024
OBJECT_BYTES = 4 << 20
COMMIT_MS = 200
START_MS = 1_700_000_000_000
POOL = 8192  # different records; 8 MiB of them, far more than zstd's window at low levels sees
SEED = 7_440
_LETTERS = "etaoinshrdlucmfwyp"
_KINDS = ("view", "click", "order", "refund", "login", "search")


def record(rng: random.Random, words: list[str]) -> str:
    """An event of RECORD_BYTES as JSON."""
    event = {
        "id": f"{rng.getrandbits(64):016x}",
        "kind": rng.choice(_KINDS),
        "amount": rng.randrange(1, 10_000_000) / 100,
        "user": rng.randrange(10**6),
        "host": f"host-{rng.randrange(1000):04d}",
        "path": "/".join(rng.choices(words, k=4)),
        "session": f"{rng.getrandbits(128):032x}",
        "note": "",
    }
    missing = RECORD_BYTES - len(_json(event))
    event["note"] = " ".join(rng.choices(words, k=missing))[:missing]
    return _json(event)


def make(
    folder: Path, total_bytes: int, topics: int, partitions: int, batch_records: int
) -> list[PlannedObject]:
    """Puts objects of about ``total_bytes`` into the store; returns what a ledger would plan."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices(_LETTERS, k=rng.randint(3, 9))) for _ in range(2000)]
    pool = [record(rng, words) for _ in range(POOL)]
    places = [(topic, p) for topic in range(1, topics + 1) for p in range(partitions)]
    records = max(1, OBJECT_BYTES // len(places) // RECORD_BYTES)
    store = open_store(folder.as_uri())
    heads: dict[tuple[int, int], int] = {}
    planned: list[PlannedObject] = []
    size = 0
    while size < total_bytes:
        number = len(planned) + 1
        now_ms = START_MS + number * COMMIT_MS
        extents = []
        for topic, partition in places:
            batches = []
            for start in range(0, records, batch_records):
                count = min(batch_records, records - start)
                rows = [
                    (pool[rng.randrange(POOL)], now_ms + i, f"user-{rng.randrange(10**6)}")
                    for i in range(count)
                ]
                payload = msgspec.msgpack.encode(rows)
                batches.append(encode_batch(count, now_ms, payload, CODEC_RECORDS))
            last_ms = now_ms + min(batch_records, records) - 1
            extents.append(
                ExtentParts(f"topic-{topic}", topic, partition, CODEC_RECORDS, batches, records,
                            now_ms, last_ms, (RingRun(0, 0, 0, records),))
            )  # fmt: skip
        lease = LeaseId(incarnation=1, epoch=1, shard=0, counter=number)
        built = build(lease, now_ms, extents)
        locator = store.put(object_key(lease), built.body, built.crc32c)
        committed = []
        for draft in built.drafts:
            place = (draft.topic_id, draft.partition)
            first = heads.get(place, 0) + 1
            heads[place] = first + draft.record_count - 1
            committed.append(
                Extent(*place, first, heads[place], draft.record_count, locator, len(built.body),
                       draft.byte_start, draft.byte_length, draft.crc32c, draft.codec,
                       draft.first_timestamp_ms, draft.last_timestamp_ms)
            )  # fmt: skip
            size += draft.byte_length
        planned.append(
            PlannedObject(number, object_key(lease), locator, len(built.body), tuple(committed))
        )
    store.close()
    return planned


def _json(event: dict[str, object]) -> str:
    return json.dumps(event, separators=(",", ":"))
