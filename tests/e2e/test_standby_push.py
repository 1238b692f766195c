"""Push from a pair, with a backlog that lasts: two owners together keep to one rate."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.proxy import Fault, StoreProxy, no_fault, store_proxy
from tests.e2e.pushing import PATIENT_MS, TIMES, Pushing
from tests.e2e.standbys import Standby, started
from tests.minio import Bucket
from tools.receiver.process import ReceiverProcess

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(900)]

RATE = 20.0
TAKE_OVER_S = 180.0


def cut(_: Standby, link: StoreProxy) -> Callable[[], None]:
    """Cuts it off from the store; it still reaches the receiver."""
    link.decide = lambda _: Fault.RESET

    def mend() -> None:
        link.decide = no_fault

    return mend


def stop(owner: Standby, _: StoreProxy) -> Callable[[], None]:
    """Stops all its processes, with POSTs under way."""
    group = owner.process.pid
    os.killpg(group, signal.SIGSTOP)
    return lambda: os.killpg(group, signal.SIGCONT)


def pushed_on(receiver: ReceiverProcess) -> None:
    """Waits for 15 seconds' worth of POSTs: a window of ten, and a sender's way up to its rate."""
    most = receiver.counts("t").posts + 15 * RATE
    wait_until(lambda: receiver.counts("t").posts > most, "POSTs at the rate", 90)


def test_a_backlog_is_pushed_at_its_rate_across_take_overs(tmp_path: Path, bucket: Bucket) -> None:
    """An owner that is cut off or stopped, and its successor, never have a rate each."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(ReceiverProcess())
        links = [stack.enter_context(store_proxy(bucket.endpoint_url)) for _ in range(2)]
        pair = [
            Standby(tmp_path / str(number), bucket, link.endpoint_url, shards=2, **TIMES)
            for number, link in enumerate(links)
        ]
        stack.enter_context(started(*pair))
        wait_until(lambda: 200 in [each.readiness() for each in pair], "one to own the prefix")
        owner = [each.readiness() for each in pair].index(200)
        pushing = Pushing(
            pair[owner], receiver, "t", partitions=2, settings={"mode": "shared"},
            rate_max=RATE, senders=2, connections_max=4, timeout_ms=PATIENT_MS,
        )  # fmt: skip
        pushing.fill(20_000)
        faults = [cut, stop]
        for fault in faults:
            pushing.wait_until_settled(RATE)
            pair[1 - owner].wait_standby()
            mend = fault(pair[owner], links[owner])
            pair[1 - owner].wait_owner(TAKE_OVER_S)
            pushing.daemon = pair[1 - owner]
            pushed_on(receiver)  # long enough for the old owner to show itself
            mend()
            pair[owner].wait_standby()
            pushed_on(receiver)
            owner = 1 - owner
        assert pushing.state["lag"] > 10 * RATE, "the backlog has to last"
        assert pushing.oversteps(RATE, deaths=2 * len(faults)) == []
