"""L0 objects: what one pull uploads. The one place that knows their layout.

Specified in ``docs/l0-format.md``. ``layout`` holds the names and the footer, ``writer`` makes an
object, ``reader`` takes one apart, ``verify`` looks for damage. Nothing here opens a file, a
socket or a clock, and nothing but msgspec, ``shards.checksum``, ``shards.frame``,
``uploader.l0.records`` and ``ledger.types`` is imported: a Spark executor does.
"""

from uploader.l0.layout import (
    Footer,
    FooterCondition,
    FooterExtent,
    L0Error,
    RingRun,
    object_key,
    parse_key,
)
from uploader.l0.reader import (
    Fetch,
    fetch_extent,
    fetch_footer,
    read_extent,
    read_footer,
    records_of,
)
from uploader.l0.verify import verify
from uploader.l0.writer import BuiltObject, ExtentParts, build

__all__ = [
    "BuiltObject",
    "ExtentParts",
    "Fetch",
    "Footer",
    "FooterCondition",
    "FooterExtent",
    "L0Error",
    "RingRun",
    "build",
    "fetch_extent",
    "fetch_footer",
    "object_key",
    "parse_key",
    "read_extent",
    "read_footer",
    "records_of",
    "verify",
]
