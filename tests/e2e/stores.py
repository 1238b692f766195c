"""Options that make a test's daemon use the test's bucket."""

from __future__ import annotations

from typing import Any

from tests.minio import Bucket


def on_s3(bucket: Bucket, endpoint_url: str | None = None, **settings: object) -> dict[str, Any]:
    """Options for ``running``: the bucket, reached at ``endpoint_url`` if that is a proxy."""
    return {
        "store": bucket.url,
        "environ": bucket.environment,
        "settings": {"s3_endpoint_url": endpoint_url or bucket.endpoint_url, **settings},
    }
