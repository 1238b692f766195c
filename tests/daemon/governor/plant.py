"""What a budget steers, simulated: groups that upload by the rule of ``upload_turn.due_ns``."""

from __future__ import annotations

import random
from collections.abc import Callable

from uploader.groups.upload_turn import NEVER, GroupView, Policy, due_ns

S = 1_000_000_000


class _Group:
    def __init__(self, first_ns: int) -> None:
        self.next_ns = first_ns
        self.backlog_bytes = 0
        self.oldest_ns = NEVER
        self.last_pull_ns = -NEVER


class Plant:
    """Groups of one shard each that get requests; ``gap_ns`` says when the next one comes.

    ``window_ms`` and ``target_bytes`` may be changed at any time.
    """

    def __init__(self, groups: int, request_bytes: int, gap_ns: Callable[[], int]) -> None:
        self.window_ms = 1.0
        self.target_bytes = 4 << 20
        self.puts = 0
        self.bytes = 0
        self._request_bytes = request_bytes
        self._gap_ns = gap_ns
        self._groups = [_Group(gap_ns()) for _ in range(groups)]

    def run_until(self, end_ns: int) -> None:
        """Lets requests arrive and uploads happen."""
        policy = Policy(object_bytes_target=self.target_bytes)
        for group in self._groups:
            while True:
                due = self._due(group, policy)
                at_ns = min(due, group.next_ns)
                if at_ns >= end_ns:
                    break
                if due <= group.next_ns:
                    # A window that has just shrunk makes them due in the past: they go now.
                    self.puts += 1
                    self.bytes += group.backlog_bytes
                    group.backlog_bytes, group.oldest_ns = 0, NEVER
                    group.last_pull_ns = at_ns
                else:
                    group.oldest_ns = min(group.oldest_ns, at_ns)
                    group.backlog_bytes += self._request_bytes
                    group.next_ns = at_ns + self._gap_ns()

    def silence_until(self, now_ns: int) -> None:
        """Nothing arrives before."""
        for group in self._groups:
            group.next_ns = max(group.next_ns, now_ns + self._gap_ns())

    def change(self, gap_ns: Callable[[], int], now_ns: int) -> None:
        """Another load from now on."""
        self._gap_ns = gap_ns
        for group in self._groups:
            group.next_ns = now_ns + gap_ns()

    def _due(self, group: _Group, policy: Policy) -> int:
        if not group.backlog_bytes:
            return NEVER
        return due_ns(
            GroupView(
                me=0, leader=0, members=1, upload_turn=0, backlog_bytes=group.backlog_bytes,
                oldest_arrival_ns=group.oldest_ns, last_pull_ns=group.last_pull_ns,
                last_change_ns=0, window_ns=int(self.window_ms * 1e6), free_slots=1,
                can_split=False,
            ),
            policy,
        )  # fmt: skip


def evenly(per_s: float) -> Callable[[], int]:
    """Requests at equal distances, so that all groups upload at the same moments."""
    gap_ns = int(S / per_s)
    return lambda: gap_ns


def at_random(per_s: float, rng: random.Random) -> Callable[[], int]:
    """Requests of many independent clients."""
    return lambda: max(1, int(rng.expovariate(per_s) * S))
