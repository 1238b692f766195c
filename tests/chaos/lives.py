"""Which life of each name is the present one: what is deleted and created again has several.

The judge knows each life of a subscription by a name of its own: ``s``, ``s#2``, ``s#3``. A
consumer connects within ``present``, and nothing is deleted while it does, so it knows which life
answered. Its streams, acknowledgments and refusals meet deletions at any time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.history import Spot


class Lives:
    """The lives of all names. ``ends``: names may be deleted in this run. ``pardoned``: messages,
    by subscription, that an operator sends again; consumers that refused them take them then."""

    def __init__(self, *, ends: bool = False) -> None:
        self.ends = ends
        self.pardoned: set[tuple[str, Spot]] = set()
        self._changed = threading.Condition()
        self._numbers: Counter[str] = Counter()
        self._inside: Counter[str] = Counter()
        self._ending: set[str] = set()

    def number(self, name: str) -> int:
        """How often a name was created."""
        return 1 + self._numbers[name]

    def judged(self, name: str) -> str:
        """What the judge calls its present life."""
        number = self.number(name)
        return name if number == 1 else f"{name}#{number}"

    def following(self, name: str) -> str:
        """What the judge calls its next life."""
        return f"{name}#{self.number(name) + 1}"

    @contextmanager
    def present(self, name: str) -> Iterator[str]:
        """No life of this name begins or ends within; gives what the judge calls it."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._ending)
            self._inside[name] += 1
        try:
            yield self.judged(name)
        finally:
            with self._changed:
                self._inside[name] -= 1
                self._changed.notify_all()

    @contextmanager
    def renewed(self, name: str) -> Iterator[str]:
        """The present life ends within, and another one begins; gives what the judge calls the
        present one."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._ending)
            self._ending.add(name)
            self._changed.wait_for(lambda: not self._inside[name])
        yield self.judged(name)
        with self._changed:
            self._numbers[name] += 1
            self._ending.discard(name)
            self._changed.notify_all()
