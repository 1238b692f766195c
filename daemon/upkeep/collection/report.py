"""What a collection found and did: the JSON of ``headgate gc``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct, field

from uploader.stores.counted import Requests

KEYS_TOLD_MAX = 10_000


class CollectionReport(Struct):
    """Objects are keys; equal copies of one count once.

    ``orphans`` are all that were found, of which ``young`` are still within the grace time, and
    ``deleted`` went. Of committed objects that nothing needs any more ``collected`` went,
    ``kept_by_lease`` are held by bulk readers, ``waiting`` are within their grace or may still be
    asked for; ``quarantined`` ones never go. ``lake_files`` are Parquet files and
    manifests, ``lake_bytes`` those of the former.
    ``keys`` are the objects deleted, or with ``dry_run`` those that would be; at most 10,000.
    ``problems``: what of the lake could not be collected, and why; the rest was done.
    """

    dry_run: bool
    daemon_pid: int | None = None
    epoch_floor: int = 0
    objects: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    young: int = 0
    foreign: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    collected: int = 0
    collected_bytes: int = 0
    kept_by_lease: int = 0
    waiting: int = 0
    quarantined: int = 0
    lake_files: int = 0
    lake_bytes: int = 0
    lake_snapshots: int = 0
    lake_skipped: str | None = None
    problems: list[str] = []
    keys: list[str] = []
    requests: Requests = field(default_factory=Requests)
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether everything was done."""
        return not self.problems

    def tell(self, keys: Iterable[str]) -> None:
        """Adds keys of objects, up to the limit of a report."""
        self.keys.extend(islice(keys, max(0, KEYS_TOLD_MAX - len(self.keys))))
