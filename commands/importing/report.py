"""What an import did, for people and programs."""

from __future__ import annotations

from msgspec import Struct

from commands.importing.importer import Importer, ImportTotals
from commands.importing.source import ImportPlan, SourceReport
from commands.output import (
    bytes_text,
    count_text,
    counted_text,
    duration_text,
    limited,
    table,
)


class ImportSummary(Struct):
    """An import. ``sources``: at most 10,000 are named; ``totals`` counts all."""

    topic: str
    dead_letter_topic: str | None
    seconds: float
    totals: ImportTotals
    sources: list[SourceReport]

    @classmethod
    def of(cls, plan: ImportPlan, importer: Importer, seconds: float) -> ImportSummary:
        """Of an import that has ended."""
        dead = None if plan.dead_target is None else plan.dead_target.topic
        return cls(plan.target.topic, dead, round(seconds, 3), importer.totals, importer.reports)


def summary_text(summary: ImportSummary) -> str:
    """A line for each source, and the sums."""
    totals = summary.totals
    rows = [
        [each.source, each.state, count_text(each.records), count_text(each.filtered),
         count_text(each.invalid), bytes_text(each.read_bytes)]
        for each in summary.sources
    ]  # fmt: skip
    head = ("source", "state", "records", "filtered", "invalid", "read")
    lines = table(head, rows).splitlines()
    rate = totals.read_bytes / summary.seconds if summary.seconds else 0
    more = []
    if totals.filtered:
        more.append(f"{count_text(totals.filtered)} filtered out")
    if totals.invalid:
        more.append(f"{count_text(totals.invalid)} invalid")
    if totals.dead_letters:
        more.append(
            f"{counted_text(totals.dead_letters, 'dead letter')} in {summary.dead_letter_topic}"
        )
    if totals.retries:
        more.append(counted_text(totals.retries, "retry", "retries"))
    sums = (
        f"{counted_text(totals.records, 'record')} to {summary.topic} from"
        f" {counted_text(totals.sources, 'source')} in {duration_text(summary.seconds * 1000)}"
        f" ({bytes_text(rate)}/s)"
    )
    return "\n".join([*limited(lines), "", ", ".join([sums, *more])])
