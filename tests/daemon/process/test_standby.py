"""The process of a standby, between its wait and the supervisor."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from daemon.access.access import Access
from daemon.config import Override, load
from daemon.process.listeners import Listeners, admin_listener, open_listeners
from daemon.process.notify import Notifier
from daemon.process.standby import wait_as_standby
from daemon.upkeep.standby import WarmLedger
from ledger.log.entry import Owner
from uploader.ownership.ownerlog import OwnerLog, SealedLog
from uploader.stores.file import FileStore

OWNER = Owner("host", 1, "boot", 1, 1, "/data")


def test_a_reload_does_not_end_a_take_over(tmp_path: Path) -> None:
    config = load(None, {}, [Override("data_dir", str(tmp_path))])
    before = signal.getsignal(signal.SIGHUP)
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGHUP, before)
        store = stack.enter_context(closing(FileStore(str(tmp_path / "store"))))
        owner_log = OwnerLog(store, OWNER, lambda _: None)
        warm = WarmLedger(tmp_path / "ledger.db", nullcontext(), owner_log)
        admin = stack.enter_context(admin_listener(str(tmp_path)))
        (listener,) = open_listeners("127.0.0.1", 0, 1)
        stack.enter_context(listener)
        listeners = Listeners([listener], [], admin)
        taken = wait_as_standby(
            config, store, owner_log, warm, listeners, None, Access(None), Notifier("")
        )
        assert taken == SealedLog(0, None), "nobody has owned the prefix"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
