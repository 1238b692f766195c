"""``/metrics``: the status in Prometheus' text format, or in OpenMetrics, from any shard.

The status is taken first, so all values are of one moment. Then the page is written in parts, and
after each slice of time the loop does other things: the page of 64 shards takes 10 ms.

The library is loaded by the first request (23 ms, 1.2 MB), since few shards are ever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from daemon.api.figures.metric_kinds import Histogram, Metric, Scrape
from daemon.api.figures.metric_table import METRICS
from daemon.api.streaming import Text
from delivery.dispatch import SLICE_NS
from delivery.streams.accept import accepted
from shards.latency import Counted, bounds_s

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

CONTENT_TYPES = {
    "text/plain": "text/plain; version=0.0.4; charset=utf-8",
    "application/openmetrics-text": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_BOUNDS = [f"{bound:.6f}".rstrip("0") for bound in bounds_s()]
_END = b"# EOF\n"  # of a page of OpenMetrics
HEADING_LINES = 2  # HELP and TYPE
SAMPLES_A_STEP = 64  # each takes 7 us


class StatusCollector:
    """A scrape as families of metrics: what the library calls a collector."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Family]:
        """All families, in the order of the table."""
        for metric in METRICS:
            yield _family(metric, self._scrape)


class _OneFamily:
    """A collector of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


async def page(scrape: Scrape, accept: str, now_ns: Callable[[], int]) -> Text:
    """The page in the format that ``accept`` asks for; the text format if it asks for none."""
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics

    chosen = accepted(accept, [*CONTENT_TYPES]) or "text/plain"
    is_open = chosen != "text/plain"
    encode: Callable[[_OneFamily], bytes] = (
        openmetrics.generate_latest if is_open else exposition.generate_latest
    )
    parts: list[bytes] = []
    until_ns = now_ns() + SLICE_NS
    for family in StatusCollector(scrape).collect():
        for part in _encoded(encode, family):
            parts.append(part)
            if now_ns() >= until_ns:
                await asyncio.sleep(0)
                until_ns = now_ns() + SLICE_NS
    if is_open:
        parts.append(_END)
    return Text(CONTENT_TYPES[chosen], b"".join(parts))


def _encoded(encode: Callable[[_OneFamily], bytes], family: Family) -> Iterator[bytes]:
    """The lines of a family, in parts; only the first one has the heading."""
    samples = family.samples
    for start in range(0, max(1, len(samples)), SAMPLES_A_STEP):
        family.samples = samples[start : start + SAMPLES_A_STEP]
        part = encode(_OneFamily(family)).removesuffix(_END)
        yield part if start == 0 else part.split(b"\n", HEADING_LINES)[HEADING_LINES]


def _family(metric: Metric, scrape: Scrape) -> Family:
    from prometheus_client.metrics_core import Metric as Family

    base = metric.name.removesuffix("_total").removesuffix("_info")
    family = Family(base, metric.says, metric.kind)
    for values, value in metric.samples(scrape):
        labels = dict(zip(metric.labels, values, strict=True))
        if isinstance(value, Counted):
            _add_histogram(family, labels, value, _BOUNDS)
        elif isinstance(value, Histogram):
            bounds = [f"{bound:g}" for bound in value.bounds_s]
            _add_histogram(family, labels, value.counted, bounds)
        else:
            family.add_sample(metric.name, labels, value)
    return family


def _add_histogram(
    family: Family, labels: dict[str, str], counted: Counted, bounds: Sequence[str]
) -> None:
    """Buckets are cumulative, and the last one has everything."""
    passed = 0
    for bound, count in zip([*bounds, "+Inf"], counted.buckets, strict=True):
        passed += count
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, passed)
    family.add_sample(f"{family.name}_count", labels, passed)
    family.add_sample(f"{family.name}_sum", labels, counted.sum_ns / 1e9)
