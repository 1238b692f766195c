"""A boto3 client for a MinIO that ``tools.minio`` started, for tests and ``make minio``.

The product's own client, with its checksums and time limits, is in ``uploader/stores``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from tools.minio import ACCESS_KEY, REGION, SECRET_KEY

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def client(endpoint_url: str) -> S3Client:
    """A plain S3 client with the server's root credentials. Close it after use."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
