"""Produce bodies: decompressed, parsed and validated, and turned into payloads per partition.

All of it is pure: bytes in, values or an ApiError out. What a body may hold is in docs/http-api.md,
what agents send in docs/producers.md, and the payload's layout in ``uploader/l0/records.py``.
"""

from daemon.intake.formats.body_key import body_key
from daemon.intake.formats.compression import decompress
from daemon.intake.formats.limits import BodyLimits
from daemon.intake.formats.parse import parse
from daemon.intake.formats.payloads import Payload, Produce, payloads

__all__ = ["BodyLimits", "Payload", "Produce", "body_key", "decompress", "parse", "payloads"]
