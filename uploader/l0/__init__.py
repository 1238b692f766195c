"""L0 objects: what one lease uploads. The only place that knows their layout.

The format is specified in ``docs/l0-format.md``. ``layout`` has the names and the footer,
``writer`` builds an object, ``reader`` parses one, ``verify`` looks for damage. Nothing here opens
a file or a socket or reads a clock. Spark executors import this package, so it imports only
msgspec, ``shards.checksum``, ``shards.frame`` and ``ledger.types``; ``compression`` alone, which
only the front of Kafka's protocol needs, imports more.
"""

from uploader.l0.layout import (
    Footer,
    FooterCondition,
    FooterExtent,
    L0Error,
    RingRun,
    epoch_prefix,
    object_key,
    parse_key,
)
from uploader.l0.reader import (
    Fetch,
    fetch_extent,
    fetch_footer,
    kafka_batches,
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
    "epoch_prefix",
    "fetch_extent",
    "fetch_footer",
    "kafka_batches",
    "object_key",
    "parse_key",
    "read_extent",
    "read_footer",
    "records_of",
    "verify",
]
