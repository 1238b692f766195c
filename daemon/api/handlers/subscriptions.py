"""Handlers of ``/v0/topics/{t}/subscriptions``: create, change, show, list, delete, seek.

Settings and floors are the ledger's, what a subscription is doing is its owner's. A list shows what
owners have written to the shared segment; the owner itself answers for a single subscription. Every
change of subscriptions changes a shared word, by which their owners notice it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets as randomness
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from daemon.access.rights import Rights
from daemon.access.token_file import Scope
from daemon.api.handlers.pages import visible_page
from daemon.api.handlers.push_activity import PushActivities
from daemon.api.handlers.push_settings import (
    PushChange,
    PushSecretChanges,
    SecretsMoved,
    change_of,
    changed_push,
    given_fields,
    secrets_of,
    shown_config,
)
from daemon.api.handlers.routers import check_filter
from daemon.api.handlers.subscription_directory import SubscriptionDirectory, unknown_subscription
from daemon.api.handlers.topics import Created
from daemon.intake.topic_cache import TopicCache, TopicEntry, unknown_topic
from daemon.schemas.errors import ApiError, invalid, too_large
from daemon.schemas.names import check_subscription_name
from daemon.schemas.push import (
    TEST_BYTES_MAX,
    AttemptsQuery,
    PushActivity,
    PushResumed,
    PushTestRequest,
)
from daemon.schemas.subscriptions import (
    EverySubscription,
    EverySubscriptionQuery,
    SeekRequest,
    SubscriptionActivity,
    SubscriptionDeleted,
    SubscriptionPage,
    SubscriptionsQuery,
    SubscriptionStatus,
    SubscriptionSummary,
)
from delivery.changes import DeliveryChanges
from delivery.dispatch import SLICE_NS
from delivery.ledger_thread import LedgerThread
from delivery.push.posts.addresses import AllowList
from delivery.push.secrets import SecretsFile
from delivery.reading.partition import PartitionReader
from delivery.subscriptions.owners import SubscriptionOwner
from delivery.subscriptions.requests import Describe, ListAttempts, Seek, TryPush
from delivery.subscriptions.schemas import PushAttempts, PushExchange, Sought
from delivery.subscriptions.shown.inspection import stored_progress
from ledger.delivery import start_offsets, subscriptions
from ledger.delivery.start_offsets import AtTime, SubscriptionStart
from ledger.delivery.subscription_errors import (
    DeadLetterCycle,
    SubscriptionMissing,
    SubscriptionRefused,
    SubscriptionsFull,
)
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig, SubscriptionView
from ledger.errors import CursorsFull, TopicMissing
from ledger.tx import WriteTx
from shards.boards.figures import SubscriptionCounts, values_of
from shards.boards.pushboard import PushBoard
from shards.boards.rowboard import RowPhase, SubscriptionRow, subscription_board
from shards.clock import monotonic_ns, wall_ms
from shards.segment import Segment

log = logging.getLogger("headgate.subscriptions")

T = TypeVar("T")
TRIES = 10  # of a change, while others change the same secrets


class SubscriptionRoutes:
    """The subscriptions of the daemon."""

    def __init__(
        self,
        segment: Segment,
        changes: DeliveryChanges,
        ledger: LedgerThread,
        topics: TopicCache,
        reader: PartitionReader,
        secrets: SecretsFile,
        allow: AllowList,
        directory: SubscriptionDirectory,
        owners: SubscriptionOwner,
    ) -> None:
        self._board = subscription_board(segment)
        self._pushed = PushActivities(segment)
        self._push_board = PushBoard(segment)
        self._ledger = ledger
        self._changes = changes
        self._topics = topics
        self._reader = reader
        self._allow = allow
        self._secrets = PushSecretChanges(secrets, ledger)
        self._directory = directory
        self._owners = owners

    async def put(
        self, topic: str, name: str, rights: Rights, asked: Struct
    ) -> SubscriptionSummary | Created:
        """Creates a subscription, or changes what is given. Raises ApiError."""
        check_subscription_name(name)
        given = given_fields(asked)
        if given.get("dead_letter_topic") is not None:
            rights.check_topics(given["dead_letter_topic"])
        if isinstance(given.get("push"), Struct):
            rights.check_scope(Scope.PUSH)
        if "filter" in given:
            given["filter"] = given["filter"] or None
            check_filter(given["filter"])
        asked_push: Struct | UnsetType | None = given.pop("push", UNSET)
        push = (
            change_of(name, asked_push, self._allow)
            if isinstance(asked_push, Struct)
            else asked_push
        )
        start: SubscriptionStart = given.pop("start", "earliest")
        entry = await self._topics.entry_now(topic)
        for _ in range(TRIES):
            found = await self._ledger.read(subscriptions.find, entry.topic_id, name)
            if found is None:
                start = await self._exact(entry, start)
            try:
                return await self._put(entry, name, found, given, push, start, rights)
            except SecretsMoved:
                continue
        raise ApiError(
            503, "changed_meanwhile", f"other requests change the secrets of subscription {name!r}"
            " all the time; nothing was changed; ask again", retry_after_s=1,
        )  # fmt: skip

    async def _put(
        self,
        entry: TopicEntry,
        name: str,
        found: Subscription | None,
        given: Mapping[str, Any],
        push: PushChange | UnsetType | None,
        start: SubscriptionStart,
        rights: Rights,
    ) -> SubscriptionSummary | Created:
        """Raises ApiError, and SecretsMoved if the secrets are not those of ``found`` any more."""
        new_id: str | None = None
        is_secret = False
        if isinstance(push, PushChange) and push.is_secret:
            is_secret = True
            with refusals(entry.name, name):
                known = None if found is None else found.config.push
                new_id = await self._secrets.save(name, known, push)

        def change(tx: WriteTx) -> tuple[SubscriptionView, Subscription | None]:
            present = subscriptions.find(tx, entry.topic_id, name)
            if is_secret and secrets_of(present) != secrets_of(found):
                raise SecretsMoved
            wanted = dict(given)
            former = None if present is None else present.config.push
            if isinstance(push, PushChange):
                wanted["push"] = changed_push(name, former, push, new_id)
            elif push is None:
                wanted["push"] = None
            settings = wanted.get("push", former)
            if settings is not None and Scope.PUSH in rights.scopes:
                wanted["push"] = msgspec.structs.replace(settings, token=rights.token)
            if present is None:
                config = SubscriptionConfig(**wanted)
                made = subscriptions.create(tx, entry.name, name, config, start, wall_ms())
            else:
                made = subscriptions.alter(tx, entry.name, name, wanted)
            view = subscriptions.view(tx, made.topic_id, name)
            assert view is not None  # of the same transaction
            return view, present

        try:
            view, former = await self._changed(entry.name, name, change)
        except (ApiError, SecretsMoved):
            await self._secrets.forget(new_id)  # after other errors it may be committed
            raise
        if secrets_of(former) != secrets_of(view.subscription):
            await self._secrets.forget(secrets_of(former))
        if former is not None:
            return self._summary(view)
        log.info("subscription %s of topic %s was created", name, entry.name)
        return Created(self._summary(view))

    async def get(self, topic: str, name: str) -> SubscriptionStatus:
        """One subscription. Raises ApiError 404."""
        check_subscription_name(name)
        entry = await self._topics.entry_now(topic)
        found = await self._ledger.read(subscriptions.find, entry.topic_id, name)
        if found is None:
            raise unknown_subscription(topic, name)
        state = await self._owners.ask(Describe(found.subscription_id))
        return SubscriptionStatus(
            **msgspec.structs.asdict(state),
            subscription_id=found.subscription_id,
            topic_id=found.topic_id,
            config=shown_config(found.config),
            created_ms=found.created_ms,
            push=self._pushed.of(found),
            push_senders=self._pushed.senders_of(found),
        )

    async def list(self, topic: str, query: SubscriptionsQuery) -> SubscriptionPage:
        """A page of a topic's subscriptions, by name."""
        entry = await self._topics.entry(topic)
        views = await self._ledger.read(
            subscriptions.views, entry.topic_id, query.after, query.limit + 1
        )
        shown = await in_slices(self._summary, views[: query.limit])
        more = len(views) > query.limit
        return SubscriptionPage(shown, shown[-1].subscription if more else None)

    async def list_all(self, query: EverySubscriptionQuery, rights: Rights) -> EverySubscription:
        """A page of all subscriptions, by id; those of topics that the sender may not see are left
        out of it."""
        views, more = await visible_page(
            partial(self._ledger.read, subscriptions.all_views),
            lambda view: view.subscription.subscription_id, lambda view: (view.topic.name,), rights,
            query.after, query.limit,
        )  # fmt: skip
        return EverySubscription(await in_slices(self._summary, views), more)

    async def delete(self, topic: str, name: str) -> SubscriptionDeleted:
        """Deletes a subscription. Raises ApiError 404."""
        check_subscription_name(name)
        deleted = await self._changed(
            topic, name, lambda tx: subscriptions.delete(tx, topic, name, wall_ms())
        )
        await self._secrets.forget(secrets_of(deleted))
        log.info("subscription %s of topic %s was deleted", name, topic)
        return SubscriptionDeleted(topic, name)

    async def seek(self, topic: str, name: str, asked: SeekRequest) -> Sought:
        """Goes on elsewhere. Raises ApiError."""
        entry, subscription_id = await self._directory.find(topic, name)
        place = await self._exact(entry, asked.to)
        try:
            floors = await self._ledger.read(
                start_offsets.floors_at, entry.topic_id, name, place, "to"
            )
        except SubscriptionRefused as error:
            raise invalid(str(error), field="to", subscription=name) from error
        return await self._owners.ask(Seek(subscription_id, floors))

    async def test(self, topic: str, name: str, asked: PushTestRequest) -> PushExchange:
        """Sends a receiver a record that is in no topic. Raises ApiError."""
        entry, subscription_id = await self._directory.find(topic, name)
        if asked.data is UNSET:
            made = {"headgate": "test", "topic": entry.name, "subscription": name}
            data = msgspec.json.encode(made)
        else:
            data = bytes(asked.data)
        if len(data) > TEST_BYTES_MAX:
            raise too_large(
                f"data has {len(data)} bytes, the limit is {TEST_BYTES_MAX}", field="data"
            )
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise invalid(f"data is not UTF-8: {error}", field="data") from error
        request = TryPush(subscription_id, text, asked.key, randomness.token_hex(8))
        return await self._owners.ask(request)

    async def attempts(self, topic: str, name: str, query: AttemptsQuery) -> PushAttempts:
        """The last POSTs of messages. Raises ApiError."""
        _, subscription_id = await self._directory.find(topic, name)
        asked = ListAttempts(subscription_id, query.partition, query.seq, query.limit)
        return await self._owners.ask(asked)

    async def resume(self, topic: str, name: str) -> PushResumed:
        """Goes on pushing: ends a pause, and slow mode. Raises ApiError."""

        def resume(tx: WriteTx) -> tuple[Subscription, bool]:
            found = subscriptions.alter(tx, topic, name, {})
            if found.config.push is None or not found.config.paused:
                return found, False
            return subscriptions.alter(tx, topic, name, {"paused": False}), True

        check_subscription_name(name)
        resumed, was_paused = await self._changed(topic, name, resume)
        if resumed.config.push is None:
            raise ApiError(
                409, "not_pushed",
                f"subscription {name!r} is not pushed; PUT it with paused: false to end a pause",
            )  # fmt: skip
        self._push_board.resume(resumed.slot, resumed.subscription_id, monotonic_ns())
        return PushResumed(was_paused)

    async def _exact(self, entry: TopicEntry, place: SubscriptionStart) -> SubscriptionStart:
        """The offsets of a time, which only the records know; other places as they are."""
        if not isinstance(place, AtTime):
            return place
        return [
            await self._reader.before_time((entry.topic_id, partition), place.ts)
            for partition in range(entry.partitions)
        ]

    def _summary(self, view: SubscriptionView) -> SubscriptionSummary:
        subscription = view.subscription
        row = self._board.read(subscription.slot, subscription.subscription_id)
        return summary_of(view, row, self._pushed.of(subscription))

    async def _changed(self, topic: str, name: str, change: Callable[[WriteTx], T]) -> T:
        with refusals(topic, name):
            return await self._changes.make(change)


