"""``headgate handover``: the owner ends, and a standby takes over without waiting."""

from __future__ import annotations

import click
import msgspec

from commands.output import show
from commands.shell.exits import UNREACHABLE, CommandFailed
from commands.shell.options import config_option, data_option, loaded, output_option
from compaction.access.http_calls import DaemonRefused, DaemonUnreachable, call, socket_address
from daemon.schemas.api import HandedOver

TIMEOUT_S = 60.0  # the daemon gives a standby 45 s


@click.command()
@config_option
@data_option
@output_option
def handover(config_file: str | None, data: str | None, as_json: bool) -> None:
    """Drain the daemon, and let its standby take over immediately.

    It is run on the owner's machine. Producers that retry see no error. Afterwards the daemon ends
    with code 0; if it was started with --standby, it goes on as a standby instead.

    \b
    Examples:
      headgate handover --data /var/lib/headgate
      headgate handover --config /etc/headgate/headgate.toml
    """
    address = socket_address(loaded(config_file, (), data, None).data_dir)
    try:
        answer = call(address, "POST", "/v0/admin/handover", b"{}", once=True, timeout_s=TIMEOUT_S)
    except DaemonUnreachable as error:
        raise CommandFailed(
            str(error), hint="--data is the data directory of the owner, on its machine",
            exit_code=UNREACHABLE,
        ) from error  # fmt: skip
    except DaemonRefused as error:
        raise CommandFailed(error.message) from error
    handed = msgspec.json.decode(answer, type=HandedOver)
    show(handed, as_json, lambda _: "a standby takes over; this daemon drains")
