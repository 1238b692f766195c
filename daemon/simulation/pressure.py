"""The governor and the PUT budget of a simulated daemon: the shipped ones, over what the model has.

Of the sensors, the rings, the lease slots and the ledger are modeled. The others read 0: nobody
reads, there is no CPU, no memory and no disk, and the store is as fast as its distribution says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from daemon.config.sensors import SENSORS, Reading
from daemon.governor import board
from daemon.governor.costs.put_budget import PutBudget
from daemon.governor.governor import Governed, Governor
from shards import layout as at

SAMPLE_NS = 100_000_000


class VirtualGovernor:
    """Samples the model and stores what follows in the words that the pullers read."""

    def __init__(
        self,
        words: memoryview,
        measured: Mapping[str, Callable[[], float]],
        window_min_ms: float,
        window_max_ms: float,
        budget: PutBudget | None,
        weights: Mapping[str, float],
        *,
        reacts: bool,
    ) -> None:
        self._words = words
        self._sensors = [measured.get(sensor.name, lambda: 0.0) for sensor in SENSORS]
        self._window_min_ms = window_min_ms
        self._window_max_ms = window_max_ms
        self._budget = budget
        self._governor = Governor(weights, reacts=reacts)

    @property
    def budget_holds(self) -> bool | None:
        """Whether a lever is left to keep to the budget; None: there is none."""
        return None if self._budget is None else self._budget.decision().holds

    def sample(self, puts: int, bytes_usd: float, now_ns: int) -> Governed:
        """One sample; ``puts`` were begun since the last, and their bytes cost ``bytes_usd``."""
        readings = [Reading(measure()) for measure in self._sensors]
        governed = self._governor.sample(readings, self._window_min_ms, self._window_max_ms, now_ns)
        window_ms = governed.window_ms
        if self._budget is not None:
            decision = self._budget.step(puts, bytes_usd, now_ns)
            self._words[at.G_TARGET_BYTES] = decision.target_bytes
            window_ms = max(window_ms, decision.window_ms)
        board.store(self._words, governed, window_ms)
        return governed
