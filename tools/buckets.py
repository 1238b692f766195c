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


def client(
    endpoint_url: str,
    access_key: str = ACCESS_KEY,
    secret_key: str = SECRET_KEY,
    region: str = REGION,
) -> S3Client:
    """A plain S3 client, by default with the credentials of MinIO's root. Close it after use."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
