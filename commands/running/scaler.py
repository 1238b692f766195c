"""``headgate scaler``: answers KEDA, which scales the consumers of subscriptions.

It is a process of its own, so that no shard loads gRPC. It keeps nothing: any number may run.
"""

from __future__ import annotations

import asyncio
import signal
from importlib import util

import click

from commands.client.http import Client
from commands.output import echo
from commands.shell.exits import CommandFailed
from commands.shell.options import client_option
from shards.clock import monotonic_ns

EXTRA = ("grpc", "google.protobuf")


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:7441",
    show_default=True,
    metavar="HOST:PORT",
    callback=lambda _, __, value: _address(value),
    help="Where KEDA reaches it; port 0 takes a free one.",
)
@client_option
def scaler(client: Client, listen: str) -> None:
    """Answer KEDA: how many consumers a subscription is worth.

    A gRPC server with KEDA's contract for external scalers. The metric is the drainable lag of
    `GET /v0/scaling`: lag that more consumers cannot drain does not ask for any. Needs the extra
    `keda`. Runs until SIGTERM or Ctrl-C.

    \b
    Examples:
      headgate scaler
      headgate scaler --listen 0.0.0.0:7441 --url http://headgate:7440
    """
    if not all(map(_installed, EXTRA)):
        raise CommandFailed(
            "headgate scaler needs grpcio and protobuf, which are not installed",
            hint="pip install 'headgate[keda]'",
        )
    asyncio.run(_serve(client.url, listen))


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (
        host
        and colon
        and port.isascii()
        and port.isdecimal()
        and len(port) <= 5
        and int(port) < 1 << 16
    ):
        raise click.BadParameter(f"must be HOST:PORT, got {text!r}")
    return text


def _installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package it is in
        return False


async def _serve(url: str, listen: str) -> None:
    from commands.keda.server import ScalerServer
    from commands.keda.signals import TIMEOUT_S, Signals

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with Client(url, timeout_s=TIMEOUT_S) as client:
        signals = Signals(client, monotonic_ns, lambda text: echo(text, err=True))
        server = ScalerServer(signals)
        try:
            port = await server.start(listen)
        except OSError as error:
            raise CommandFailed(
                str(error), hint="--listen is HOST:PORT; is another program there?"
            ) from error
        host = listen.rpartition(":")[0]
        echo(f"scaler listens on {host}:{port} and asks {url}", err=True)
        await stopped.wait()
        await server.stop()
        await signals.close()
