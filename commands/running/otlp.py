"""``headgate otlp``: takes OTLP's logs over gRPC and forwards them to the daemon.

It keeps nothing: a request is answered when the daemon has answered it, and any number may run.
"""

from __future__ import annotations

import asyncio

import click

from commands.client.http import Client
from commands.shell.exits import USAGE, CommandFailed
from commands.shell.grpc_service import check_installed, listen_option
from commands.shell.options import client_option
from compaction.access.bearer import is_loopback


@click.command()
@click.argument("topic")
@listen_option("127.0.0.1:4317", "Where senders reach it")
@click.option(
    "--insecure-open",
    is_flag=True,
    help="With a token of its own, listen at an address other than loopback: all may append.",
)
@client_option
def otlp(client: Client, topic: str, listen: str, insecure_open: bool) -> None:
    """Take OTLP's logs over gRPC, and append them to TOPIC.

    Each request becomes one of the daemon's HTTP route for OTLP, with the token that its sender
    gives in the metadata (`authorization` or `x-api-key`), or else with this command's own. What
    the daemon refuses for now is UNAVAILABLE with a RetryInfo, which senders repeat. Needs the
    extra `grpc`. Runs until SIGTERM or Ctrl-C.

    \b
    Examples:
      headgate otlp logs
      headgate otlp logs --listen 127.0.0.1:4317 --url http://headgate:7440
    """
    check_installed("otlp", "grpc")
    host = listen.rpartition(":")[0].strip("[]")
    if client.address.headers and not (insecure_open or is_loopback(host)):
        raise CommandFailed(
            f"--listen must be a loopback address with a token of the command's own, got {listen}:"
            " whoever reaches it could append records with that token",
            hint="leave the token out, so that each sender gives its own, or add --insecure-open",
            exit_code=USAGE,
        )
    asyncio.run(_serve(client, topic, listen))


async def _serve(client: Client, topic: str, listen: str) -> None:
    from commands.running.otlp_server import LogsServer

    await LogsServer(client.url, client.address, topic).serve(
        listen, lambda where: f"OTLP over gRPC on {where}, for topic {topic} at {client.url}"
    )
