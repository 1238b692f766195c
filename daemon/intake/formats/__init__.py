"""Produce bodies: decompressed, parsed, validated, and turned into one payload per partition.

Pure: bytes in, values or an ApiError out. docs/http-api.md says what a body may have,
docs/producers.md what agents send, and ``uploader/l0/records.py`` how a payload is laid out.
"""

from daemon.intake.formats.compression import decompress
from daemon.intake.formats.json_format import check_count, check_record, has_twice
from daemon.intake.formats.limits import BodyLimits, given_twice, too_many_records
from daemon.intake.formats.ndjson_format import line_texts, short_line
from daemon.intake.formats.parse import NDJSON, body_key, check_charset, is_body_key, parse
from daemon.intake.formats.payloads import Payload, Produce, fingerprint_of, payloads

__all__ = [
    "NDJSON", "BodyLimits", "Payload", "Produce", "body_key", "check_charset", "check_count",
    "check_record", "decompress", "fingerprint_of", "given_twice", "has_twice", "is_body_key",
    "line_texts", "parse", "payloads", "short_line", "too_many_records",
]  # fmt: skip
