"""What the sender of a request of Kafka's protocol may do by it.

``served.py`` has the scopes of each request, which are those of HTTP's routes. Names are compared
with the topics of the token: those of topics, and the ids of groups too.

Handlers get an ``Allowed``. They check each topic and group by it, and make each change within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from daemon.access.access import Access
from daemon.access.audit import AuditedRequest, AuditLog
from daemon.access.rights import EVERYTHING as ALL_RIGHTS
from daemon.access.rights import Rights
from daemon.access.token_file import Scope
from daemon.kafka.error_codes import CLUSTER_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED
from daemon.schemas.errors import ApiError

_CREATORS = (Scope.PRODUCE, Scope.MANAGE)  # of a topic that is asked for and is not there


def known_by(access: Access, names: Sequence[str] = ()) -> Rights | None:
    """What a client may do that has shown no token, but a certificate of these names."""
    try:
        return access.of({}, names)
    except ApiError:
        return None


class Allowed:
    """What the sender of one request may do by it. ``address`` is whom it came from."""

    __slots__ = ("_audit", "_name", "_scopes", "address", "rights")

    def __init__(
        self, rights: Rights, scopes: tuple[Scope, ...], name: str, address: str,
        audit: AuditLog | None,
    ) -> None:  # fmt: skip
        self.rights = rights
        self._scopes = scopes
        self._name = name
        self.address = address
        self._audit = audit

    def covers(self, name: str) -> bool:
        """Whether a list may have this topic or group."""
        return self.has_scope and self.rights.covers(name)

    @property
    def has_scope(self) -> bool:
        """Whether its sender may do this to anything."""
        return not self.rights.scopes.isdisjoint(self._scopes)

    @property
    def may_create(self) -> bool:
        """Whether a topic that is asked for and is not there may be created."""
        return not self.rights.scopes.isdisjoint(_CREATORS)

    def check_topic(self, name: str) -> None:
        """Raises ApiError ``forbidden``, whether the topic exists or not."""
        self._check(name)

    def error_of_group(self, group: str) -> int:
        """Kafka's error if a group is not for its sender."""
        try:
            self._check(group)
        except ApiError:
            return GROUP_AUTHORIZATION_FAILED
        return 0

    def error_of_cluster(self) -> int:
        """Kafka's error if its sender may do this to nothing."""
        try:
            self._check()
        except ApiError:
            return CLUSTER_AUTHORIZATION_FAILED
        return 0

    def _check(self, *names: str) -> None:
        try:
            self.rights.check_scope(*self._scopes)
            self.rights.check_topics(*names)
        except ApiError as error:
            if self.rights.tally is not None:
                self.rights.tally.refused += 1
            if self._audit is not None:
                self._audit.refused(self._asked(*names), error)
            raise

    @contextmanager
    def change(self, name: str) -> Iterator[None]:
        """While something other than records is changed: it has a line of the audit log, and
        counts for the limit ``settings``. Raises ApiError 503 before it if there is no line."""
        if self.rights.allowance is not None:
            self.rights.allowance.charge_setting()
        with nullcontext() if self._audit is None else self._audit.change(self._asked(name)):
            yield

    def _asked(self, *names: str) -> AuditedRequest:
        token = self.rights.token
        who = None if token is None else token.name
        return AuditedRequest(who, self.address, "", "KAFKA", "/".join((self._name, *names)))


EVERYTHING = Allowed(ALL_RIGHTS, tuple(Scope), "", "", None)
"""Where nobody is asked for a token."""
