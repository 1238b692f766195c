"""What a compaction or collection must know of its daemon: where objects, tables and catalog are,
and limits."""

from __future__ import annotations

from msgspec import Struct

from compaction.inputs.place import Place
from uploader.stores.base import Encryption
from uploader.stores.prices import FREE, Prices


class LakeSettings(Struct, frozen=True):
    """The answer of ``GET /v0/admin/lake``; without a daemon, the same from the configuration.

    ``catalog_uri`` None is the default catalog, whose pointers the owner of the ledger keeps
    (``ledger_access.py``). Passwords are not told.
    """

    data_dir: str
    store_url: str
    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    s3_encryption: Encryption | None = None
    lake_url: str = ""
    catalog_uri: str | None = None
    catalog_name: str | None = None
    run_bytes_max: int = 0
    gc_grace_ms: int = 3_600_000
    snapshot_keep_ms: int = 86_400_000
    prices: Prices = FREE
    pid: int | None = None  # of the daemon

    @property
    def place(self) -> Place:
        """Where L0 and the lake are."""
        return Place(
            self.store_url, self.s3_endpoint_url, self.s3_region, self.lake_url, self.s3_encryption
        )
