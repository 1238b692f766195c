"""What can go wrong with a ledger: few kinds, each with its operands and the way out.

``retryable`` says whether the same call may succeed later. Errors of SQLite are turned into
these kinds in one place, ``translated``; nothing above this floor sees ``sqlite3``.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import ClassVar

# Primary result codes (sqlite.org/rescode.html). Any other code is a bug in the program: the same
# call would fail again. SQLITE_NOMEM arrives as MemoryError.
BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
INTERRUPTED_CODES = frozenset(
    {sqlite3.SQLITE_ABORT, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_SCHEMA}
)
UNUSABLE_CODES = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB})


class LedgerError(Exception):
    """A call on the ledger that failed; nothing of it is stored."""

    retryable: ClassVar[bool] = False


class LedgerCorrupt(LedgerError):
    """The file is damaged or is not a ledger."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"the ledger {path} is damaged or is not a ledger ({cause}); move it and its -wal and"
            f" -shm aside, keep them, and rebuild it from the bucket with `headgate recover`"
        )
        self.path = path
        self.cause = cause


class LedgerFromFuture(LedgerError):
    """The file was written by a newer headgate."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"the ledger {path} has schema version {found}, but this headgate knows only"
            f" versions up to {known}; start the newer headgate that wrote it, or use another data"
            f" directory"
        )
        self.path = path
        self.found = found
        self.known = known


class LedgerMissing(LedgerError):
    """The file does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no ledger at {path}; `headgate serve --data DIR` creates one")
        self.path = path


class LedgerUnusable(LedgerError):
    """The disk or its permissions prevent reading or writing the ledger."""

    retryable = True

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"the ledger {path} cannot be used ({cause}); its directory must exist, be"
            f" writable by this user, and have free space"
        )
        self.path = path
        self.cause = cause


class LedgerBusy(LedgerError):
    """Another process held SQLite's own lock for longer than the busy timeout."""

    retryable = True

    def __init__(self, path: Path, timeout_ms: int) -> None:
        super().__init__(
            f"the ledger {path} was locked for more than {timeout_ms} ms by a process that does"
            f" not take the ledger lock; stop the process that has it open (`fuser {path}`)"
        )
        self.path = path
        self.timeout_ms = timeout_ms


class LedgerInterrupted(LedgerError):
    """A statement was interrupted by another process or thread."""

    retryable = True

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"a call on the ledger {path} was interrupted ({cause}); try again")
        self.path = path
        self.cause = cause


class LedgerMemory(LedgerError):
    """SQLite could not get memory for a call."""

    retryable = True

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"out of memory in a call on the ledger {path}; give this machine or its service more"
            f" memory, or run fewer shards"
        )
        self.path = path


class LedgerFault(LedgerError):
    """SQLite refused a statement as wrong: a bug in this program."""

    def __init__(self, path: Path, code: int, cause: str) -> None:
        super().__init__(
            f"the ledger {path} refused a statement (SQLite code {code}: {cause}); this is a bug in"
            f" headgate: report it with these lines of the log"
        )
        self.path = path
        self.code = code
        self.cause = cause


class DraftInvalid(LedgerError):
    """A commit draft contradicts itself or names what never existed: a bug of the caller."""


class ResultCleared(LedgerError):
    """The answer of a commit was asked for after every shard had followed it: a bug."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"the result of commit {number} was cleared: every shard had followed it, and its lease"
            " was over"
        )
        self.number = number


class TopicMissing(LedgerError):
    """No live topic has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no topic {name!r}")
        self.name = name


class TopicHoldsDeadLetters(LedgerError):
    """The topic takes the dead letters of live subscriptions of other topics."""

    NAMED_MAX = 10

    def __init__(self, name: str, subscriptions: list[str]) -> None:
        more = len(subscriptions) - self.NAMED_MAX
        named = ", ".join(subscriptions[: self.NAMED_MAX])
        named += f" and {more} more" if more > 0 else ""
        super().__init__(
            f"topic {name!r} takes the dead letters of {named}, which would wait; give these"
            " another dead_letter_topic first, or force the deletion"
        )
        self.name = name
        self.subscriptions = subscriptions


class TableNameTaken(LedgerError):
    """The topic's table would have the same name as that of another live topic."""

    def __init__(self, name: str, table: str, other: str) -> None:
        super().__init__(
            f"topic {name!r} would share the table {table!r} with topic {other!r}: table names have"
            f" '_' for '.', ':' and '-', and case does not count; choose another name, or delete"
            f" the topic {other!r}"
        )
        self.name = name
        self.table = table
        self.other = other


class PartitionsRefused(LedgerError):
    """A number of partitions that a topic cannot have."""

    def __init__(self, name: str, present: int, wanted: int, maximum: int) -> None:
        if wanted < present:
            reason = f"has {present} partitions and cannot shrink to {wanted}; partitions only grow"
        else:
            reason = f"cannot have {wanted} partitions; the limits are 1 and {maximum}"
        super().__init__(f"topic {name!r} {reason}")
        self.name = name
        self.present = present
        self.wanted = wanted
        self.maximum = maximum


class PartitionsFull(LedgerError):
    """The topics of the daemon would have more partitions than they may."""

    def __init__(self, name: str, present: int, wanted: int, maximum: int) -> None:
        super().__init__(
            f"topic {name!r} would have {wanted} partitions more, and all topics have {present} of"
            f" the {maximum} that partitions_max allows; delete topics, or raise partitions_max"
        )
        self.present = present
        self.wanted = wanted
        self.maximum = maximum


