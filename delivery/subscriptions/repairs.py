"""What operators do about blocked messages: one by one, or all that match a condition; and about a
finished one, which is delivered once more (``resent.py``).

A repair of many goes through those that are blocked when it begins, a lot at a time, so the owner
serves others in between. What is blocked again meanwhile is not touched a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from compaction.parquet.file_bytes import LakeFileDamaged
from delivery.filters import compiled
from delivery.reading.blocks import MISSING, NEAR_RECORDS, Blocks
from delivery.reading.partition import QUARANTINED, PartitionReader
from delivery.subscriptions.budget import LOOK_AHEAD_BYTES_MAX
from delivery.subscriptions.requests import (
    BlockedWhere,
    OwnerRefused,
    RepairBlocked,
    Resend,
    RetryKey,
    SkipKey,
)
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.schemas import BlockedKey, RepairedMessages, ResentMessage
from delivery.subscriptions.shown.inspection import WallMs, shown_blocked
from delivery.subscriptions.window.failures import Blocked
from delivery.subscriptions.window.messages import Place
from delivery.subscriptions.window.resent import RESENT_MAX
from uploader.l0 import L0Error
from uploader.l0.records import RecordsError
from uploader.stores.base import StoreError

LOT = 500  # about 2 ms with three patterns


def unblock(
    running: RunningSubscription, request: RetryKey | SkipKey, wall_ms: WallMs
) -> BlockedKey:
    """Sends a blocked message again, or gives it up. Raises OwnerRefused."""
    window, place = running.window, request.place
    if request.key is not None:
        queue = window.queue_of(request.key)
        place = None if queue is None else (queue.look_ahead.partition, queue.head)
    found = None if place is None else window.blocked.get(place)
    if place is None or found is None:
        key = None if request.key is None else request.key[:60]
        what = (
            f"key {key!r}"
            if request.place is None
            else f"message {request.place[1]} of partition {request.place[0]}"
        )
        raise OwnerRefused(
            404, "not_blocked", f"{what} is not blocked; GET .../keys lists those that are",
            {"key": key},
        )  # fmt: skip
    shown = shown_blocked(found, wall_ms)
    if not _settle(running, place, is_retry=isinstance(request, RetryKey)):
        partition, seq = place
        dest = running.view.subscription.config.dead_letter_topic
        raise OwnerRefused(
            409, "moving", f"the copy of message {seq} of partition {partition} is on its way to"
            f" {dest}; ask again when it is stored or has failed",
            {"partition": partition, "seq": seq},
        )  # fmt: skip
    return shown


def _settle(running: RunningSubscription, place: Place, *, is_retry: bool) -> bool:
    """Whether it could be done: not while the copy of a dead letter is on its way."""
    window = running.window
    if place in window.dead_letters.moving:
        return False
    if is_retry:
        window.retry(*place)
    else:
        window.counts.skipped += window.moved(*place)
    return True


async def repair(
    running: RunningSubscription,
    request: RepairBlocked,
    record: Callable[[RunningSubscription], Awaitable[None] | None],
    wake: Callable[[RunningSubscription], None],
) -> RepairedMessages:
    """Repairs all that match; ``record`` makes a lot durable and returns what to wait for."""
    all_of_them = _Repair(running, request)
    for lot in all_of_them.lots():
        all_of_them.settle(lot)
        durable = record(running)
        wake(running)
        await (asyncio.sleep(0) if durable is None else durable)
    return all_of_them.result


class _Repair:
    """One repair of many messages."""

    def __init__(self, running: RunningSubscription, request: RepairBlocked) -> None:
        self._running = running
        self._window = running.window
        self._is_retry = request.is_retry
        self._matches = _matcher(request.where)
        self._chosen = list(self._window.blocked.stuck.values())
        if request.where.resting:
            self._chosen += self._window.blocked.resting.values()
        self._repaired = self._moving = 0

    @property
    def result(self) -> RepairedMessages:
        """What has come of it so far."""
        return RepairedMessages(self._repaired, self._moving)

    def lots(self) -> Iterator[Sequence[Blocked]]:
        """What there is to look at, in lots; ends when the subscription goes on elsewhere."""
        for first in range(0, len(self._chosen), LOT):
            if self._running.window is not self._window:
                return
            yield self._chosen[first : first + LOT]

    def settle(self, lot: Sequence[Blocked]) -> None:
        """Deals with those of a lot that match, and that are blocked still."""
        window = self._window
        for blocked in lot:
            place = blocked.message.place
            now = window.blocked.get(place)
            if now is not blocked or not self._matches(blocked):
                continue
            if _settle(self._running, place, is_retry=self._is_retry):
                self._repaired += 1
            else:
                self._moving += 1


def _matcher(where: BlockedWhere) -> Callable[[Blocked], bool]:
    is_key = None if where.key is None else compiled(where.key)
    is_reason = None if where.reason is None else compiled(where.reason)
    partition = where.partition

    def matches(blocked: Blocked) -> bool:
        message = blocked.message
        if partition is not None and message.look_ahead.partition != partition:
            return False
        if is_key is not None and (message.queue is None or not is_key(message.queue.key)):
            return False
        return is_reason is None or is_reason(blocked.why)

    return matches


def _asked_before(running: RunningSubscription, request: Resend) -> ResentMessage | None:
    """What has become of a request with the same id; None if there was none. Raises OwnerRefused
    if retention has removed its message."""
    known = running.window.resent.named(request.place, request.id)
    if known is None:
        return None
    if known.is_evicted:
        raise _unreadable(request.place)
    return ResentMessage(*request.place, known.key, known.is_finished)


def _unreadable(place: Place) -> OwnerRefused:
    partition, seq = place
    return OwnerRefused(
        404, "unknown_message", f"message {seq} of partition {partition} cannot be read any more",
        {"partition": partition, "seq": seq},
    )  # fmt: skip


async def resend(
    running: RunningSubscription, request: Resend, reader: PartitionReader, blocks: Blocks
) -> ResentMessage:
    """Delivers a finished message once more. Raises OwnerRefused and LedgerError."""
    partition, seq = request.place
    named = f"message {seq} of partition {partition}"
    detail = {"partition": partition, "seq": seq}
    if not running.view.subscription.config.reliable:
        raise OwnerRefused(
            409, "not_finished", "a subscription without reliable finishes nothing; read the record"
            " with diff", detail,
        )  # fmt: skip
    if request.topic_id not in (None, running.view.topic.topic_id):
        raise OwnerRefused(
            404, "unknown_message", f"topic {running.view.topic.name} was deleted and created"
            f" again: its id is {running.view.topic.topic_id}, not {request.topic_id}",
            detail | {"topic_id": running.view.topic.topic_id},
        )  # fmt: skip
    if (known := _asked_before(running, request)) is not None:
        return known
    if partition not in running.window.look_aheads or seq > running.admission.head(partition):
        raise OwnerRefused(404, "unknown_message", f"there is no {named}", detail)
    key = running.view.topic.topic_id, partition
    is_evicted = seq < (await reader.readable(key)).earliest_seq  # the rings may have it still
    found = None if is_evicted else blocks.find(key, seq)
    if found is MISSING:
        try:
            gap = (await blocks.load(key, seq, NEAR_RECORDS, await reader.head(key))).tombstone
        except StoreError as error:
            raise OwnerRefused(503, "store_unavailable", str(error)) from error
        except (L0Error, LakeFileDamaged, RecordsError) as error:
            raise OwnerRefused(
                503, "object_damaged", f"{named} cannot be read: {error}", detail
            ) from error
        found = blocks.find(key, seq)
        if found is MISSING and gap is not None and gap.reason == QUARANTINED:
            raise OwnerRefused(
                409, "quarantined", f"{named} is in quarantine; `headgate quarantine retry` may"
                " bring it back", detail,
            )  # fmt: skip
    if found is MISSING or found is None:
        raise _unreadable(request.place)
    window, place = running.window, request.place  # after a seek it is another one
    if (known := _asked_before(running, request)) is not None:  # twice, simultaneously
        return known
    is_resent = window.resent.is_open(place)
    if is_resent or not window.is_finished(partition, seq):
        raise OwnerRefused(
            409, "not_finished", f"{named} is not finished, so it is delivered anyway; retry sends"
            " it again if it is blocked", detail | {"resent": is_resent},
        )  # fmt: skip
    if window.resent.count() >= RESENT_MAX:
        raise OwnerRefused(
            429, "too_many_resent", f"{RESENT_MAX} messages are sent once more and not"
            f" finished yet, the limit is {RESENT_MAX}; ask again later", {"limit": RESENT_MAX},
        )  # fmt: skip
    if running.share.is_used_up:
        raise OwnerRefused(
            429, "too_many_resent", "the subscriptions of this shard have used up their memory, so"
            f" {named} is not sent once more; acknowledge messages and ask again",
            {"limit": LOOK_AHEAD_BYTES_MAX},
        )  # fmt: skip
    message_key = running.view.subscription.config.key_of(found[2])
    window.admit_again(window.resent.add(place, message_key, request.id), message_key)
    return ResentMessage(partition, seq, message_key)
