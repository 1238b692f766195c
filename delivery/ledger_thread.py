"""The ledger for an event loop: reads and writes in the one thread that uses its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ledger.ledger import Ledger
from ledger.tx import ReadTx, WriteTx

P = ParamSpec("P")
T = TypeVar("T")


class ReadableLedger(Protocol):
    """A ledger that is only read."""

    def read(
        self, question: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As Ledger.read."""
        ...


class LedgerReads:
    """The questions to a ledger, and the thread that puts them. Raises LedgerError."""

    def __init__(self, ledger: ReadableLedger, thread: Executor) -> None:
        self._asked = ledger
        self._thread = thread

    async def read(
        self, question: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``question(tx, ...)`` returns, as Ledger.read."""
        return await self.run(partial(self._asked.read, question, *args, **kwargs))

    async def run(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, which uses the ledger."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class LedgerThread(LedgerReads):
    """A ledger and its thread. Raises LedgerError."""

    def __init__(self, ledger: Ledger, thread: Executor) -> None:
        super().__init__(ledger, thread)
        self.ledger = ledger

    async def write(
        self, change: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``change(tx, ...)`` returns, as Ledger.write."""
        return await self.run(partial(self.ledger.write, change, *args, **kwargs))

    def read_now(
        self, question: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As ``read``, for another thread, which waits."""
        return self._thread.submit(self.ledger.read, question, *args, **kwargs).result()
