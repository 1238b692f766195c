"""The bill: what the daemon's requests to the store cost, so far and by month, and what they would
cost without groups.

Counts are exact, of all requests since the daemon started: shards' PUTs and GETs, and the
supervisor's own (owner's log, images, probes). Rates are means over about a minute. Commands such
as ``headgate compact`` report their own requests.

What the same requests would have cost without groups are the PUTs of uploaders that share with
nobody. A *lone uploader* gets requests and uploads them by the rule of a group of one
(``uploader/groups/upload_turn.py``): when an object's bytes wait, when the oldest request has
waited a window, or immediately after an idle window. One of them per shard is per-shard uploading,
one for all requests is a single stream. Nothing is uploaded; only the PUTs are counted. What is
sent twice does not count, and no upload takes time: a real single stream would run out of time, not
need more PUTs. The requests of a tick are taken as evenly distributed over it, which is within a
tenth of what requests at random moments would need.

Pure: totals and ``now`` in, a Billed out. ``billing.py`` reads the totals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from uploader.stores.prices import SECONDS_PER_MONTH, Prices

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


RATE_S = 60.0  # an owner's log alone has one PUT in 5 s: a shorter mean would show its rhythm


class Usage(Struct, frozen=True):
    """Requests since the daemon started."""

    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    lists: int = 0

    def usd(self, prices: Prices) -> float:
        """What they cost."""
        return prices.usd(self.puts, self.gets, self.lists, self.put_bytes, self.get_bytes)

    def put_class_usd(self, prices: Prices) -> float:
        """What a budget limits."""
        return prices.put_class_usd(self.puts, self.lists, self.put_bytes)

    def __add__(self, more: Usage) -> Usage:
        return Usage(
            self.puts + more.puts, self.put_bytes + more.put_bytes, self.gets + more.gets,
            self.get_bytes + more.get_bytes, self.lists + more.lists,
        )  # fmt: skip

    def __sub__(self, before: Usage) -> Usage:
        return Usage(
            self.puts - before.puts, self.put_bytes - before.put_bytes, self.gets - before.gets,
            self.get_bytes - before.get_bytes, self.lists - before.lists,
        )  # fmt: skip


class _Rate:
    """The mean per second of something, over about RATE_S."""

    def __init__(self) -> None:
        self._sum = 0.0  # of what was counted, each less the older it is
        self._seconds = 0.0  # the same of the time, so that the first minute is not too low

    def add(self, count: float, passed_s: float) -> None:
        left = math.exp(-passed_s / RATE_S)
        self._sum = self._sum * left + count
        self._seconds = self._seconds * left + passed_s

    @property
    def per_s(self) -> float:
        return self._sum / self._seconds if self._seconds else 0.0


class Billed(Struct, frozen=True):
    """One sample. ``optimum_put_rate`` is that of a single stream, with the requests that are not
    uploads; PUTs of the two alternatives are uploads only."""

    put_rate: float
    optimum_put_rate: float
    usd_per_month: float
    put_class_usd_per_month: float
    per_shard_puts: int
    single_stream_puts: int
    per_shard_usd_per_month: float
    single_stream_usd_per_month: float


class Bill:
    """Call ``sample`` with each tick."""

    def __init__(self, prices: Prices, shards: int, now_ns: int) -> None:
        self._prices = prices
        self._shards = [LoneUploader() for _ in range(shards)]
        self._single = LoneUploader()
        self._requests = [0] * shards
        self._heads = [0] * shards
        self._usage = Usage()
        self._own_puts = 0
        # Of the time in which all shards were one group: what it has put, and what the model says
        # that one stream would have.
        self._joined_puts = self._joined_model = 0
        self._now_ns = now_ns
        self._put_rate, self._optimum, self._usd, self._put_class_usd = (_Rate() for _ in range(4))
        # The same dollars with the uploads of the alternatives, which `_uploads` counts.
        self._per_shard_usd, self._single_stream_usd = _Rate(), _Rate()
        self._uploads = (0, 0)

    def sample(
        self, usage: Usage, own_puts: int, requests: Sequence[int], heads: Sequence[int],
        window_ns: int, target_bytes: int, now_ns: int, *, is_one_group: bool = False,
    ) -> tuple[Usage, Billed]:  # fmt: skip
        """Takes totals: ``own_puts`` of ``usage`` are not uploads; ``requests`` and ``heads`` are
        what each shard has published. Returns what is new, and the bill.

        ``is_one_group``: all shards upload in one stream, so what they put is what one stream
        needs. The model does not know that a client waits for its answer before it sends again.
        """
        new = usage - self._usage
        passed_s = max(0, now_ns - self._now_ns) / 1e9
        single_puts = self._single.puts
        self._imagine(requests, heads, window_ns, target_bytes, now_ns)
        self._put_rate.add(new.puts, passed_s)
        fewest = self._single.puts - single_puts + own_puts - self._own_puts
        if is_one_group:
            self._joined_puts += new.puts - (own_puts - self._own_puts)
            self._joined_model += self._single.puts - single_puts
        single_stream = self._single.puts + max(0, self._joined_puts - self._joined_model)
        self._optimum.add(fewest, passed_s)
        self._usd.add(new.usd(self._prices), passed_s)
        self._put_class_usd.add(new.put_class_usd(self._prices), passed_s)
        # Who uploads for itself alone never needs less than one stream for all.
        per_shard = max(single_stream, sum(shard.puts for shard in self._shards))
        new_own_puts = own_puts - self._own_puts
        for rate, uploads, before in zip(
            (self._per_shard_usd, self._single_stream_usd), (per_shard, single_stream),
            self._uploads, strict=True,
        ):  # fmt: skip
            instead = msgspec.structs.replace(new, puts=new_own_puts + uploads - before)
            rate.add(instead.usd(self._prices), passed_s)
        self._uploads = per_shard, single_stream
        self._usage, self._own_puts, self._now_ns = usage, own_puts, now_ns
        return new, Billed(
            put_rate=self._put_rate.per_s,
            optimum_put_rate=self._optimum.per_s,
            usd_per_month=self._usd.per_s * SECONDS_PER_MONTH,
            put_class_usd_per_month=self._put_class_usd.per_s * SECONDS_PER_MONTH,
            per_shard_puts=per_shard,
            single_stream_puts=single_stream,
            per_shard_usd_per_month=self._per_shard_usd.per_s * SECONDS_PER_MONTH,
            single_stream_usd_per_month=self._single_stream_usd.per_s * SECONDS_PER_MONTH,
        )

    def _imagine(
        self, requests: Sequence[int], heads: Sequence[int], window_ns: int, target_bytes: int,
        now_ns: int,
    ) -> None:  # fmt: skip
        """Lets the same requests be uploaded by each shard for itself, and by one for all."""
        all_requests = all_bytes = 0
        for shard, uploader in enumerate(self._shards):
            new = requests[shard] - self._requests[shard]
            size_bytes = heads[shard] - self._heads[shard]
            all_requests += new
            all_bytes += size_bytes
            uploader.step(self._now_ns, now_ns, new, size_bytes, window_ns, target_bytes)
        self._single.step(self._now_ns, now_ns, all_requests, all_bytes, window_ns, target_bytes)
        self._requests[:], self._heads[:] = requests, heads
