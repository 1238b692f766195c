"""Places for POSTs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.push.places import Places

TOTAL = 4
MOST = {"a": 1, "b": 3, "c": 9}


class PlacesMachine(RuleBasedStateMachine):
    """Callers that take, give up and give back, in any order; a slow model counts."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.places = Places(TOTAL)
        self.waiting: list[tuple[str, asyncio.Task[None]]] = []
        self.held: list[str] = []

    def _settle(self) -> None:
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))
        for each in list(self.waiting):
            endpoint, task = each
            if task.done():
                self.waiting.remove(each)
                if not task.cancelled():
                    task.result()
                    self.held.append(endpoint)

    @rule(endpoint=st.sampled_from(sorted(MOST)))
    def take(self, endpoint: str) -> None:
        taken: Coroutine[Any, Any, None] = self.places.take(endpoint, MOST[endpoint])
        self.waiting.append((endpoint, self.loop.create_task(taken)))
        self._settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        endpoint = data.draw(st.sampled_from(self.held))
        self.held.remove(endpoint)
        self.places.give(endpoint)
        self._settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.waiting))[1].cancel()
        self._settle()

    @precondition(lambda self: self.waiting and self.held)
    @rule(data=st.data())
    def give_up_while_the_place_comes(self, data: st.DataObject) -> None:
        endpoint = data.draw(st.sampled_from(self.held))
        self.held.remove(endpoint)
        self.places.give(endpoint)
        data.draw(st.sampled_from(self.waiting))[1].cancel()
        self._settle()

    @invariant()
    def counts_agree_and_nobody_waits_for_a_free_place(self) -> None:
        self.places.check_invariants()
        assert self.places.taken == len(self.held)
        for endpoint, most in MOST.items():
            assert self.held.count(endpoint) <= most
        # An endpoint without a place does not wait.
        assert {endpoint for endpoint, _ in self.waiting} <= set(self.held)

    def teardown(self) -> None:
        for _, task in self.waiting:
            task.cancel()
        self._settle()
        while self.held:
            self.places.give(self.held.pop())
            self._settle()
        assert self.places.taken == 0
        self.loop.close()


TestPlaces = PlacesMachine.TestCase
TestPlaces.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_places_of_an_endpoint_come_in_the_order_of_arrival() -> None:
    async def scenario() -> list[int]:
        places, served = Places(9), list[int]()

        async def caller(number: int) -> None:
            await places.take("a", 1)
            served.append(number)
            await asyncio.sleep(0)
            places.give("a")

        await asyncio.gather(*(caller(number) for number in range(5)))
        return served

    assert asyncio.run(scenario()) == [0, 1, 2, 3, 4]


def test_an_endpoint_that_hangs_cannot_keep_others_from_being_called() -> None:
    async def scenario() -> int:
        places = Places(2)
        for _ in range(2):
            await places.take("hangs", 100)
        waits = asyncio.ensure_future(places.take("hangs", 100))
        for number in range(10):
            await places.take(f"other {number}", 100)
        waits.cancel()
        return places.taken

    assert asyncio.run(scenario()) == 12
