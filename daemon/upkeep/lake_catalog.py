"""The default Iceberg catalog after a loss: made again from what the ledger knows of tables.

The catalog is a file of the data directory, and no entry of the owner's log has it. The ledger has
each table's metadata as of its last switch, so a table that the catalog lacks is registered there
again, when a daemon starts and after a recovery. A compaction does the same for any catalog
(``compaction/tables/reconcile.py``).
"""

from __future__ import annotations

import logging

from daemon.config import Config
from daemon.config.lake_settings import default_catalog, lake_settings
from ledger.errors import LedgerError
from ledger.lake import catalog, lake_tables
from ledger.ledger import Ledger
from ledger.table_names import NAMESPACE

log = logging.getLogger("headgate.lake")


def register_tables(config: Config, ledger: Ledger) -> list[str]:
    """Registers what the default catalog lacks; returns the tables' identifiers.

    A catalog that cannot be used stops neither a start nor a recovery: a compaction names the
    reason.
    """
    settings = lake_settings(config)
    if settings.catalog_uri is not None or settings.catalog_name is not None:
        return []
    if not ledger.read(lake_tables.every, 0, 1):
        return []
    try:
        with catalog.opened(*default_catalog(config)) as tx:
            is_lost = not catalog.pointers(tx, NAMESPACE)
            made = catalog.add_missing(tx, ledger.read(lake_tables.named, is_lost))
    except LedgerError as error:
        log.warning("tables of the lake cannot be registered: %s", error)
        return []
    for name in made:
        log.warning("the table %s was not in the catalog; it is registered again", name)
    return made
