"""What was measured of push, in the shape of the JSON that is kept."""

from __future__ import annotations

import msgspec


class PostingResult(msgspec.Struct, frozen=True):
    """POSTs to a receiver that answers immediately, on one core. ``what``: the bare loop of the
    client, or a format of ours. ``receiver_share`` is the part of a CPU that the receiver used;
    near 1 we may be faster."""

    what: str
    posts_per_s: float
    records_per_s: float
    cpu_us_per_post: float
    receiver_share: float


class AllowedResult(msgspec.Struct, frozen=True):
    """A backlog, and a receiver that could take more than the rate. ``used`` is POSTs over those
    that the rate allows; ``peak`` the most in any second, over the rate."""

    rate_max: float
    senders: int
    seconds: float
    used: float
    peak: float


class FollowResult(msgspec.Struct, frozen=True):
    """A receiver that answers 503 beyond a capacity which changes. ``periods``: how many of the
    limiter's until it is served SERVED_SHARE of its capacity with at most FAILED_SHARE_MAX
    failures, and that for a while; None if that did not come. ``served`` and ``failed`` are for the
    seconds after that: over the capacity, and over all POSTs."""

    what: str
    capacity: float
    rate_max: float
    period_s: float
    periods: float | None
    served: float
    failed: float


class PushResults(msgspec.Struct):
    """All of them. ``others_share``: the most that other programs used of all CPUs meanwhile."""

    others_share: float = 0.0
    postings: list[PostingResult] = []
    allowed: list[AllowedResult] = []
    follows: list[FollowResult] = []
