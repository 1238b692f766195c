"""``headgate cursors``: list, show, create, set and delete cursors.

In the API, creating and setting are one PUT. Here they differ, as for topics: create refuses to
move a cursor that exists, and set refuses to create one, because its name is probably mistaken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from commands.client.cursors import all_cursors, cursor_of, cursor_path, put_cursor
from commands.client.http import Client, Refused
from commands.output import bytes_text, counted_text, show, table, time_text
from commands.shell.exits import CommandFailed
from commands.shell.options import client_option, output_option, yes_option
from daemon.schemas.api import CursorSetting, CursorState

Function = TypeVar("Function", bound=Callable[..., Any])
SHOWN_MAX = 4  # positions in a row of the list


def _partition_option(function: Function) -> Function:
    return click.option(
        "--partition", type=click.IntRange(0, 999), default=0, show_default=True, metavar="P",
        help="Of what the cursor follows.",
    )(function)  # fmt: skip


@click.group()
def cursors() -> None:
    """List, show, create, set and delete cursors.

    \b
    Examples:
      headgate cursors ls
      headgate cursors create warehouse
    """


@cursors.command("ls")
@client_option
@output_option
def cursors_ls(client: Client, as_json: bool) -> None:
    """List all cursors, those of routers too.

    \b
    Examples:
      headgate cursors ls
      headgate cursors ls -o json
    """
    show(list(all_cursors(client)), as_json, _list_text)


@cursors.command("show")
@click.argument("cursor")
@client_option
@output_option
def cursors_show(cursor: str, client: Client, as_json: bool) -> None:
    """Show where a cursor is.

    \b
    Example:
      headgate cursors show warehouse
    """
    show(cursor_of(client, cursor), as_json, _show_text)


@cursors.command("create")
@click.argument("cursor")
@click.option("--seq", type=click.IntRange(0), metavar="N", help="Where it begins, by default 0.")
@_partition_option
@client_option
@output_option
def cursors_create(
    cursor: str, seq: int | None, partition: int, client: Client, as_json: bool
) -> None:
    """Create a cursor.

    A cursor that exists is left as it is. With --seq, the command fails if it has already moved.

    \b
    Examples:
      headgate cursors create warehouse
      headgate cursors create warehouse --seq 1000 --partition 2
    """
    begin = [] if seq is None else [CursorSetting(seq, partition, expected=0)]
    try:
        made = put_cursor(client, cursor, begin)
    except Refused as error:
        if error.code != "cursor_moved":
            raise
        raise CommandFailed(
            f"cursor {cursor!r} exists and is at {error.detail.get('position')} in partition"
            f" {partition}",
            hint=f"`headgate cursors set {cursor}` moves it",
        ) from error
    show(made, as_json, _show_text)


@cursors.command("set")
@click.argument("cursor")
@click.option(
    "--seq", type=click.IntRange(0), required=True, metavar="N", help="Where to put the cursor."
)
@_partition_option
@click.option("--expected", type=click.IntRange(0), metavar="N", help="Only if it is here now.")
@client_option
@output_option
def cursors_set(
    cursor: str, seq: int, partition: int, expected: int | None, client: Client, as_json: bool
) -> None:
    """Put a cursor somewhere, also back.

    Requests on their way that expect it elsewhere are refused, and store nothing.

    \b
    Examples:
      headgate cursors set warehouse --seq 0
      headgate cursors set warehouse --seq 500 --expected 900 --partition 2
    """
    cursor_of(client, cursor)  # one that does not exist is not created
    now = put_cursor(client, cursor, [CursorSetting(seq, partition, expected)])
    show(now, as_json, _show_text)


@cursors.command("delete")
@click.argument("cursor")
@yes_option
@client_option
def cursors_delete(cursor: str, yes: bool, client: Client) -> None:
    """Delete a cursor.

    \b
    Example:
      headgate cursors delete warehouse --yes
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {cursor}? Whoever uses it loses its place.", abort=True, err=True)
    client.call("DELETE", cursor_path(cursor))


def _list_text(states: list[CursorState]) -> str:
    rows = []
    for state in states:
        shown = [f"{each.partition}:{each.seq}" for each in state.positions[:SHOWN_MAX]]
        more = len(state.positions) - SHOWN_MAX
        shown += [f"and {more} more"] if more > 0 else []
        rows.append([state.cursor, state.kind, " ".join(shown) or "0:0", *_source_cells(state)])
    return table(("cursor", "kind", "partition:position", "source", "lag"), rows)


def _source_cells(state: CursorState) -> tuple[str, str]:
    source = state.source
    if source is None:
        return "-", "-"
    if source.lag_records is not None:
        return source.name, counted_text(source.lag_records, "record")
    return source.name, "?" if source.lag_bytes is None else bytes_text(source.lag_bytes)


def _show_text(state: CursorState) -> str:
    rows = [[str(each.partition), str(each.seq)] for each in state.positions]
    head = table(("partition", "position"), rows or [["0", "0"]])
    lines = [f"cursor {state.cursor}, moved by: {state.kind}"]
    if state.source is not None:
        name, lag = _source_cells(state)
        lines.append(f"source {name}, lag: {lag}, as told at {time_text(state.source.told_ms)}")
    return "\n".join([*lines, "", head])
