"""The buddy tree of upload groups, as rows of text. Pure.

Groups are aligned powers of two of shards. If the number of shards is not a power of two, the tree
is that of the next power of two without the missing shards; a half without shards is not drawn. A
status taken while groups change may miss one: its place is drawn as ``changing``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class TreeMember(Protocol):
    """A group, as far as a tree needs it."""

    @property
    def group(self) -> int: ...
    @property
    def shards(self) -> list[int]: ...


GroupLike = TypeVar("GroupLike", bound=TreeMember)


def tree_rows(
    groups: Sequence[GroupLike],
    shard_count: int,
    describe: Callable[[GroupLike], str],
    summarize: Callable[[list[GroupLike]], str] = lambda below: "split",
    levels_max: int = 64,
) -> Iterator[tuple[str, str]]:
    """(node, description) of each node down to ``levels_max`` levels below the root. A node that is
    split is described by ``summarize``, which gets all groups under it."""
    size = 1
    while size < shard_count:
        size *= 2
    if not shard_count:
        return
    tree = _Tree({group.group: group for group in groups}, shard_count, describe, summarize)
    yield from tree.rows(0, size, levels_max, "", "")


class _Tree(Generic[GroupLike]):
    def __init__(
        self,
        groups: dict[int, GroupLike],
        shard_count: int,
        describe: Callable[[GroupLike], str],
        summarize: Callable[[list[GroupLike]], str],
    ) -> None:
        self._groups = groups
        self._starts = sorted(groups)
        self._shard_count = shard_count
        self._describe = describe
        self._summarize = summarize

    def rows(
        self, low: int, size: int, levels: int, branch: str, below: str
    ) -> Iterator[tuple[str, str]]:
        """(node, description) of the run [low, low + size) and what is under it."""
        members = list(range(low, min(low + size, self._shard_count)))
        while size > 1 and low + size // 2 >= self._shard_count:
            size //= 2  # the upper half has no shards: the lower half is the same run
        name = f"shard {low}" if len(members) == 1 else f"shards {low}-{members[-1]}"
        group = self._groups.get(low)
        if group is not None and group.shards == members:
            yield branch + name, self._describe(group)
            return
        first, last = (bisect_left(self._starts, at) for at in (low, low + size))
        under = [self._groups[start] for start in self._starts[first:last]]
        if not under:
            yield branch + name, "changing"
            return
        yield branch + name, self._summarize(under)
        if levels > 0:
            half = size // 2
            yield from self.rows(low, half, levels - 1, below + "├─ ", below + "│  ")
            yield from self.rows(low + half, half, levels - 1, below + "└─ ", below + "   ")
