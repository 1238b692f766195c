"""Words that the repository no longer uses, each with what to write instead.

``tests/tidy.py`` refuses them everywhere else. Each entry has a sample that only its own pattern
refuses; ``tests/test_tidy.py`` checks that.
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
    _retired(r"\bflying\b", "in_flight", "the flying objects"),
    _retired(r"\bUnsound\b", "Problem", "found: list[Unsound]"),
    _retired(r"\bStanding\b", "ReadableRange", "standing = Standing(1, 2)"),
    _retired(r"\bDo\.RING\b", "Do.WAKE", "return Do.RING"),
    _retired(r"\bRooms\b|\bRoom\(", "CapTracker", "self.rooms = Rooms()"),
    _retired(r"(?<!Commit)\bFollower\b", "CommitFollower", "Follower(log)"),
    _retired(r"\b(?:Beside|Alone)\(", "ViaDaemon, Exclusive", "access = Beside(url)"),
    _retired(r"\bspent objects?\b|\bSpent[A-Z]", "unreferenced", "spent objects are deleted"),
    _retired(r"\bSourceRange\b", "LeasedRange", "SourceRange(0, 8, 16)"),
    _retired(r"\b(?:OffsetRun|RunDraft)\b", "ExtentRun", "runs: tuple[OffsetRun, ...]"),
    _retired(r"\bBatch(?:Head|At)\b", "RecordBatchHead", "head: BatchHead"),
    _retired(r"\bKind\.PUSH\b", "Kind.WATCH", "(7, Kind.PUSH)"),
    _retired(r"\b(?:AgingLane|LaneSegment)\b", "AgingBands, look-ahead", "LaneSegment(1)"),
    _retired(r"\bLeaseBelowFloor\b", "a lease in shared memory is live", "raise LeaseBelowFloor"),
    # Where a sentence would refer to something outside the repository.
    _retired(r"\brows? [A-Z]\d+\b", "the figure itself", "at most 1.25 (row L18)"),
    _retired(r"\b(?:PROTOCOL|DESIGN|STYLE|FACTS|ROWS) \d", "docs/protocol.md", "see PROTOCOL 7"),
    # Phrases that read as translated.
    _retired(
        r"(?<![tT]here )\b(?:is|are) no (?!longer|more|less|later|earlier|older|newer)"
        r"(?!faster|slower|larger|smaller|better)",
        "is not a",
        "'x' is no key",
    ),
    _retired(r"\bwhole number", "integer", "'x' is not a whole number"),
    _retired(
        r"(?<!fall )(?<!falls )(?<!fallen )(?<!fell )(?<!far )(?<!lag )(?<!left )"
        r"\b[bB]ehind (?!and |or |if |is |[=<>])",
        "after",
        "the next run begins behind it",
    ),
    _retired(r"\bat once\b", "immediately, or simultaneously", "all start at once"),
    _retired(r"\bmade up for\b", "completed, or caught up", "it is made up for by the next run"),
    _retired(r"\bfor ever\b", "forever", "seals stay for ever"),
    _retired(r"\b[sS]omebody\b", "the operator, process or client", "somebody reads it"),
    _retired(r"\bbeside\b", "next to, in addition to, while", "gc beside a daemon"),
    _retired(r"\bso many\b", "this many, or N", "keeps the newest so many records"),
    _retired(
        r"\b(?:hono|behavio|neighbo|colo|favo)ur", "American spelling", "it honours the condition"
    ),
)


def found(line: str) -> list[Retired]:
    """The entries that a line breaks."""
    return [each for each in RETIRED if each.pattern.search(line)]
