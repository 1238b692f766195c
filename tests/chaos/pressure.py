"""What makes a chaos run one under pressure, and what the daemon does about it.

Rings are small, bodies padded, the store slow and busy every few seconds, and each shard has one
upload at a time. So rings fill again and again, the ladder goes up to its last rung and down, and
the commit window moves between its ends, which reloads of the configuration move too. Two
producers of three take no refusal for want of space: they wait (``disable_backpressure``). With an
odd seed there is a PUT budget too, which makes windows long and then objects large.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.chaos.clients import Client, Port, ask
from tests.e2e.daemon import UNANSWERED

SETTINGS: dict[str, object] = {
    "ring_bytes": "256KiB", "object_bytes_target": "32KiB", "body_bytes_max": "64KiB",
    "record_bytes_max": "64KiB", "uploads_in_flight_max": 1, "ack_timeout_ms": 20_000,
}  # fmt: skip
# Eight PUTs a second, where there would be dozens: windows of up to a quarter of the ack timeout.
BUDGET: dict[str, object] = {
    "store_class": "scaled", "put_budget_usd_per_month": 8 * 30 * 86_400 / 1_000,
    "prices": '{"scaled":{"put_usd_per_1000":1,"get_usd_per_1000":0,"list_usd_per_1000":0}}',
}  # fmt: skip
WAITS = ("", "query", "body")  # by the producer's number
SPEC = "latency=20ms..1500ms@0.5,busy=2s/9s,reset_before=0.02,reset_after=0.02"
PRODUCERS = 16
PAUSE_S = 0.0
PAD_BYTES = 3_000
RUNGS = ("coalesce", "widen", "refuse")  # that a run climbs
LOOK_S = 0.1


def configure(path: Path, chance: int) -> None:
    """Writes a configuration file whose commit windows follow from ``chance``."""
    min_ms = 0.5 + chance % 23
    max_ms = min_ms + chance % 331
    path.write_text(f"commit_window_min_ms = {min_ms}\ncommit_window_max_ms = {max_ms}\n")


class GovernorWatch(Client):
    """Asks what the governor does, again and again."""

    def __init__(self, port: Port) -> None:
        super().__init__("watch of the governor")
        self.rungs: Counter[str] = Counter()  # answers with that rung in force
        self.windows_ms: set[float] = set()
        self._port = port

    def work(self) -> None:
        """Until it is told to stop."""
        while not self.stopping.wait(LOOK_S):
            try:
                status = ask(self._port(), "GET", "/v0/status")
            except UNANSWERED:
                continue
            # Of a standby, which was the owner, there is no pressure.
            if status is not None and "pressure" in status:
                self.rungs.update(status["pressure"]["rungs"])
                self.windows_ms.add(status["window_ms"])