async def in_slices(
    summary: Callable[[SubscriptionView], SubscriptionSummary], views: Sequence[SubscriptionView]
) -> list[SubscriptionSummary]:
    """What a list shows; the loop does other things in between: each of 64 senders of a push
    subscription takes 8 us."""
    shown: list[SubscriptionSummary] = []
    until_ns = monotonic_ns() + SLICE_NS
    for view in views:
        shown.append(summary(view))
        if monotonic_ns() >= until_ns:
            await asyncio.sleep(0)
            until_ns = monotonic_ns() + SLICE_NS
    return shown


@contextmanager
def refusals(topic: str, name: str) -> Iterator[None]:
    """What the ledger refuses to do with a subscription, as what clients are told."""
    try:
        yield
    except SubscriptionMissing as error:
        raise unknown_subscription(topic, name) from error
    except TopicMissing as error:
        raise unknown_topic(error.name) from error
    except SubscriptionRefused as error:
        raise invalid(str(error), field=error.field, subscription=name) from error
    except DeadLetterCycle as error:
        detail: dict[str, Any] = {"subscription": name, "path": error.path}
        raise ApiError(409, "dead_letter_cycle", str(error), detail, names=error.path) from error
    except SubscriptionsFull as error:
        limit = {"limit_subscriptions": error.maximum}
        raise ApiError(409, "subscriptions_full", str(error), limit) from error
    except CursorsFull as error:
        limit = {"limit_cursors": error.maximum}
        raise ApiError(409, "cursors_full", str(error), limit) from error


def summary_of(
    view: SubscriptionView, told: SubscriptionRow | None, push: PushActivity | None = None
) -> SubscriptionSummary:
    """A subscription as a list shows it; ``told`` is what its owner tells of it, ``push`` what its
    senders do."""
    subscription = view.subscription
    partitions = stored_progress(view)
    row = told or SubscriptionRow(lag=sum(each.lag for each in partitions))
    return SubscriptionSummary(
        subscription=subscription.name,
        subscription_id=subscription.subscription_id,
        topic=view.topic.name,
        topic_id=view.topic.topic_id,
        config=shown_config(subscription.config),
        created_ms=subscription.created_ms,
        state=_STATES[row.phase],
        reason=row.reason,
        consumers=row.consumers,
        partitions=partitions,
        push=push,
        **values_of(SubscriptionCounts, row),
    )


_STATES: dict[RowPhase, SubscriptionActivity] = {
    RowPhase.RUNNING: "running",
    RowPhase.PAUSED: "paused",
    RowPhase.HELD: "held",
    RowPhase.STOPPED: "stopped",
}
