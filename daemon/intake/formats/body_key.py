"""``dedupe=body``: a request whose body was sent before is a repeat, for agents that send no keys.

Pure. The key that such a request gets is as good as one that a producer chose: what repeats it
within the window is decided in the commit. It covers all that says what the records are: the
topic (keys belong to one), the content type, the query but for how long to wait and whether the
topic is made, and the decompressed body, for a retry may be compressed anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

# 128 bits: among 10^12 bodies within a window, two with one key are as likely as 1 in 10^14.
DIGEST_BYTES = 16
PREFIX = "dedupe=body:"  # a producer's own keys should not begin so
_ABOUT_THE_SENDING = frozenset({"ack_timeout_ms", "create", "dedupe"})


def body_key(content_type: str, query: Mapping[str, str], body: bytes) -> str:
    """The idempotency key of a request that has none."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    said = sorted(item for item in query.items() if item[0] not in _ABOUT_THE_SENDING)
    # How many parameters there are says where the body begins.
    for text in (str(len(said)), content_type, *(part for item in said for part in item)):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    digest.update(body)
    return PREFIX + digest.hexdigest()
