"""What a sender tells its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import uvloop

from delivery.push.reports import Failing, SenderReports
from delivery.subscriptions.handing import PushedMessage
from delivery.subscriptions.owners import Owners
from delivery.subscriptions.requests import Acknowledge, Nack
from delivery.subscriptions.schemas import Acknowledged
from uploader.l0.records import Record


def message(seq: int) -> PushedMessage:
    return PushedMessage(partition=0, epoch=1, attempt=1, seq=seq, ts=0, record=Record("1"))


class QuickOwner:
    """An owner at the same shard, which answers without a turn of the loop. ``asked`` is what it
    took; while it takes something, it calls ``meanwhile`` soon, once."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.meanwhile: Callable[[], None] | None = None

    async def ask(self, request: Acknowledge | Nack) -> Acknowledged:
        self.asked.append(request)
        if self.meanwhile is not None:
            asyncio.get_running_loop().call_soon(self.meanwhile)
            self.meanwhile = None
        return Acknowledged(len(request.messages), 0)


def told_seqs(owner: QuickOwner) -> list[int]:
    return [each.seq for request in owner.asked for each in request.messages]


def test_what_is_delivered_in_the_moment_in_which_telling_ends_is_told() -> None:
    """A task that has ended calls back a turn later: what comes in between must begin another."""

    async def scenario() -> tuple[QuickOwner, list[Exception]]:
        owner, errors = QuickOwner(), list[Exception]()
        reports = SenderReports(cast("Owners", owner), 1, "push/0", errors.append)
        owner.meanwhile = lambda: reports.delivered([message(2)])
        reports.delivered([message(1)])
        await reports.told()
        owner.meanwhile = lambda: reports.give_back([message(4)], Failing("it failed", False))
        reports.delivered([message(3)])
        await reports.told()
        return owner, errors

    owner, errors = uvloop.run(scenario())
    assert told_seqs(owner) == [1, 2, 3, 4]
    assert not errors
