"""The CPU and time of one PUT: a bare boto3 loop compared with ``put`` of our store.

It runs in its own process on the CPUs of the daemon. Both sides take turns in one process on one
MinIO and compute the checksum as the daemon does. The bare loop is configured for the least CPU
that boto3 is known to need.
"""

from __future__ import annotations

import base64
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable

import boto3
import msgspec
from botocore.config import Config
from crc32c import crc32c

from bench.processes import BUCKET, ROOT, Minio, ServerError, pinned, plain_environment
from shards.clock import monotonic_ns, process_cpu_ns
from uploader.stores.s3 import S3Store

LARGE_BYTES = 4 << 20
SMALL_BYTES = 2 << 10  # about the size of an object with one request of 1 KiB
WARM = 4
SMALL_PAUSE_S = 0.05  # a lone PUT, as at light load


class PutCost(msgspec.Struct, frozen=True):
    """CPU of a 4 MiB PUT, bare and by our store, and the p50 of a bare 2 KiB PUT."""

    bare_cpu_ms: float
    store_cpu_ms: float
    small_put_p50_ms: float


def measure(store: Minio, cpus: Iterable[int], puts: int) -> PutCost:
    """Runs this module on ``cpus`` with ``puts`` PUTs of each kind. Raises ServerError."""
    command = [sys.executable, "-m", "bench.put_cost", store.endpoint_url, str(puts)]
    environment = plain_environment(store.environment)
    with pinned(cpus):
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True)
    if done.returncode != 0:
        raise ServerError(f"the PUT loop failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout, type=PutCost)


def _loop(endpoint_url: str, puts: int) -> PutCost:
    config = Config(
        request_checksum_calculation="when_required",
        s3={"payload_signing_enabled": False, "addressing_style": "path"},
    )
    client = boto3.client("s3", endpoint_url=endpoint_url, config=config)
    store = S3Store(BUCKET, "put-cost", endpoint_url=endpoint_url)

    def bare(key: str, body: bytes) -> None:
        checksum = base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()
        client.put_object(
            Bucket=BUCKET, Key=key, Body=body, ChecksumCRC32C=checksum, IfNoneMatch="*"
        )

    def ours(key: str, body: bytes) -> None:
        store.put(key, body, crc32c(body))

    large = os.urandom(LARGE_BYTES)
    small = os.urandom(SMALL_BYTES)
    bare_ms: list[float] = []
    ours_ms: list[float] = []
    for _ in range(WARM + puts):
        bare_ms.append(_spent_ms(process_cpu_ns, bare, large))
        ours_ms.append(_spent_ms(process_cpu_ns, ours, large))
    small_ms: list[float] = []
    for _ in range(WARM + puts):
        time.sleep(SMALL_PAUSE_S)
        small_ms.append(_spent_ms(monotonic_ns, bare, small))
    store.close()
    client.close()
    # The mean of CPU, because all of it is paid; the median of the time.
    return PutCost(
        bare_cpu_ms=statistics.mean(bare_ms[WARM:]),
        store_cpu_ms=statistics.mean(ours_ms[WARM:]),
        small_put_p50_ms=statistics.median(small_ms[WARM:]),
    )


def _spent_ms(clock_ns: Callable[[], int], put: Callable[[str, bytes], None], body: bytes) -> float:
    before_ns = clock_ns()
    put(f"bare/{uuid.uuid4().hex}", body)
    return (clock_ns() - before_ns) / 1e6


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_loop(sys.argv[1], int(sys.argv[2]))))
