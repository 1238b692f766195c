"""What the same requests would have cost without groups: PUTs of uploaders that share with nobody.

A *lone uploader* gets requests and uploads them by the rule of a group of one
(``uploader/groups/upload_turn.py``): when an object's bytes wait, when the oldest request has
waited a window, or immediately after an idle window. One of them per shard is per-shard uploading,
one for all requests is a single stream. Nothing is uploaded; only the PUTs are counted. What is
sent twice does not count, and no upload takes time: a real single stream would run out of time, not
need more PUTs.

Pure. The requests of a tick are taken as evenly distributed over it, which is within a tenth of
what requests at random moments would need.
"""

from __future__ import annotations

import math

SKIPPED_MIN = 8  # requests of a tick; fewer are gone through one by one


class LoneUploader:
    """Call ``step`` for each tick, in order. Times are nanoseconds of one clock."""

    def __init__(self) -> None:
        self.puts = 0
        self._pending_bytes = 0.0
        self._due_ns = math.inf  # of what is pending by its age; infinite if nothing is
        self._last_ns = -math.inf  # of the last upload

    def step(
        self, from_ns: int, to_ns: int, requests: int, size_bytes: int, window_ns: int,
        target_bytes: int,
    ) -> None:  # fmt: skip
        """``requests`` with ``size_bytes`` in total arrived after ``from_ns``, until ``to_ns``."""
        gap_ns = (to_ns - from_ns) / requests if requests else math.inf
        each_bytes = max(1.0, size_bytes / requests) if requests else 0.0
        taken = 0  # of this tick's requests
        while True:
            if self._due_ns < math.inf:
                missing = max(0.0, target_bytes - self._pending_bytes)
                # The request that fills the object, if one of this tick does.
                fills = taken + math.ceil(missing / each_bytes) if each_bytes else requests + 1
                full_ns = from_ns + gap_ns * fills if fills <= requests else math.inf
                pull_ns = min(self._due_ns, full_ns)
                if pull_ns > to_ns:
                    self._pending_bytes += each_bytes * (requests - taken)
                    return
                arrived = int((pull_ns - from_ns) / gap_ns) if pull_ns > from_ns else 0
                taken = max(taken, fills if full_ns <= self._due_ns else min(arrived, requests))
                self._upload(pull_ns)
            taken += self._skip(from_ns, requests, taken, gap_ns, each_bytes, window_ns,
                                target_bytes)  # fmt: skip
            if taken >= requests:
                return
            taken += 1
            arrival_ns = from_ns + gap_ns * taken
            if each_bytes >= target_bytes or arrival_ns - self._last_ns >= window_ns:
                self._upload(arrival_ns)
            else:
                self._pending_bytes = each_bytes
                self._due_ns = arrival_ns + window_ns

    def _upload(self, now_ns: float) -> None:
        self.puts += 1
        self._pending_bytes = 0.0
        self._due_ns = math.inf
        self._last_ns = now_ns

    def _skip(
        self, from_ns: int, requests: int, taken: int, gap_ns: float, each_bytes: float,
        window_ns: int, target_bytes: int,
    ) -> int:  # fmt: skip
        """Counts uploads of an average size, since windows may be a hundredth of a tick; returns
        how many requests they took. The last ones of a tick are left.

        Between two uploads are the time to the next request and, unless that was an idle window,
        a window. Requests of many clients come at random, so the mean of that time is
        gap + window x (1 - e^(-window / gap)).
        """
        if not requests - taken > SKIPPED_MIN:
            return 0
        windows = window_ns / gap_ns
        per_upload = 1 - windows * math.expm1(-windows)
        per_upload = min(per_upload, math.ceil(target_bytes / each_bytes))
        uploads = int((requests - taken) / per_upload) - 1
        if uploads <= 1:
            return 0
        skipped = int(uploads * per_upload)
        self.puts += uploads
        self._last_ns = from_ns + gap_ns * (taken + skipped)
        return skipped
