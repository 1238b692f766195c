"""Errors of the lake: few kinds, each with a problem in one sentence and a hint what to do.

``LakeUnusable`` for the catalog stops a run; for a table, only its topic fails while other tables
can be used. ``TableRefused`` fails one topic: nothing of it is compacted, other topics are. After
``CommitConflict`` and ``RewriteConflict`` the same files cannot be committed any more; the next run
may succeed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class LakeError(Exception):
    """A call that failed. ``problem`` is one sentence, ``hint`` says what to do."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}; {hint}")
        self.problem = problem
        self.hint = hint


class LakeUnusable(LakeError):
    """The catalog or the store of the tables is missing, unreachable, or denies access."""


class TableRefused(LakeError):
    """A topic whose table cannot be written as it is."""


class ForeignTable(TableRefused):
    """The table of this name is not Headgate's, or belongs to another lake."""


class TableChanged(TableRefused):
    """The table was changed from outside, so that it is not safe to continue."""


class TableDamaged(TableRefused):
    """A file that the table needs is gone or cannot be read."""

    def __init__(self, table: str, cause: BaseException) -> None:
        said = " ".join(str(cause).split())[:300] or type(cause).__name__
        super().__init__(
            f"the table {table} is damaged: a file of it is gone or cannot be read ({said})",
            "restore the file, or register an undamaged version of the table's metadata",
        )
        self.table = table


class FilesRefused(TableRefused):
    """Files of a run that cannot be described in a manifest."""

    def __init__(self, table: str, cause: BaseException) -> None:
        super().__init__(
            f"the files for the table {table} cannot be committed: {cause}",
            "no record is lost, diff still reads them; please report this",
        )


class SchemaConflict(TableRefused):
    """The topic's columns do not fit the table's."""


class CommitConflict(TableRefused):
    """Another compaction moved the table's watermarks after they were read."""

    def __init__(self, table: str, expected: Mapping[int, int], found: Mapping[int, int]) -> None:
        moved = sorted(p for p in {*expected, *found} if expected.get(p, 0) != found.get(p, 0))
        first = moved[0] if moved else 0
        super().__init__(
            f"another compaction has committed to the table {table}: the watermark of"
            f" partition {first} is {found.get(first, 0)}, not {expected.get(first, 0)}",
            "run it again; it leaves out what the other one committed",
        )
        self.table = table
        self.found = dict(found)


class RewriteConflict(TableRefused):
    """Files that were rewritten are no longer in the table, or rows in them were deleted."""

    def __init__(self, table: str, missing: Sequence[str], why: str) -> None:
        super().__init__(
            f"{len(missing)} files of the table {table} were rewritten, but {why}"
            f" (the first is {missing[0]})",
            "run it again; it leaves those files alone",
        )
        self.table = table
        self.missing = tuple(missing)


def busy(table: str, tries: int) -> LakeUnusable:
    """The error for a table that others keep changing."""
    return LakeUnusable(
        f"the table {table} was changed by others {tries} times in a row",
        "run it again when there are fewer changes",
    )
