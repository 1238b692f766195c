"""The root of the command: imports a subcommand when it is called, and ends it when it fails.

Subcommands that work on the store or the lake import libraries that take a second. So `--help`,
completion and every other subcommand go without them.
"""

from __future__ import annotations

import importlib
import keyword
import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from commands.shell.exits import OK, error_value, failure


class Commands(click.Group):
    """Finds the command NAME as the attribute NAME of the module ``commands.FOLDER.NAME``; a NAME
    that is a keyword of Python has an underscore after it there. ``summaries`` has the folder and
    the sentence of each."""

    def __init__(self, *, summaries: dict[str, tuple[str, str]], **options: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(context_settings=settings, **options)
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return [*self._summaries, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command; None if there is no such command."""
        if cmd_name not in self._summaries:
            return super().get_command(ctx, cmd_name)
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        folder, _ = self._summaries[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"commands.{folder}.{name}"), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(self._lines())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names without importing the commands."""
        own = click.Command.shell_complete(self, ctx, incomplete)
        names = [line for line in self._lines() if line[0].startswith(incomplete)]
        return [*(CompletionItem(name, help=summary) for name, summary in names), *own]

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an expected error becomes a sentence and an exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of a pipe has seen enough, as in `| head`: this is not a failure. Python
            # flushes stdout once more at its end; there must be nothing left to complain about.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(OK)
        except click.ClickException as error:
            _told_in_json(ctx, error)
            raise
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            ending = failure(error)
            if ending is None:
                raise
            _told_in_json(ctx, ending)
            raise ending from error

    def _lines(self) -> list[tuple[str, str]]:
        own = [(name, each.get_short_help_str(100)) for name, each in self.commands.items()]
        listed = [(name, summary) for name, (_, summary) in self._summaries.items()]
        return [*listed, *own]


def _told_in_json(context: click.Context, error: click.ClickException) -> None:
    """Prints an error as the JSON value of a command that was to print one, and has not."""
    from commands.output import JSON_ERRORS, print_json  # which no help needs

    if context.meta.get(JSON_ERRORS):
        print_json(error_value(error))
