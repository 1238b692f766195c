"""A message that is finished is delivered once more, because an operator asks for it.

It gets a lane of its own, next to that of its partition, whose floor it does not move: at the end
of its key's queue, so the order of the key and the lock on it hold. It is acknowledged and fails
like any other. Nothing of it is durable: after a seek, another mode or the death of the owner it is
as finished as before.
"""

from __future__ import annotations

from delivery.reading.partition import PartitionReader
from delivery.subscriptions.blocks import MISSING, NEAR_RECORDS, Blocks
from delivery.subscriptions.look_ahead import LookAhead
from delivery.subscriptions.requests import OwnerRefused, Resend
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.schemas import ResentMessage
from uploader.stores.base import StoreError

RESENT_MAX = 1_000  # of a subscription, unfinished; 2 KB each


async def resend(
    running: RunningSubscription, request: Resend, reader: PartitionReader, blocks: Blocks
) -> ResentMessage:
    """Raises OwnerRefused and LedgerError."""
    partition, seq = request.place
    named = f"message {seq} of partition {partition}"
    detail = {"partition": partition, "seq": seq}
    if not running.view.subscription.config.reliable:
        raise OwnerRefused(
            409, "not_finished", "a subscription without reliable finishes nothing; read the record"
            " with diff", detail,
        )  # fmt: skip
    if partition not in running.window.lanes or seq > running.head(partition):
        raise OwnerRefused(404, "unknown_message", f"there is no {named}", detail)
    key = running.view.topic.topic_id, partition
    is_evicted = seq < (await reader.readable(key)).earliest_seq  # the rings may have it still
    found = None if is_evicted else blocks.find(key, seq)
    if found is MISSING:
        try:
            await blocks.load(key, seq, NEAR_RECORDS, await reader.head(key))
        except StoreError as error:
            raise OwnerRefused(503, "store_unavailable", str(error)) from error
        found = blocks.find(key, seq)
    if found is MISSING or found is None:
        raise OwnerRefused(404, "unknown_message", f"{named} cannot be read any more", detail)
    window, place = running.window, request.place  # after a seek it is another one
    for each, lane in [*window.resent.items()]:
        if lane.is_done(each[1]):
            del window.resent[each]
    if not window.is_finished(partition, seq) or place in window.resent:
        raise OwnerRefused(
            409, "not_finished", f"{named} is not finished, so it is delivered anyway; retry sends"
            " it again if it is blocked", detail,
        )  # fmt: skip
    if len(window.resent) >= RESENT_MAX:
        raise OwnerRefused(
            429, "too_many_resent", f"{len(window.resent)} messages are sent once more and not"
            f" finished yet, the limit is {RESENT_MAX}; ask again later", {"limit": RESENT_MAX},
        )  # fmt: skip
    window.resent[place] = LookAhead(partition, seq - 1)
    window.admit_again(window.resent[place], found[2].key)
    return ResentMessage(partition, seq, found[2].key)
