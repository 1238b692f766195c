"""Exit codes and error messages of the command, derived from the kind of error in one place.

0 ok, 1 failed, 2 usage or configuration, 3 unreachable, 4 degraded. Scripts rely on them.

A message is one sentence on stderr with the values involved, then a hint of what to do.
"""

from __future__ import annotations

from typing import IO, Any

import click

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
DEGRADED = 4

REFUSED_HINTS = {
    "unknown_subscription": "`headgate subscriptions ls` lists the subscriptions",
    "not_blocked": "`headgate subscriptions keys TOPIC SUBSCRIPTION` lists what is blocked",
    "unknown_topic": "`headgate topics ls` lists the topics",
    "unauthenticated": "commands send the token in HEADGATE_TOKEN, in the file that"
    " HEADGATE_TOKEN_FILE names, or of the profile",
    "throttled": "the daemon is full: send again later, or more slowly",
}
_DISTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_DISTRUST_HINT = (
    "name the file of its authority in HEADGATE_CA_FILE or the profile, and in the URL a name that"
    " its certificate has"
)


class CommandFailed(click.ClickException):
    """Ends the command with a message, a hint and an exit code. ``code`` is of the HTTP API."""

    def __init__(
        self, message: str, *, hint: str = "", exit_code: int = FAILED, code: str = ""
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code
        # click declares it for the class, and reads it from the instance
        self.exit_code = exit_code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        from commands.output import echo, say  # which no help needs

        say(self.message)
        if self.hint:
            echo(f"  hint: {self.hint}", err=True)


def error_value(error: click.ClickException) -> dict[str, dict[str, str | int]]:
    """An error as ``-o json`` answers it."""
    codes = {USAGE: "usage", UNREACHABLE: "unreachable"}
    code = getattr(error, "code", "") or codes.get(error.exit_code, "failed")
    return {
        "error": {
            "code": code,
            "message": error.format_message(),
            "hint": getattr(error, "hint", ""),
            "exit_code": error.exit_code,
        }
    }


def failure(error: Exception, also: str = "") -> CommandFailed | None:
    """How the command ends after ``error``, with one more hint; None for an unexpected error.

    Imports the kinds of errors only now: no command needs all of them, and the help needs none.
    """
    found = _client_failure(error) or _ledger_failure(error) or _lake_failure(error)
    if found is not None and also:
        found.hint = f"{found.hint}; {also}" if found.hint else also
    return found


def _client_failure(error: Exception) -> CommandFailed | None:
    from commands.client.http import Refused, UnknownAnswer, Unreachable

    match error:
        case Unreachable():
            return CommandFailed(
                str(error),
                hint=_DISTRUST_HINT
                if _DISTRUSTED in str(error)
                else "is the daemon running (`headgate serve`)? --url, HEADGATE_URL or a"
                " profile say where",
                exit_code=UNREACHABLE,
            )
        case Refused():
            message = f"{error.message} ({error.code}, status {error.status})"
            return CommandFailed(message, hint=REFUSED_HINTS.get(error.code, ""), code=error.code)
        case UnknownAnswer():
            return CommandFailed(str(error), hint="is --url the address of a headgate daemon?")
    return None


def _ledger_failure(error: Exception) -> CommandFailed | None:
    from compaction.access.http_calls import DaemonRefused, DaemonUnreachable
    from compaction.access.ledger_access import NotBackedUp
    from daemon.config import ConfigError
    from daemon.upkeep.directory import StartError
    from daemon.upkeep.owner import OtherHistory
    from daemon.upkeep.recover import NothingThere
    from ledger.errors import LedgerError, RunLost, RunUnfinished
    from ledger.log.entry import EntryError
    from uploader.ownership.ownerlog import OwnedByAnother
    from uploader.stores.base import StoreError

    match error:
        case ConfigError():
            return CommandFailed(
                "the configuration cannot be used:\n  " + "\n  ".join(error.problems),
                hint="docs/configuration.md and `headgate config show --origin` list the keys",
                exit_code=USAGE,
            )
        case OwnedByAnother():
            return CommandFailed(
                str(error),
                hint="use that daemon's data directory, or stop it and take the store over with"
                " `headgate recover --take-over` (docs/operations.md#other-directory)",
            )
        case NotBackedUp():
            return CommandFailed(
                str(error), hint="nothing is lost or stored twice; it is safe to run it again"
            )
        case DaemonUnreachable():
            hint = _DISTRUST_HINT if _DISTRUSTED in str(error) else ""
            return CommandFailed(str(error), hint=hint, exit_code=UNREACHABLE)
        case OtherHistory():
            return CommandFailed(str(error), hint="see docs/operations.md#old-ledger")
        case StartError() | EntryError() | NothingThere() | DaemonRefused():
            return CommandFailed(str(error))
        case RunUnfinished() | RunLost():
            return CommandFailed(str(error))
        case LedgerError():
            return CommandFailed(str(error), hint="--data and --config must be those of `serve`")
        case StoreError():
            return CommandFailed(str(error), hint="--store and --config must be those of `serve`")
    return None


def _lake_failure(error: Exception) -> CommandFailed | None:
    from compaction.inputs.objects import StoreFailed
    from compaction.run.backlog import UnknownTopics
    from compaction.run.driver import TaskFailed
    from compaction.run.java import NoJava
    from compaction.run.run import StoreIsEmpty
    from compaction.run.session import SparkFailed, SparkMissing
    from compaction.tables.errors import LakeError

    match error:
        case LakeError():
            return CommandFailed(error.problem, hint=error.hint)
        case TaskFailed() | SparkFailed():
            return CommandFailed(
                str(error),
                hint="run it again: what is in the tables stays, and nothing is written twice",
            )
        case StoreIsEmpty():
            return CommandFailed(
                str(error),
                hint="is the store mounted, and is it the right bucket? see `headgate check`",
            )
        case UnknownTopics() | SparkMissing() | NoJava() | StoreFailed():
            return CommandFailed(str(error))
    return None
