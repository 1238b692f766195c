"""``headgate routers``: list, show, create, delete, pause and resume routers.

In the API, creating and changing are one PUT. Here they differ: ``create`` refuses a name that is
taken, unless the router is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click
import msgspec

from commands.client.http import Client, Refused, decoded
from commands.client.pages import pages
from commands.figures import figure_lines
from commands.output import count_text, show, table
from commands.shell.exits import CommandFailed
from commands.shell.filters import filter_options, filter_text, take_filter
from commands.shell.options import client_option, output_option, yes_option
from delivery.routers.schemas import RouterPage, RouterStatus
from ledger.delivery.record_filter import RecordFilter
from shards.boards.figures import RouterCounts


@click.group()
def routers() -> None:
    """List, show, create, delete, pause and resume routers.

    \b
    Examples:
      headgate routers ls
      headgate routers create errors --source events --dest alerts --tag 'error*'
    """


@routers.command("ls")
@client_option
@output_option
def routers_ls(client: Client, as_json: bool) -> None:
    """List all routers.

    \b
    Examples:
      headgate routers ls
      headgate routers ls -o json
    """
    show(list(_all(client)), as_json, _list_text)


@routers.command("show")
@click.argument("router")
@client_option
@output_option
def routers_show(router: str, client: Client, as_json: bool) -> None:
    """Show a router, what it is doing and how far it has got.

    \b
    Example:
      headgate routers show errors
    """
    show(_status(client, router), as_json, _show_text)


@routers.command("create")
@click.argument("router")
@click.option("--source", required=True, metavar="TOPIC", help="The topic that is copied.")
@click.option("--dest", required=True, metavar="TOPIC", help="The topic that gets the copies.")
@filter_options
@click.option(
    "--from", "start", metavar="PLACE", default="now", show_default=True,
    help="Where to begin: now, earliest, or after an offset (N,N,... for each partition).",
)  # fmt: skip
@click.option("--paused", is_flag=True, help="Copy nothing until it is resumed.")
@client_option
@output_option
def routers_create(
    router: str, source: str, dest: str, start: str, paused: bool, client: Client, as_json: bool,
    **filters: Any,
) -> None:  # fmt: skip
    """Create a router.

    Patterns are exact texts, or have * and ?. A router that exists with the same topics and the
    same filter is left as it is. With others the command fails and changes nothing.

    \b
    Examples:
      headgate routers create all --source orders --dest archive --from earliest
      headgate routers create errors --source events --dest alerts --tag 'error*'
      headgate routers create large --source orders --dest audit --where status=paid
    """
    wanted = take_filter(filters)
    place = _place(start)
    present = _present(client, router)
    if present is None:
        settings = {"source": source, "dest": dest, "filter": wanted, "from": place,
                    "paused": paused}  # fmt: skip
        show(_put(client, router, settings), as_json, _show_text)
        return
    is_same = present.filter == msgspec.convert(wanted, RecordFilter)
    if (present.source, present.dest) != (source, dest) or not is_same:
        raise CommandFailed(
            f"the router {router!r} exists: {present.source} -> {present.dest},"
            f" {filter_text(present.filter) or 'without a filter'}",
            hint="choose another name, or delete it first",
        )
    show(present, as_json, _show_text)


@routers.command("pause")
@click.argument("router")
@client_option
@output_option
def routers_pause(router: str, client: Client, as_json: bool) -> None:
    """Copy nothing until the router is resumed.

    \b
    Example:
      headgate routers pause errors
    """
    show(_put(client, router, {"paused": True}), as_json, _show_text)


@routers.command("resume")
@click.argument("router")
@client_option
@output_option
def routers_resume(router: str, client: Client, as_json: bool) -> None:
    """Continue a paused router where it was.

    \b
    Example:
      headgate routers resume errors
    """
    show(_put(client, router, {"paused": False}), as_json, _show_text)


@routers.command("delete")
@click.argument("router")
@yes_option
@client_option
def routers_delete(router: str, yes: bool, client: Client) -> None:
    """Delete a router; what it copied stays.

    \b
    Example:
      headgate routers delete errors --yes
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete the router {router}? Its copies stay.", abort=True, err=True)
    client.call("DELETE", _path(router))


def _path(router: str) -> str:
    return f"/v0/routers/{quote(router, safe=':')}"


def _all(client: Client) -> Iterator[RouterStatus]:
    for page in pages(client, "/v0/routers", RouterPage, lambda page: page.next_after):
        yield from page.routers


def _status(client: Client, router: str) -> RouterStatus:
    return decoded(client, client.call("GET", _path(router)), RouterStatus)


def _present(client: Client, router: str) -> RouterStatus | None:
    """A router; None if it does not exist."""
    try:
        return _status(client, router)
    except Refused as error:
        if error.status == 404:
            return None
        raise


def _put(client: Client, router: str, settings: dict[str, Any]) -> RouterStatus:
    body = client.call("PUT", _path(router), msgspec.json.encode(settings))
    return decoded(client, body, RouterStatus)


def _place(text: str) -> str | int | list[int]:
    """``earliest``, ``now``, an offset, or the offsets of all partitions."""
    if text in ("earliest", "now"):
        return text
    try:
        offsets = [int(each) for each in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"must be now, earliest, an offset or offsets with commas, got {text!r}",
            param_hint="--from",
        ) from None
    return offsets[0] if len(offsets) == 1 else offsets


def _list_text(found: list[RouterStatus]) -> str:
    rows = [
        [
            each.router, each.source, each.dest, filter_text(each.filter), each.state,
            count_text(each.lag), count_text(each.copied),
        ]
        for each in found
    ]  # fmt: skip
    return table(("router", "source", "dest", "filter", "state", "lag", "copied"), rows)


def _show_text(status: RouterStatus) -> str:
    state = status.state if not status.reason else f"{status.state}: {status.reason}"
    lines = [f"router {status.router}", f"  {status.source} -> {status.dest}"]
    if filters := filter_text(status.filter):
        lines.append(f"  only {filters}")
    counts = figure_lines(status, "  ", RouterCounts.__struct_fields__)
    lines += [f"  {state}", *counts, ""]
    rows = [
        [
            str(each.partition), str(each.position), str(each.head_seq),
            count_text(max(0, each.head_seq - each.position)),
        ]
        for each in status.positions
    ]  # fmt: skip
    return "\n".join([*lines, table(("partition", "position", "head seq", "lag"), rows)])
