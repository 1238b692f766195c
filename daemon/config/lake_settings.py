"""What a compaction or collection must know of a configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from compaction.access.redaction import without_secrets
from compaction.access.settings import LakeSettings
from daemon.config import Config


def catalog_path(config: Config) -> Path:
    """The file of the default catalog."""
    return Path(config.data_dir) / "catalog.db"


def default_catalog(config: Config) -> tuple[Path, str]:
    """The file of the default catalog, and the location below which its tables must be."""
    return catalog_path(config), lake_settings(config).place.lake


def lake_settings(config: Config) -> LakeSettings:
    """The settings, with the catalog's password."""
    is_default = config.catalog_uri == f"sqlite:///{catalog_path(config)}"
    return LakeSettings(
        data_dir=config.data_dir,
        store_url=config.store_url,
        s3_endpoint_url=config.s3_endpoint_url,
        s3_region=config.s3_region,
        s3_encryption=config.s3_encryption,
        lake_url=config.lake_url,
        catalog_uri=None if is_default else config.catalog_uri,
        catalog_name=config.catalog_name,
        run_bytes_max=config.compact_run_bytes,
        gc_grace_ms=config.gc_grace_ms,
        snapshot_keep_ms=config.snapshot_keep_ms,
        prices=config.store_prices,
    )


def told_settings(config: Config, pid: int) -> LakeSettings:
    """The settings as the daemon with this pid tells them, without a password."""
    settings = lake_settings(config)
    uri = settings.catalog_uri
    told = None if uri is None else without_secrets(uri)
    return msgspec.structs.replace(settings, catalog_uri=told, pid=pid)
