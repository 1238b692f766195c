"""What an error means to a client: one mapping for answers and streams."""

from __future__ import annotations

import logging

from compaction.parquet.file_bytes import LakeFileDamaged
from daemon.intake.producer import ledger_unavailable
from daemon.schemas.errors import ApiError
from delivery.reading.followed import TooManyPinned
from delivery.streams.events import WatchError
from delivery.subscriptions.requests import OwnerRefused
from ledger.errors import LedgerError
from uploader.l0 import L0Error
from uploader.l0.records import RecordsError
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.api")


def refusal_of(error: Exception) -> ApiError:
    """The refusal that tells of an error. What is not known here is a bug, and is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OwnerRefused):
        soon = 1 if error.status in (429, 503) else None
        return ApiError(error.status, error.code, error.message, error.detail, retry_after_s=soon)
    if isinstance(error, StoreError):
        return ApiError(503, "store_unavailable", str(error), retry_after_s=1)
    if isinstance(error, LedgerError):
        return ledger_unavailable(error)
    if isinstance(error, TooManyPinned):
        return ApiError(503, "too_many_partitions", str(error), retry_after_s=60)
    if isinstance(error, L0Error | LakeFileDamaged | RecordsError):
        log.error("a stored object is damaged: %s", error)
        return ApiError(503, "object_damaged", str(error), retry_after_s=60)
    log.error("a request failed because of a bug", exc_info=error)
    return ApiError(500, "internal", "this is a bug in headgate; see its log", close=True)


def stream_error(error: Exception) -> WatchError:
    """The same for a client whose stream has begun: the event that ends it."""
    refusal = refusal_of(error)
    return WatchError(refusal.code, refusal.message, refusal.detail)
