"""Several stop signals, as systemd, a terminal and a script may send them together."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.daemon import running, wait_until


@pytest.mark.slow
def test_signals_that_go_on_until_the_end_change_nothing(data: Path) -> None:
    with running(data, shards=2) as daemon:
        daemon.produce("kept", 1)

        def told_again() -> bool:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                daemon.process.send_signal(number)  # does nothing once the process has ended
            return daemon.process.poll() is not None

        wait_until(told_again, "the daemon to end")
        assert daemon.stop() == 0, daemon.text
        assert "Exception" not in daemon.text
