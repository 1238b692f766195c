"""Push subscriptions of a real daemon, and when their receiver gets what it can take."""

from __future__ import annotations

from typing import Any

from delivery.push.rates.pacer import BURST_S
from shards.clock import monotonic_ns
from tests.e2e.daemon import Answer, Daemon, wait_until
from tools.receiver.behavior import SERIES_MS
from tools.receiver.process import ReceiverProcess
from tools.receiver.series import FAILED_SHARE_MAX, SERVED_SHARE, STEPS_PER_S, counted, oversteps

# What takes minutes takes seconds; nothing else is different. A period has tens of attempts: one
# that fails is not too many yet.
PERIOD_S = 1.0
TIMES: dict[str, object] = {
    "push_allow": "127.0.0.1", "push_limiter_period_s": PERIOD_S,
    "push_slow_delay_s": 2 * PERIOD_S, "push_balance_interval_s": PERIOD_S,
}  # fmt: skip
# Settling needs seconds in which the machine can do what the rate asks of it.
SETTLED_HANG_S = 600.0
LOOK_S = 0.25  # a look asks the receiver for all that it has counted, which takes its time
PATIENT_MS = 60_000  # of a receiver that answers: a busy machine is not to be its failure


class Pushing:
    """A push subscription of a topic of its own, which begins at its beginning."""

    def __init__(
        self, daemon: Daemon, receiver: ReceiverProcess, name: str, *, partitions: int = 1,
        settings: dict[str, Any] | None = None, **push: Any,
    ) -> None:  # fmt: skip
        self.daemon = daemon
        self.receiver = receiver
        self.name = name
        self.path = f"/v0/topics/{name}/subscriptions/{name}"
        made = daemon.json("PUT", f"/v0/topics/{name}", {"partitions": partitions})
        assert made.status in (200, 201), made.body
        wanted = {"endpoint": receiver.url(name), **push}
        answer = self.set(start="earliest", **(settings or {}), push=wanted)
        assert answer.status in (200, 201), answer.body

    def set(self, **settings: Any) -> Answer:
        """Creates it, or changes what is given."""
        return self.daemon.json("PUT", self.path, settings)

    def fill(self, records: int, keys: int = 100) -> None:
        """Stores records in lots."""
        for first in range(0, records, 1_000):
            lot = [
                {"data": number, "key": f"key-{number % keys}"}
                for number in range(first, min(first + 1_000, records))
            ]
            answer = self.daemon.json("POST", f"/v0/topics/{self.name}", {"records": lot})
            assert answer.status == 200, answer.body

    def oversteps(self, rate: float, deaths: int = 0) -> list[tuple[int, int]]:
        """The windows in which more came to the receiver than the rate allows, the bursts that may
        be saved, and what may have been under way; also that of senders that died meanwhile."""
        push = self.state["config"]["push"]
        senders = min(push["senders"], len(self.daemon.status()["shards"]))
        under_way = (senders + deaths) * push["connections_max"]
        series = self.receiver.counts(self.name).series
        more = under_way + senders + BURST_S * rate
        return oversteps(series, rate, more, min(series), max(series))

    @property
    def state(self) -> Any:
        """The subscription, as its owner sees it."""
        answer = self.daemon.get(self.path)
        assert answer.status == 200, answer.body
        return answer.json

    def is_settled(self, capacity: float, hold_s: float) -> bool:
        """Whether the receiver was served within a tenth of its capacity for this long, and few
        POSTs failed."""
        last = monotonic_ns() // (SERIES_MS * 1_000_000)
        first = last - int(hold_s * STEPS_PER_S)
        served, failed = counted(self.receiver.counts(self.name).series, first, last)
        wanted = capacity * hold_s
        return (
            SERVED_SHARE * wanted <= served <= (2 - SERVED_SHARE) * wanted
            and failed <= FAILED_SHARE_MAX * (served + failed)
        )  # fmt: skip

    def wait_until_settled(self, capacity: float, hold_s: float = 5.0) -> None:
        """Waits until it is."""
        wait_until(
            lambda: self.is_settled(capacity, hold_s), f"{self.name} to settle at {capacity}",
            SETTLED_HANG_S, LOOK_S,
        )  # fmt: skip

    def wait_until_drained(self, hang_s: float = SETTLED_HANG_S) -> None:
        """Waits until nothing is left."""
        wait_until(lambda: self.state["lag"] == 0, f"{self.name} to be delivered", hang_s, LOOK_S)
