"""Produce bodies: decompressed, parsed, validated, and turned into one payload per partition.

Pure: bytes in, values or an ApiError out. docs/http-api.md says what a body may have,
docs/producers.md what agents send, and ``uploader/l0/records.py`` how a payload is laid out.
"""

from daemon.intake.formats.compression import decompress
from daemon.intake.formats.json_format import check_count, check_record
from daemon.intake.formats.limits import BodyLimits, too_many_records
from daemon.intake.formats.ndjson_format import line_texts, short_line
from daemon.intake.formats.parse import NDJSON, body_key, check_charset, parse
from daemon.intake.formats.payloads import Payload, Produce, payloads

__all__ = [
    "NDJSON", "BodyLimits", "Payload", "Produce", "body_key", "check_charset", "check_count",
    "check_record", "decompress", "line_texts", "parse", "payloads", "short_line",
    "too_many_records",
]  # fmt: skip
