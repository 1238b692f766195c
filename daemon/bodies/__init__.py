"""Produce bodies: decompressed, parsed and validated, and turned into payloads per partition.

All of it is pure: bytes in, values or an ApiError out. What a body may hold is in docs/http-api.md,
what agents send in docs/producers.md, and the payload's layout in ``uploader/records.py``.
"""

from daemon.bodies.compression import decompress
from daemon.bodies.limits import BodyLimits
from daemon.bodies.parse import parse
from daemon.bodies.produce import Payload, Produce, payloads
from daemon.bodies.repeats import body_key

__all__ = ["BodyLimits", "Payload", "Produce", "body_key", "decompress", "parse", "payloads"]
