"""Any history of several processes on one embedded store agrees with a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from crc32c import crc32c
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tests.long import examples
from uploader.stores.base import ObjectMissing
from uploader.stores.file import FileStore

_which = st.integers(0, 1)
_keys = st.sampled_from(["l0/1", "l0/2", "ledger/1", "other"])
_bodies = st.integers(0, 400).map(lambda size: bytes(n % 251 for n in range(size)))


class TwoProcesses(RuleBasedStateMachine):
    """Two stores on one folder, small segments; ``live`` is what must be there.

    In /dev/shm: a file system like others, where thousands of fsyncs take no time.
    """

    locators = Bundle("locators")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-store-", dir="/dev/shm"))
        self.stores = [self._opened(), self._opened()]
        self.live: dict[str, tuple[str, bytes]] = {}

    def _opened(self) -> FileStore:
        return FileStore(self.folder, segment_bytes=600)

    @rule(target=locators, which=_which, key=_keys, body=_bodies)
    def put(self, which: int, key: str, body: bytes) -> str:
        locator = self.stores[which].put(key, body, crc32c(body))
        assert locator not in self.live
        self.live[locator] = (key, body)
        return locator

    @rule(target=locators, which=_which, key=_keys, body=_bodies)
    def put_if_absent(self, which: int, key: str, body: bytes) -> str:
        locator = key
        assert self.stores[which].put_if_absent(key, body) == (locator not in self.live)
        self.live.setdefault(locator, (key, body))
        return locator

    @rule(which=_which, gone=st.lists(locators, min_size=1, max_size=6))
    def delete(self, which: int, gone: list[str]) -> None:
        self.stores[which].delete(gone)
        for locator in gone:
            self.live.pop(locator, None)

    @rule(which=_which, locator=locators)
    def get(self, which: int, locator: str) -> None:
        try:
            body = self.stores[which].get(locator)
        except ObjectMissing:
            assert locator not in self.live
        else:
            assert body == self.live[locator][1]

    @rule(which=_which)
    def restart(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = self._opened()

    @rule(which=_which)
    def check(self, which: int) -> None:
        self.stores[which].check()

    @invariant()
    def both_list_what_lives(self) -> None:
        expected = sorted((key, locator, len(body)) for locator, (key, body) in self.live.items())
        for store in self.stores:
            heads = [(head.key, head.locator, head.size_bytes) for head in store.list("")]
            assert heads == expected
            assert store.damage() == ()

    def teardown(self) -> None:
        """Once all is deleted and all writers have ended, not a byte is left."""
        try:
            self.stores[0].close()
            self.stores[0] = self._opened()
            self.stores[0].delete(list(self.live))
            self.stores[1].close()
            self.stores[0].delete([])
            self.stores[0].close()
            assert [path for path in self.folder.rglob("*") if path.is_file()] == []
        finally:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TwoProcesses.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyHistoryOfTwoProcesses = TwoProcesses.TestCase
