"""Sends the steps of one chain over a connection of its own, and tells the chain of the answers.

A lost connection is opened again when there is something to send; how long that may fail is the
import's patience. Answers are taken in by ``advance``, never within a callback of the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from commands.client.http import (
    NOTICE_MS,
    RECONNECT_WAIT_MAX_MS,
    RECONNECT_WAIT_MS,
    Unreachable,
    refusal,
    wait_ms_of,
)
from commands.importing.budget_leases import InFlightBudget
from commands.importing.chain import Chain, ImportStep
from commands.importing.wire import Wire, WireAnswer
from commands.output import duration_text
from compaction.access.connection import DaemonAddress

# Longer than any acknowledgment takes: the daemon answers or hangs up after `ack_timeout_ms`.
SILENT_S = 60.0


class ImportDaemon(NamedTuple):
    """What all senders of an import share. ``wait_s``: how long the daemon may fail; ``say`` is
    told what is waited for."""

    url: str
    address: DaemonAddress
    budget: InFlightBudget
    wait_s: float
    now: Callable[[], float]
    say: Callable[[str], None]


class _NotOpened(NamedTuple):
    reason: str


class _Lost(NamedTuple):
    reason: str


def advancing(cursor: str, partition: int | None = None) -> Callable[[ImportStep], bytes]:
    """What begins the requests of an import, each of which moves the cursor."""
    chosen = b"" if partition is None else b'"partition":%d,' % partition
    # A repeat is told by the cursor. A key of the body would take an import after `--restart`
    # for a repeat of the one before.
    begin = b'{"dedupe":"none",%b"advance":{"cursor":"%b",' % (chosen, cursor.encode())

    def head(step: ImportStep) -> bytes:
        return begin + b'"expected":%d,"next":%d},"records":[' % (step.expected, step.next)

    return head


class ChainSender:
    """The requests of a chain to a topic. ``wake`` is called when ``advance`` has something to do.
    ``head`` begins the body of a request, up to its records; ``stored`` gets the answer.

    Raises Refused, Unreachable, UnknownAnswer and CursorSetBack: then nothing more is sent."""

    def __init__(
        self,
        daemon: ImportDaemon,
        path: str,
        chain: Chain,
        wake: Callable[[], None],
        head: Callable[[ImportStep], bytes],
        stored: Callable[[ImportStep, bytes], None] = lambda step, body: None,
        silent_s: float = SILENT_S,
    ) -> None:
        self.chain = chain
        self.requests = 0
        self.retries = 0
        self._daemon = daemon
        self._path = path
        self._head = head
        self._stored = stored
        self._silent_s = silent_s
        self._wake = wake
        self._wire: Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._arrived: deque[WireAnswer | _Lost | _NotOpened] = deque()
        self._reconnect_ms = RECONNECT_WAIT_MS
        self._failing_since: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a step can be sent now; otherwise a connection is opened."""
        if self._wire is not None:
            return self._wire.is_writable
        if self._opening is None and self._daemon.now() >= self.chain.not_before:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return False

    def send(self, step: ImportStep) -> None:
        """Sends a step that the chain gave out."""
        assert self._wire is not None
        rows = b",".join(step.load.rows)
        self.requests += 1
        self._wire.post(self._path, [self._head(step), rows, b"]}"])

    def advance(self) -> None:
        """Takes in what has arrived. Raises as the class says."""
        if self._wire is not None and self._wire.silent_s() > self._silent_s:
            self._wire.close(f"timed out after {duration_text(self._silent_s * 1000)}")
        while self._arrived:
            match self._arrived.popleft():
                case WireAnswer() as answer:
                    self._on_answer(answer)
                case _Lost(reason):
                    self._wire = None
                    # Otherwise it was closed because nothing was sent for long.
                    if self.chain.in_flight:
                        self._on_lost(reason)
                case _NotOpened(reason):
                    self._on_lost(reason)

    def close(self) -> None:
        """Ends the connection."""
        if self._opening is not None:
            self._opening.cancel()
        if self._wire is not None:
            self._wire.close()

    async def _open(self) -> None:
        daemon = self._daemon
        try:
            self._wire = await Wire.open(daemon.address, daemon.now, self._on_event, self._on_end)
        except (OSError, TimeoutError) as error:
            text = "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
            self._arrived.append(_NotOpened(text))
        self._opening = None
        self._wake()

    def _on_event(self, answer: WireAnswer) -> None:
        self._arrived.append(answer)
        self._wake()

    def _on_end(self, reason: str) -> None:
        self._arrived.append(_Lost(reason))
        self._wake()

    def _on_lost(self, reason: str) -> None:
        self.chain.lost(self._daemon.now() + self._reconnect_ms / 1000)
        self._reconnect_ms = min(2 * self._reconnect_ms, RECONNECT_WAIT_MAX_MS)
        self._failed(Unreachable(self._daemon.url, reason), reason)

    def _on_answer(self, answer: WireAnswer) -> None:
        now = self._daemon.now()
        self._reconnect_ms = RECONNECT_WAIT_MS
        if answer.status < 400:
            step = self.chain.stored()
            self._daemon.budget.acked(step.load.leased, answer.latency_s, now)
            self._failing_since = None
            self._stored(step, answer.body)
            return
        refused = refusal(f"a request to {self._daemon.url}", answer.status, answer.body)
        if refused.code == "cursor_moved":
            self.chain.moved(int(refused.detail["position"]))
        elif answer.status == 504:
            # Those after it are judged by the cursor that it may have moved: they are sent again.
            assert self._wire is not None
            self._arrived.clear()
            self._wire.close(refused.message)
        elif answer.status in (429, 503):
            wait_s = wait_ms_of(refused, answer.retry_after) / 1000
            self.chain.busy(now + wait_s)
            self._daemon.budget.refused(wait_s, now)
            self._failed(refused, f"{refused.message} ({refused.code})")
        else:
            raise refused

    def _failed(self, error: Exception, reason: str) -> None:
        """Raises the error when patience is over."""
        now = self._daemon.now()
        self.retries += 1
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= NOTICE_MS / 1000:
            self._daemon.say(reason)
        if self.chain.not_before - self._failing_since > self._daemon.wait_s:
            raise error
