"""The data directory as one process takes it, and the store that its configuration names.

Lock the directory -> wait for the shards of a killed run -> close to other users what former
versions left open.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from daemon.config import Config
from daemon.upkeep.owner import LOCK_NAME
from daemon.upkeep.recover import sleep_s
from ledger.private_files import close_to_others
from shards import locks
from shards.locks import LockFile
from uploader.stores import open_store
from uploader.stores.base import PartedStore
from uploader.stores.disk import settle_directory

if TYPE_CHECKING:
    from compaction.inputs.place import Place

log = logging.getLogger("headgate.serve")

# How the names begin that a data directory and an embedded store have.
_DATA_NAMES = (
    "lock",
    "ledger",
    "store",
    "catalog.db",
    "admin.sock",
    "push-secrets",
    "tokens-read",
    "lost+found",
)
_STORE_NAMES = ("segments", "entries", "lake")

ORPHAN_LOOK_S = 0.1
ORPHAN_LOOKS = 150  # shards of a killed supervisor see its pipe close, and end immediately


class StartError(RuntimeError):
    """The daemon cannot start, for the reason in the message."""


def take_directory(config: Config) -> LockFile:
    """The lock file of the data directory, its lock held. Raises StartError."""
    try:
        data_dir = Path(config.data_dir)
        settle_directory(Path(config.ledger_path).parent)
        lock_file = LockFile(data_dir / LOCK_NAME)
    except OSError as error:
        raise StartError(f"data_dir {config.data_dir} cannot be used: {error.strerror}") from error
    try:
        if not lock_file.try_lock(locks.DIRECTORY):
            pid = lock_file.holder(locks.DIRECTORY)
            raise StartError(f"data_dir {config.data_dir} is in use by the headgate with pid {pid}")
        _wait_for_orphaned_shards(lock_file)
        _close_to_others(config)
    except BaseException:
        lock_file.close()
        raise
    return lock_file


def _close_to_others(config: Config) -> None:
    """Makes private what former versions left open to other users."""
    folders: list[tuple[Path, tuple[str, ...]]] = [(Path(config.data_dir), _DATA_NAMES)]
    for url, ours in ((config.store_url, _STORE_NAMES), (config.lake_url, ("",))):
        if url.startswith("file://"):
            folders.append((Path(unquote(urlsplit(url).path)), ours))
    for folder, names in folders:
        try:
            closed = close_to_others(folder, names)
        except OSError as error:
            log.warning("other users may be able to read what is in %s: %s", folder, error)
            continue
        if closed:
            log.warning(
                "other users could read %d files and folders of %s; now only this one can",
                closed, folder,
            )  # fmt: skip


def _wait_for_orphaned_shards(lock_file: LockFile) -> None:
    """Shards whose supervisor was killed end by themselves; nothing is started before."""
    tries = 0
    while not lock_file.try_lock(locks.SHARDS):
        pid = lock_file.holder(locks.SHARDS)
        if tries == ORPHAN_LOOKS:
            raise StartError(f"process {pid} of an earlier run still uses the data directory")
        if tries % 10 == 0:
            log.warning("waiting for process %s of an earlier run to end", pid)
        tries += 1
        sleep_s(ORPHAN_LOOK_S)
    lock_file.unlock(locks.SHARDS)


def open_config_store(config: Config, threads: int = 4) -> PartedStore:
    """The store that a configuration names, for calls from up to ``threads`` threads."""
    return open_store(
        config.store_url,
        endpoint_url=config.s3_endpoint_url,
        region=config.s3_region,
        encryption=config.s3_encryption,
        threads=threads,
    )


def place_of(config: Config) -> Place:
    """Where the lake is. Called at the first read of L1, since it loads pyarrow."""
    from compaction.inputs.place import Place

    return Place(config.store_url, config.s3_endpoint_url, config.s3_region, config.lake_url)
