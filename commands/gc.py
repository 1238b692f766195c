"""``headgate gc``: deletes what nothing needs any more."""

from __future__ import annotations

from typing import Any

import click

from commands.check import collect, collect_text
from commands.shell.exits import FAILED
from commands.shell.options import loaded, output_option, place_options
from commands.shell.output import print_json


@click.command()
@place_options
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted; write nothing.")
@click.option(
    "--accept-clock", is_flag=True, help="Trust the wall clock again after `status` says it jumped."
)
@output_option
@click.pass_context
def gc(
    context: click.Context, /, dry_run: bool, accept_clock: bool, as_json: bool, **options: Any
) -> None:
    """Delete objects and files that nothing needs any more.

    These are objects whose records are compacted, evicted or of deleted topics; objects that were
    never committed; and old snapshots and dropped files of the lake. Each is kept for gc_grace_ms
    first. Works with and without a running daemon. Exit code 1 if the lake has a problem.

    \b
    Examples:
      headgate gc --data /var/lib/headgate --dry-run
      headgate gc --data /var/lib/headgate
    """
    if dry_run and accept_clock:
        raise click.UsageError("--dry-run writes nothing, so it excludes --accept-clock")
    report = collect(loaded(**options), dry_run=dry_run, accept_clock=accept_clock)
    if as_json:
        print_json(report)
    else:
        click.echo(collect_text(report))
    context.exit(0 if report.sound else FAILED)
