"""Options that make a test's daemon use the test's bucket, and what producers see of a bad one."""

from __future__ import annotations

from typing import Any

from tests.e2e.daemon import Daemon
from tests.e2e.load import Load
from tests.minio import Bucket


def on_s3(bucket: Bucket, endpoint_url: str | None = None, **settings: object) -> dict[str, Any]:
    """Options for ``running``: the bucket, reached at ``endpoint_url`` if that is a proxy."""
    return {
        "store": bucket.url,
        "environ": bucket.environment,
        "settings": {"s3_endpoint_url": endpoint_url or bucket.endpoint_url, **settings},
    }


def assert_told_of_outages_only(daemon: Daemon, run: Load) -> None:
    """Producers see latency, and a refusal only if the store has taken nothing for two seconds: a
    slow machine makes few attempts in them, and each may meet a fault."""
    assert not run.unknown
    is_out = "store failing for" in daemon.text
    told = {(answer.status, answer.code) for _, answer in run.refused}
    assert told <= ({(503, "store_failing")} if is_out else set())
