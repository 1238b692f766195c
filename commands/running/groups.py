"""``headgate groups``: the buddy tree of upload groups (``commands/live/group_tree.py``).

The shard whose turn it is has a star.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from commands.client.http import Client, decoded
from commands.live.group_tree import tree_rows
from commands.output import bytes_text, duration_text, show
from commands.shell.options import client_option, output_option
from daemon.schemas.api import GroupStatus, Status

MEMBERS_SHOWN_MAX = 16  # a longer list is shown as its range and the turn


@click.command()
@client_option
@output_option
def groups(client: Client, as_json: bool) -> None:
    """Draw the upload groups as a tree.

    A star marks the shard whose turn it is to upload.

    \b
    Example:
      headgate groups
    """
    status = decoded(client, client.call("GET", "/v0/status"), Status)
    show(status.groups, as_json, lambda found: draw(found, len(status.shards)))


def draw(groups: Sequence[GroupStatus], shard_count: int) -> str:
    """The tree over shards 0 to ``shard_count - 1``, one line a node."""
    rows = list(tree_rows(groups, shard_count, _describe))
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {text}".rstrip() for name, text in rows)


def _describe(group: GroupStatus) -> str:
    if len(group.shards) <= MEMBERS_SHOWN_MAX:
        turns = " ".join(
            f"{shard}*" if shard == group.turn else str(shard) for shard in group.shards
        )
    else:
        turns = f"{group.shards[0]}..{group.shards[-1]}, turn {group.turn}*"
    return (
        f"group {group.group}  [{turns}]  backlog {bytes_text(group.backlog_bytes)}"
        f"  uploaded {_ago(group.last_upload_age_ms)}  changed {_ago(group.last_change_age_ms)}"
        f"  splits {group.splits}  merges {group.merges}"
    )


def _ago(age_ms: float | None) -> str:
    return "never" if age_ms is None else f"{duration_text(age_ms)} ago"
