"""What a request makes of the push settings of a subscription, and what is shown of them; and of
the signing of a topic's hooks.

What is secret goes another way than the rest (``delivery/push/secrets.py``): it is saved under an
id of its own before the ledger commits settings that name it, and what those replace is removed
after. If two requests change secrets, the one that commits last has seen what the other has made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Struct

from daemon.intake.hooks import NEVER_KEPT
from daemon.schemas.errors import ApiError, invalid
from daemon.schemas.push import ShownConfig
from daemon.schemas.topic_settings import HookChange
from delivery.ledger_thread import LedgerThread
from delivery.push.posts.addresses import AllowList, BadEndpoint, ForbiddenEndpoint, check_endpoint
from delivery.push.secrets import (
    RESERVED,
    PushSecrets,
    SecretsFile,
    SecretsFileError,
    SecretsRefused,
    check_header_name,
    missing,
)
from delivery.push.signatures import SecretRefused, key_of
from ledger.delivery.push_settings import PushSettings, PushTarget
from ledger.delivery.subscription_errors import SubscriptionRefused
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.types import HookSettings

T = TypeVar("T")

log = logging.getLogger("headgate.api")


def secrets_of(found: Subscription | None) -> str | None:
    """The id of what is secret of a subscription, if anything is."""
    return None if found is None or found.config.push is None else found.config.push.secrets_id


class SecretsMoved(Exception):
    """Another request has changed the secrets meanwhile; this one is to look again."""


class PushChange(NamedTuple):
    """What a request changes in push settings: ``settings`` by field, and what is secret: own
    headers by name in lower case (None: removed), and all signing secrets (None: they stay)."""

    settings: Mapping[str, Any]
    headers: Mapping[str, str | None]
    secrets: tuple[str, ...] | None

    @property
    def is_secret(self) -> bool:
        """Whether secrets change."""
        return bool(self.headers) or self.secrets is not None


def given_fields(asked: Struct) -> dict[str, Any]:
    """The fields of a request that are given."""
    return {
        name: value
        for name in asked.__struct_fields__
        if (value := getattr(asked, name)) is not UNSET
    }


def change_of(name: str, asked: Struct, allow: AllowList) -> PushChange:
    """What is asked for subscription ``name``. Raises ApiError."""
    settings = given_fields(asked)
    if "endpoint" in settings:
        _check_endpoint(name, settings["endpoint"], allow)
    secrets = settings.pop("secrets", None)
    headers: dict[str, str | None] = {}
    for header, value in settings.pop("headers", {}).items():
        try:
            lower = check_header_name(header)
        except SecretsRefused as error:
            raise invalid(str(error), field="push.headers", subscription=name) from None
        if lower in headers:
            raise invalid(
                f"the header {lower} is given twice; names in upper and lower case are the same",
                field="push.headers",
                subscription=name,
            )
        headers[lower] = value
    return PushChange(settings, headers, None if secrets is None else tuple(secrets))


def _check_endpoint(name: str, endpoint: str, allow: AllowList) -> None:
    """Refuses what the URL itself shows to be forbidden; connections are checked again."""
    try:
        allow.check(endpoint)
    except BadEndpoint as error:
        raise invalid(str(error), field="push.endpoint", subscription=name) from None
    except ForbiddenEndpoint as error:
        detail = {"field": "push.endpoint", "subscription": name}
        raise ApiError(400, "push_forbidden", str(error), detail) from None


def changed_push(
    name: str, present: PushSettings | None, change: PushChange, secrets_id: str | None
) -> PushSettings:
    """The push settings of subscription ``name`` after a change. ``secrets_id`` is where what is
    secret is then, if that changes. Raises SubscriptionRefused."""
    if present is None and "endpoint" not in change.settings:
        raise SubscriptionRefused(name, "push.endpoint", "is missing; give the receiver's URL")
    if present is not None:
        _check_destination(name, present, change)
    present = present or PushSettings("")
    wanted = dict(change.settings)
    if change.is_secret:
        names: dict[str, str | None] = dict.fromkeys(present.headers, "")
        names.update(change.headers)
        wanted["headers"] = sorted(each for each, value in names.items() if value is not None)
        wanted["secrets_id"] = secrets_id
    if change.secrets is not None:
        wanted["signed"] = bool(change.secrets)
        wanted["secrets_count"] = len(change.secrets)
    return msgspec.structs.replace(present, **wanted)


def _check_destination(name: str, present: PushSettings, change: PushChange) -> None:
    """The values of own headers go to the server for which they were given. Who can set the URL,
    but does not know them, would get them otherwise."""
    endpoint = change.settings.get("endpoint", present.endpoint)
    kept = [each for each in present.headers if each not in change.headers]
    if kept and check_endpoint(endpoint) != check_endpoint(present.endpoint):
        raise SubscriptionRefused(
            name,
            "push.endpoint",
            f"leads to another server, and the values of {', '.join(kept)} were given for the"
            " former one; give them again, or remove them with null",
        )


def changed_secrets(known: PushSecrets, change: PushChange) -> PushSecrets:
    """What is secret after a change."""
    headers = {
        each: value
        for each, value in {**known.headers, **change.headers}.items()
        if value is not None
    }
    return PushSecrets(known.signing if change.secrets is None else change.secrets, headers)


class PushSecretChanges:
    """The changes of the file of secrets that requests make."""

    def __init__(self, file: SecretsFile, ledger: LedgerThread) -> None:
        self._file = file
        self._ledger = ledger

    async def save(self, name: str, present: PushSettings | None, change: PushChange) -> str | None:
        """Saves what is secret after a change of the settings ``present``, and returns its id;
        None: nothing is then. Raises ApiError and SubscriptionRefused."""
        known = None
        if present is not None and present.secrets_id is not None:
            known = await self._run(partial(self._file.load, present.secrets_id))
        secrets = changed_secrets(known or PushSecrets(), change)
        lacks = missing(changed_push(name, present, change, None), secrets)
        if lacks:
            raise ApiError(
                409, "secret_missing", f"subscription {name!r} cannot be changed so: {lacks}",
                {"subscription": name},
            )  # fmt: skip
        if secrets == PushSecrets():
            return None
        try:
            return await self._run(partial(self._file.save, secrets))
        except SecretRefused as error:
            raise invalid(str(error), field="push.secrets", subscription=name) from None
        except SecretsRefused as error:
            raise invalid(str(error), field="push", subscription=name) from None

    async def save_hook(self, topic: str, change: HookChange) -> HookSettings:
        """Saves the secrets of a topic's hooks, and returns the settings that name them. Raises
        ApiError."""
        if change.header.lower() in NEVER_KEPT | RESERVED:
            raise invalid(
                f"header of hook must be the one with the signature, got {change.header}, which"
                " has another meaning",
                field="hook.header",
                topic=topic,
            )
        try:
            if change.scheme == "standard":
                for secret in change.secrets:
                    key_of(secret)
            secrets = PushSecrets(hook=tuple(change.secrets))
            secrets_id = await self._run(partial(self._file.save, secrets))
        except (SecretRefused, SecretsRefused) as error:
            raise invalid(str(error), field="hook.secrets", topic=topic) from None
        return HookSettings(change.scheme, change.header, change.tolerance_s, secrets_id)

    async def forget(self, secrets_id: str | None) -> None:
        """No settings name it any more."""
        if secrets_id is None:
            return
        try:
            await self._ledger.run(partial(self._file.remove, [secrets_id]))
        except SecretsFileError as error:
            log.warning("what is not used any more stays until the daemon starts: %s", error)

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await self._ledger.run(call)  # which takes as long as a write to the ledger
        except SecretsFileError as error:
            raise ApiError(503, "secrets_unavailable", str(error), retry_after_s=1) from error


def shown_config(config: SubscriptionConfig) -> ShownConfig:
    """The settings as clients see them."""
    values = {each: getattr(config, each) for each in ShownConfig.__struct_fields__}
    if config.push is not None:
        shown = {each: getattr(config.push, each) for each in PushTarget.__struct_fields__}
        values["push"] = PushTarget(**shown)
    return ShownConfig(**values)
