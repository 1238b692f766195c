"""``headgate status``: the state of a running daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct

from commands.client.http import Client, Refused, Unreachable, decoded
from commands.figures import figure_lines, figure_table
from commands.live.degraded import needs_a_look, troubles
from commands.output import duration_text, echo_json, say, show
from commands.quantities import Duration
from commands.shell.exits import DEGRADED
from commands.shell.options import client_option, output_option
from daemon.schemas.standby import StandbyStatus
from daemon.schemas.status import ImportScaling, Status

T = TypeVar("T")
GROUPS_SHOWN_MAX = 8
IN_TITLE = ("uptime_s", "ready")
LABEL = 15  # the width of names of parts
SHARD_COLUMNS = (
    "shard", "pid", "cpu", "restarts", "heartbeat_age_ms", "ring_used_bytes",
    "requests_acked", "records_acked", "bytes_acked",
)  # fmt: skip


@click.command()
@click.option("--watch", "every_s", is_flag=False, flag_value="2s", type=Duration(0.1, 3_600),
              metavar="[DURATION]", help="Show it again and again, by default every 2s, until"
              " Ctrl-C.")  # fmt: skip
@client_option
@output_option
@click.pass_context
def status(
    context: click.Context, every_s: float | None, client: Client, as_json: bool
) -> None:  # fmt: skip
    """Show the state of the daemon, its store and its shards.

    Exit code 4 if the daemon is degraded; the reasons are on stderr.

    \b
    Examples:
      headgate status
      headgate status --url http://10.0.0.5:7440 -o json
      headgate status --watch 10s
    """
    if every_s is None:
        context.exit(_shown(client, as_json, show))
    try:
        while True:
            click.clear()
            try:
                _shown(client, as_json, _show_one)
            except (Refused, Unreachable) as error:
                if not client.reached:
                    raise
                say(str(error))  # a daemon that is started again, perhaps
            client.sleep_ms(every_s * 1000)
    except KeyboardInterrupt:
        pass  # how a person ends it: not a failure


def _show_one(value: T, as_json: bool, text: Callable[[T], str]) -> None:
    """One state of many: JSON takes a line."""
    if as_json:
        echo_json(msgspec.json.encode(value).decode())
    else:
        show(value, as_json, lambda value: text(value) + "\n")


def _shown(client: Client, as_json: bool, show: Callable[..., None]) -> int:
    """Shows the state as it is now. Returns the exit code."""
    answer = client.call("GET", "/v0/status")
    if "standby" in decoded(client, answer, dict[str, Any]):
        waits = decoded(client, answer, StandbyStatus)
        show(waits, as_json, _standby_text)
        if waits.standby.trouble:
            say(f"degraded: this standby could not take over: {waits.standby.trouble}")
        return 0 if waits.standby.able else DEGRADED
    found = decoded(client, answer, Status)
    show(found, as_json, _text)
    why = troubles(found)
    for trouble in why:
        say(f"degraded: {trouble}")
    return DEGRADED if why else 0


def _standby_text(status: StandbyStatus) -> str:
    uptime = duration_text(status.uptime_s * 1000) if status.uptime_s else "less than 1 s"
    lines = figure_lines(status.standby, f"{'standby':<{LABEL}}")
    return "\n".join([f"headgate {status.version}  STANDBY  up {uptime}", "", *lines])


def _text(status: Status) -> str:
    uptime = duration_text(status.uptime_s * 1000) if status.uptime_s else "less than 1 s"
    lines = [
        f"headgate {status.version}  {'ready' if status.ready else 'NOT READY'}  up {uptime}",
        "",
    ]
    parts = {name: getattr(status, name) for name in status.__struct_fields__}
    own = [name for name in parts if isinstance(parts[name], int | float) and name not in IN_TITLE]
    lines += figure_lines(status, f"{'daemon':<{LABEL}}", own)
    for name, part in parts.items():
        label = f"{name:<{LABEL}}"
        if isinstance(part, Struct):
            lines += figure_lines(part, label)
            part, label = getattr(part, "first", []), " " * LABEL
        for each in part if isinstance(part, list) else []:
            if needs_a_look(each) or isinstance(each, ImportScaling):
                lines += figure_lines(each, label)
    lines += [
        f"{'groups':<{LABEL}}{len(status.groups)}: {_groups(status)}",
        "",
        figure_table(status.shards, SHARD_COLUMNS),
    ]
    return "\n".join(lines)


def _groups(status: Status) -> str:
    shown = [
        f"{group.group} ({len(group.shards)} shard{'s' if len(group.shards) != 1 else ''})"
        for group in status.groups[:GROUPS_SHOWN_MAX]
    ]
    return ", ".join(shown) + (", ..." if len(status.groups) > GROUPS_SHOWN_MAX else "")
