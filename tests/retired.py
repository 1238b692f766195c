"""Words that the repository no longer uses, each with what to write instead.

``tests/tidy.py`` refuses them everywhere else. Each entry has a sample that only its own pattern
refuses; ``tests/test_tidy.py`` checks that. A pattern begins with its text, and only then looks at
what is before that: with a look behind or ``\\b`` first, it takes ten times as long.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Retired(NamedTuple):
    """A pattern, what replaces it, and a line that it refuses."""

    pattern: re.Pattern[str]
    instead: str
    sample: str


def _retired(pattern: str, instead: str, sample: str) -> Retired:
    return Retired(re.compile(pattern), instead, sample)


RETIRED = (
    # Terms that have another name now (docs/glossary.md).
    _retired(r"flying\b", "in_flight", "the flying objects"),
    _retired(r"Unsound\b", "Problem", "found: list[Unsound]"),
    _retired(r"Standing\b(?<!\wStanding)", "ReadableRange", "standing = Standing(1, 2)"),
    _retired(r"Do\.RING\b", "Do.WAKE", "return Do.RING"),
    _retired(r"Room(?<!\wRoom)(?:s\b|\()", "CapTracker", "self.rooms = Rooms()"),
    _retired(r"Follower\b(?<!\wFollower)", "CommitFollower", "Follower(log)"),
    _retired(r"(?:Beside|Alone)\(", "ViaDaemon, Exclusive", "access = Beside(url)"),
    _retired(r"(?:spent objects?\b|Spent[A-Z])", "unreferenced", "spent objects are deleted"),
    _retired(r"SourceRange\b", "LeasedRange", "SourceRange(0, 8, 16)"),
    _retired(
        r"(?:OffsetRun|RunDraft\b(?<!\wRunDraft))\b", "ExtentRun", "runs: tuple[OffsetRun, ...]"
    ),
    _retired(r"Batch(?<!\wBatch)(?:Head|At)\b", "RecordBatchHead", "head: BatchHead"),
    _retired(r"Kind\.PUSH\b", "Kind.WATCH", "(7, Kind.PUSH)"),
    _retired(r"(?:AgingLane|LaneSegment)\b", "AgingBands, look-ahead", "LaneSegment(1)"),
    _retired(r"LeaseBelowFloor\b", "a lease in shared memory is live", "raise LeaseBelowFloor"),
    # Where a sentence would refer to something outside the repository.
    _retired(r"rows? [A-Z]\d+\b", "the figure itself", "at most 1.25 (row L18)"),
    _retired(r"(?:PROTOCOL|DESIGN|STYLE|FACTS|ROWS) \d", "docs/protocol.md", "see PROTOCOL 7"),
    # Phrases that read as translated.
    _retired(
        r" no (?:(?<=\bis no )|(?<=\bare no ))(?<!here is no )(?<!here are no )"
        r"(?!longer|more|less|later|earlier|older|newer|faster|slower|larger|smaller|better)",
        "is not a",
        "'x' is no key",
    ),
    _retired(r"whole number", "integer", "'x' is not a whole number"),
    _retired(
        r"ehind (?<=\b[bB]ehind )(?<!(?:fall|fell) behind )(?<!falls behind )(?<!fallen behind )"
        r"(?<!left behind )(?<!(?:far|lag) behind )(?!and |or |if |is |[=<>])",
        "after",
        "the next run begins behind it",
    ),
    _retired(r"at once\b", "immediately, or simultaneously", "all start at once"),
    _retired(r"made up for\b", "completed, or caught up", "it is made up for by the next run"),
    _retired(r"for ever\b", "forever", "seals stay for ever"),
    _retired(r"[sS]omebody\b", "the operator, process or client", "somebody reads it"),
    _retired(r"beside\b", "next to, in addition to, while", "gc beside a daemon"),
    _retired(r"so many\b", "this many, or N", "keeps the newest so many records"),
    _retired(
        r"(?:hono|behavio|neighbo|colo|favo)ur", "American spelling", "it honours the condition"
    ),
)


def found(line: str) -> list[Retired]:
    """The entries that a line breaks."""
    return [each for each in RETIRED if each.pattern.search(line)]
