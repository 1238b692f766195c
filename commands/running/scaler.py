"""``headgate scaler``: answers KEDA, which scales the consumers of subscriptions.

It keeps nothing: any number may run.
"""

from __future__ import annotations

import asyncio

import click

from commands.client.http import Client
from commands.output import echo
from commands.shell.grpc_service import check_installed, listen_option
from commands.shell.options import client_option
from shards.clock import monotonic_ns

EXTRA = ("grpc", "google.protobuf")


@click.command()
@listen_option("127.0.0.1:7441", "Where KEDA reaches it")
@client_option
def scaler(client: Client, listen: str) -> None:
    """Answer KEDA: how many consumers a subscription is worth.

    A gRPC server with KEDA's contract for external scalers. The metric is the drainable lag of
    `GET /v0/scaling`: lag that more consumers cannot drain does not ask for any. Needs the extra
    `grpc`. Runs until SIGTERM or Ctrl-C.

    \b
    Examples:
      headgate scaler
      headgate scaler --listen 0.0.0.0:7441 --url http://headgate:7440
    """
    check_installed("scaler", *EXTRA)
    asyncio.run(_serve(client, listen))


async def _serve(given: Client, listen: str) -> None:
    from commands.keda.server import ScalerServer
    from commands.keda.signals import TIMEOUT_S, Signals

    with given.another(TIMEOUT_S) as client:
        signals = Signals(client, monotonic_ns, lambda text: echo(text, err=True))
        await ScalerServer(signals).serve(
            listen, lambda where: f"scaler listens on {where} and asks {client.url}"
        )
        await signals.close()
