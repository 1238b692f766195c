"""Tells this shard's streams and routers what happened to their topics.

A change of topics changes a shared word. A shard that finds it changed asks the ledger, in its
thread, for the topics that changed since it last asked, so the cost is that of the changes and not
of the topics. The word may be late, never early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from delivery.ledger_thread import LedgerThread
from ledger import topics
from ledger.errors import LedgerError
from ledger.types import Topic

log = logging.getLogger("headgate.topics")


class TopicChanges:
    """All changes of topics since it was made, in order. ``word`` changes with them; ``changed``
    gets each, ``heard`` is up to which version. To be made before the shard serves, since it waits
    for the ledger."""

    def __init__(
        self, ledger: LedgerThread, word: Callable[[], int], changed: Callable[[Topic], None]
    ) -> None:
        self._ledger = ledger
        self._word = word
        self._changed = changed
        self._seen_word = -1
        # A topic that is looked up later is as it was then or newer, so no change is missed.
        self.heard = ledger.read_now(topics.catalog_version)
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def look(self) -> None:
        """To be called regularly. Cheap while nothing changes."""
        if self._asking is None and self._word() != self._seen_word and not self._closed:
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def close(self) -> None:
        """Asks nothing more: the process ends, and so does the ledger's thread."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask(self) -> None:
        word = self._word()
        try:
            while True:
                version, changed = await self._ledger.read(topics.changed_since, self.heard)
                for topic in changed:
                    self._changed(topic)
                is_all = version == self.heard or not changed
                self.heard = version
                if is_all:
                    break
            self._seen_word = word
        except LedgerError as error:
            log.warning("changes of topics cannot be read, and are looked for again: %s", error)
        finally:
            self._asking = None