class RunUnfinished(LedgerError):
    """Another compaction is under way."""

    def __init__(self, run: str, owner: str) -> None:
        super().__init__(
            f"another compaction is at work: run {run} of {owner}; wait until it ends (if its"
            f" driver died, another can begin within a minute)"
        )
        self.run = run
        self.owner = owner


class RunLost(LedgerError):
    """This compaction is over: it must not switch readers to what it did since."""

    def __init__(self, run: str, now: str) -> None:
        super().__init__(
            f"the compaction {run} has lost its lease ({now}); run it again: what it committed to"
            f" its tables stays, and nothing is doubled"
        )
        self.run = run


class SwitchRefused(LedgerError):
    """A table claims more than the ledger holds, its topic never existed, or it has files outside
    the lake."""

    def __init__(
        self,
        table: str,
        cause: str,
        hint: str = "its topic id or its watermarks come from another ledger; `headgate check`"
        " tells more",
    ) -> None:
        super().__init__(f"readers cannot be switched to the table {table}: {cause}; {hint}")
        self.table = table


class ReadLeasesFull(LedgerError):
    """The maximum number of bulk readers hold leases."""

    retryable = True

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"{maximum} read leases are held, which is the limit; end some, or wait until"
            f" they expire"
        )
        self.maximum = maximum


class CursorMissing(LedgerError):
    """No live cursor has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no cursor {name!r}; create it with PUT /v0/cursors/{name}")
        self.name = name


class CursorsFull(LedgerError):
    """There are as many cursors as there may be."""

    def __init__(self, maximum: int) -> None:
        super().__init__(f"there are {maximum} cursors, which is the limit; delete some")
        self.maximum = maximum


class CursorMoved(LedgerError):
    """A cursor is not where a change of it expects it."""

    def __init__(self, name: str, partition: int, expected: int, position: int) -> None:
        super().__init__(
            f"cursor {name!r} is at {position} in partition {partition}, not at {expected}"
        )
        self.name = name
        self.partition = partition
        self.expected = expected
        self.position = position


class CursorOwned(LedgerError):
    """A cursor that Headgate moves itself."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(
            f"cursor {name!r} belongs to a {kind} and cannot be changed or used by a client; use a"
            f" cursor of your own"
        )
        self.name = name
        self.kind = kind


class RouterMissing(LedgerError):
    """No live router has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no router {name!r}")
        self.name = name


class RoutersFull(LedgerError):
    """There are as many routers as there may be."""

    def __init__(self, maximum: int) -> None:
        super().__init__(f"there are {maximum} routers, which is the limit; delete some")
        self.maximum = maximum


class RouterCycle(LedgerError):
    """A router that would bring records back to where they come from."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(
            f"the router would close a cycle: {' -> '.join(path)}; records would go around forever."
            f" Paused routers and dead-letter topics of subscriptions count; delete one on the path"
        )
        self.path = path


class RouterBound(LedgerError):
    """A router's source and destination never change."""

    def __init__(self, name: str, field: str, wanted: str, bound: str, exists: bool) -> None:
        if wanted != bound:
            reason = f"cannot become {wanted!r}"
        elif exists:
            reason = "was deleted, and the topic of this name is another one"
        else:
            reason = "was deleted"
        super().__init__(
            f"the {field} of router {name!r}, {bound!r}, {reason}; delete the router and create it"
            f" again"
        )
        self.name = name
        self.field = field


class RouterStartRefused(LedgerError):
    """A place to begin at that the source does not have."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"from of router {name!r} {problem}")
        self.name = name


class PartitionMissing(LedgerError):
    """The topic has fewer partitions."""

    def __init__(self, name: str, partition: int, partitions: int) -> None:
        super().__init__(
            f"partition is {partition}, but topic {name!r} has partitions 0 to {partitions - 1}"
        )
        self.name = name
        self.partition = partition


class TrimBeyondHead(LedgerError):
    """A trim past the next offset, which no record has yet."""

    def __init__(self, name: str, partition: int, before_seq: int, next_seq: int) -> None:
        super().__init__(
            f"before_seq is {before_seq}, but the next offset of partition {partition} of topic"
            f" {name!r} is {next_seq}; use {next_seq} to trim everything"
        )
        self.before_seq = before_seq
        self.next_seq = next_seq


class ColumnsRefused(LedgerError):
    """A typed column that would change its type."""

    def __init__(self, name: str, column: str, present: str, wanted: str) -> None:
        super().__init__(
            f"column {column!r} of topic {name!r} is {present} and cannot become {wanted}: its"
            f" table has rows of the old type; use another name for the new column"
        )
        self.name = name
        self.column = column


def translated(error: sqlite3.Error | MemoryError, path: Path, busy_timeout_ms: int) -> LedgerError:
    """The kind for an error of SQLite; the caller raises it from ``error``."""
    if isinstance(error, MemoryError):
        return LedgerMemory(path)
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in CORRUPT_CODES:
        return LedgerCorrupt(path, str(error))
    if code in BUSY_CODES:
        return LedgerBusy(path, busy_timeout_ms)
    if code in INTERRUPTED_CODES:
        return LedgerInterrupted(path, str(error))
    if code in UNUSABLE_CODES:
        return LedgerUnusable(path, str(error))
    return LedgerFault(path, extended, str(error))
