"""The API of a shard, wired: the handlers of the routes, and the server that asks them."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from daemon.api import openapi
from daemon.api.application import Api
from daemon.api.figures.status import StatusBuilder
from daemon.api.handlers.admin import AdminRoutes
from daemon.api.handlers.consumers import ConsumerRoutes
from daemon.api.handlers.cursors import CursorRoutes
from daemon.api.handlers.daemon import DaemonRoutes
from daemon.api.handlers.diffs import DiffRoutes
from daemon.api.handlers.plans import PlanRoutes
from daemon.api.handlers.push_settings import PushSecretChanges
from daemon.api.handlers.routers import RouterRoutes
from daemon.api.handlers.subscription_directory import SubscriptionDirectory
from daemon.api.handlers.subscriptions import SubscriptionRoutes
from daemon.api.handlers.topic_activity import TopicActivityView
from daemon.api.handlers.topics import TopicRoutes
from daemon.api.handlers.watch import WatchRoutes
from daemon.api.overviews import OverviewRoutes
from daemon.api.route import Handlers
from daemon.api.routes import ROUTES
from daemon.http.guard import guard_of
from daemon.http.limits import http_limits
from daemon.http.server import Server
from daemon.process import open_files
from daemon.process.delivery_side import DeliverySide
from daemon.process.opened import Opened
from daemon.process.write_side import WriteSide
from daemon.tls.certificate import Certificate, CertificateError, files_of
from delivery.push.secrets import SecretsFile
from shards.alarms import AlarmKind
from shards.clock import monotonic_ns


class ApiSide:
    """What answers the requests of one shard's clients."""

    def __init__(self, opened: Opened, write: WriteSide, delivery: DeliverySide) -> None:
        config, segment, ledger = opened.config, opened.segment, opened.ledger
        inheritance = opened.inheritance
        self._listener = socket.socket(fileno=inheritance.listen_fd)
        self._admin_listener = socket.socket(fileno=inheritance.admin_fd)
        tls_fd = inheritance.tls_fd
        self._tls_listener = None if tls_fd is None else socket.socket(fileno=tls_fd)
        self._access = access = opened.access
        self._alarms = opened.alarms
        self._told = ""  # why the tokens cannot be read
        self._limits = open_files.fitted(http_limits(config), open_files.limit(), config.shards)
        self._guard = guard_of(config)
        self.server = server = Server()
        self.admin = AdminRoutes(segment, opened.shard, opened.bells, write.leases, ledger, config)
        directory = SubscriptionDirectory(segment, ledger, write.topics)
        files = files_of(config)
        self._certificate = None if files is None else Certificate(files, inheritance.tls_pair)
        status = StatusBuilder(segment, config, self._certificate)
        daemon = DaemonRoutes(status, ledger, openapi.encoded)
        self._overviews = OverviewRoutes(daemon, status, ledger)
        secrets = SecretsFile(Path(config.data_dir))
        handlers = Handlers(
            topics=TopicRoutes(
                write.topics, TopicActivityView(segment), PushSecretChanges(secrets, ledger)
            ),
            cursors=CursorRoutes(write.cursors),
            routers=RouterRoutes(segment, delivery.changes, ledger, access),
            subscriptions=SubscriptionRoutes(
                segment, delivery.changes, ledger, write.topics, delivery.partitions,
                secrets, delivery.senders.allow, directory,
                delivery.owners,
            ),
            consumers=ConsumerRoutes(directory, delivery.owners),
            reads=DiffRoutes(
                write.topics, delivery.reader, delivery.recency,
                lambda: server.unsent.is_half_full,
            ),
            watch=WatchRoutes(
                write.topics, delivery.partitions, delivery.hub, delivery.priorities, access
            ),
            plans=PlanRoutes(write.topics, ledger, config),
            daemon=daemon,
            overviews=self._overviews,
            admin=self.admin,
        )  # fmt: skip
        self.api = Api(
            ROUTES,
            handlers,
            write.producer,
            delivery.reader.waiters,
            access,
            options=bool(config.cors_origins),
            admin_over_tcp=config.admin_over_tcp,
            audit=opened.audit,
            objects=write.objects,
        )

    def follow_files(self) -> bool:
        """Ends what is under way for tokens that were revoked or have expired, and takes another
        certificate for the handshakes to come. Returns whether any rights are over."""
        has_ended = self.api.follow_tokens()
        if has_ended:
            self.server.end_revoked()
        problem = self._access.problem
        if problem != self._told:
            self._told = problem
            self._alarms.clear(AlarmKind.TOKENS_UNUSABLE)
            if problem:
                self._alarms.raise_(AlarmKind.TOKENS_UNUSABLE, problem, monotonic_ns())
        if self._certificate is not None:
            with contextlib.suppress(CertificateError):  # the supervisor says so
                if self._certificate.look():
                    self.server.serve_certificate(self._certificate.in_force)
        return has_ended

    def drain(self) -> None:
        """Ends streams of the status, and answers what was asked."""
        self._overviews.close()
        self.server.drain()

    async def start(self) -> None:
        """Serves on all listeners, which listen already."""
        await self.server.start(
            self.api, "", 0, self._limits, sock=self._listener, guard=self._guard
        )
        await self.server.listen_on(self._admin_listener)
        if self._certificate is not None:
            self.server.serve_certificate(self._certificate.in_force)
        if self._tls_listener is not None:
            await self.server.listen_by_tls(self._tls_listener)
