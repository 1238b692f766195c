"""What can go wrong with the lake: few kinds, each with a sentence and the way out.

``hint`` is the way out. The kinds by their reach: ``LakeUnusable`` of the catalog stops a run; of a
table it is one topic's failure while other tables can be used. ``TableRefused`` is one topic's,
nothing of it is compacted and the rest goes on; ``CommitConflict`` and ``RewriteConflict`` are
refused commits after which the same files cannot be committed any more, but a new look at the table
may succeed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class LakeError(Exception):
    """A call on the lake that failed. ``problem`` is one sentence, ``hint`` the way out."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}; {hint}")
        self.problem = problem
        self.hint = hint


class LakeUnusable(LakeError):
    """The catalog or the store of the tables is missing, unreachable, or forbids."""


class TableRefused(LakeError):
    """A topic whose table cannot be written as it is."""


class ForeignTable(TableRefused):
    """The table of this name was made by somebody else, or belongs to another lake."""


class TableChanged(TableRefused):
    """Somebody changed the table in a way that leaves no sure way to go on."""


class TableDamaged(TableRefused):
    """A file that the table needs is gone or cannot be read."""

    def __init__(self, table: str, cause: BaseException) -> None:
        said = " ".join(str(cause).split())[:300] or type(cause).__name__
        super().__init__(
            f"the table {table} is damaged: a file of it is gone or cannot be read ({said})",
            "restore the file, or register metadata of the table that is whole",
        )
        self.table = table


class FilesRefused(TableRefused):
    """Files of a run that no manifest can describe."""

    def __init__(self, table: str, cause: BaseException) -> None:
        super().__init__(
            f"what was written for the table {table} cannot be committed: {cause}",
            "nothing of it is lost; read it with diff, and report this",
        )


class SchemaConflict(TableRefused):
    """The topic's columns do not fit the table's."""


class CommitConflict(TableRefused):
    """Somebody else's compaction moved the table's watermarks since they were read."""

    def __init__(self, table: str, expected: Mapping[int, int], found: Mapping[int, int]) -> None:
        moved = sorted(p for p in {*expected, *found} if expected.get(p, 0) != found.get(p, 0))
        first = moved[0] if moved else 0
        super().__init__(
            f"another compaction committed to the table {table} meanwhile: the watermark of"
            f" partition {first} is {found.get(first, 0)}, not {expected.get(first, 0)}",
            "run it again; what that one committed is left out then",
        )
        self.table = table
        self.found = dict(found)


class RewriteConflict(TableRefused):
    """Files that were rewritten are not the table's any more, or have rows deleted in them."""

    def __init__(self, table: str, missing: Sequence[str], why: str) -> None:
        super().__init__(
            f"{len(missing)} files of the table {table} were rewritten, but {why}"
            f" (the first is {missing[0]})",
            "run it again; those files are left alone then",
        )
        self.table = table
        self.missing = tuple(missing)


def busy(table: str, tries: int) -> LakeUnusable:
    """The error for a table that never rests."""
    return LakeUnusable(
        f"the table {table} was changed by others {tries} times in a row",
        "run it again when they are quieter",
    )
