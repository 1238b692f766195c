"""``dedupe=body``: an idempotency key made of the body, for agents that send no keys.

Pure. The commit treats such a key like one that a producer chose. It covers everything that says
what the records are: the topic (keys belong to one), the content type, the query without the
parameters about sending, and the decompressed body, since a retry may be compressed differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

# 128 bits: that two of 10^12 bodies within a window have one key has a chance of 1 in 10^14.
DIGEST_BYTES = 16
PREFIX = "dedupe=body:"  # reserved: a producer's own keys must not begin with it
_ABOUT_THE_SENDING = frozenset({"ack_timeout_ms", "create", "dedupe", "disable_backpressure"})


def body_key(content_type: str, query: Mapping[str, str], body: bytes) -> str:
    """The idempotency key of a request that has none."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    said = sorted(item for item in query.items() if item[0] not in _ABOUT_THE_SENDING)
    # The count of the parameters says where the body begins.
    for text in (str(len(said)), content_type, *(part for item in said for part in item)):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    digest.update(body)
    return PREFIX + digest.hexdigest()
