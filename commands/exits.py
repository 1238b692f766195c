"""Exit codes and error messages of the command, derived from the kind of error in one place.

0 ok, 1 failed, 2 usage or configuration, 3 unreachable, 4 degraded. Scripts rely on them.

A message is one sentence on stderr with the operands, then a hint of what to do.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

from commands.client import Refused, UnknownAnswer, Unreachable
from daemon.config import ConfigError
from ledger.errors import LedgerError
from uploader.stores.base import StoreError

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
DEGRADED = 4

HINTS = {
    "unknown_topic": "`headgate topics ls` lists the topics",
    "throttled": "the daemon is full: send again later, or slower",
}


class CommandFailed(click.ClickException):
    """An end of the command with a sentence, a hint and a code."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        # click declares it for the class, and reads it from the instance
        self.exit_code = exit_code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"headgate: {self.message}", err=True)
        if self.hint:
            click.echo(f"  hint: {self.hint}", err=True)


def failure(error: Exception, also: str = "") -> CommandFailed | None:
    """What the command ends with after ``error``, with one hint more; None for an error that
    nobody foresaw."""
    found = _failure(error)
    if found is not None and also:
        found.hint = f"{found.hint}; {also}" if found.hint else also
    return found


def _failure(error: Exception) -> CommandFailed | None:
    match error:
        case ConfigError():
            return CommandFailed(
                "the configuration cannot be used:\n  " + "\n  ".join(error.problems),
                hint="docs/configuration.md and `headgate config show --origin` list the keys",
                exit_code=USAGE,
            )
        case Unreachable():
            return CommandFailed(
                str(error),
                hint="is the daemon running (`headgate serve`)? --url or HEADGATE_URL say where",
                exit_code=UNREACHABLE,
            )
        case Refused():
            message = f"{error.message} ({error.code}, status {error.status})"
            return CommandFailed(message, hint=HINTS.get(error.code, ""))
        case UnknownAnswer():
            return CommandFailed(str(error), hint="is --url the address of a headgate daemon?")
        case LedgerError():
            return CommandFailed(str(error), hint="--data and --config must be those of `serve`")
        case StoreError():
            return CommandFailed(str(error), hint="--store and --config must be those of `serve`")
    return None


class Commands(click.Group):
    """The root group: turns foreseen errors of any command into their ends."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of a pipe has seen enough, as in `| head`: that is no failure. Python
            # flushes stdout once more at its end; there must be nothing left to complain about.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(OK)
        except (ConfigError, Unreachable, Refused, UnknownAnswer, LedgerError, StoreError) as error:
            ending = failure(error)
            if ending is None:
                raise
            raise ending from error
