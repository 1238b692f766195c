"""A cache within bounds: when it is full, it drops what was used longest ago.

The bounds are a number of values and, where their sizes differ, the sum of those. For one thread,
or under its owner's lock. Caches that are filled by awaiting are delivery/reading/single_flight.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most ``count_max`` values of ``size_max`` together. Without ``size_of`` a value has no
    size."""

    def __init__(
        self, count_max: int, size_max: int = 0, size_of: Callable[[V], int] = lambda _: 0
    ) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None if it is not here."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keeps a value; one that is larger than the bound is not kept."""
        size = self._size_of(value)
        if size > self._size_max:
            return
        self.drop(key)
        self._values[key] = value
        self.size += size
        while self.size > self._size_max or len(self._values) > self._count_max:
            _, dropped = self._values.popitem(last=False)
            self.size -= self._size_of(dropped)

    def values(self) -> Collection[V]:
        """All values, the one that was used longest ago first."""
        return self._values.values()

    def drop(self, key: K) -> None:
        """Drops a value if it is here."""
        value = self._values.pop(key, None)
        if value is not None:
            self.size -= self._size_of(value)

    def clear(self) -> None:
        """Drops all values."""
        self._values.clear()
        self.size = 0
