"""What ``headgate scaler`` and ``headgate otlp`` share: a gRPC server that serves until a signal.

Each is a process of its own, so that no shard loads gRPC. It needs the extra ``grpc``, which is
loaded by whoever makes the server, after ``check_installed``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from importlib import util
from typing import Any, TypeVar

import click

from commands.output import echo
from commands.shell.exits import CommandFailed

Command = TypeVar("Command", bound=Callable[..., Any])


class GrpcService:
    """``server``, which is a grpc.aio.Server, and how long it waits for calls at its end."""

    def __init__(self, server: Any, drain_s: float) -> None:
        self._server = server
        self._drain_s = drain_s

    async def start(self, address: str) -> int:
        """Listens; returns the port. Raises OSError."""
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        """Ends all calls."""
        await self._server.stop(self._drain_s)

    async def serve(self, listen: str, what: Callable[[str], str]) -> None:
        """Serves until SIGTERM or Ctrl-C. ``what`` says so, with the address."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        try:
            port = await self.start(listen)
        except OSError as error:
            raise CommandFailed(
                str(error), hint="--listen is HOST:PORT; is another program there?"
            ) from error
        echo(what(f"{listen.rpartition(':')[0]}:{port}"), err=True)
        await stopped.wait()
        await self.stop()


def listen_option(default: str, help_text: str) -> Callable[[Command], Command]:
    """``--listen``, checked."""
    return click.option(
        "--listen",
        default=default,
        show_default=True,
        metavar="HOST:PORT",
        callback=lambda _, __, value: _address(value),
        help=f"{help_text}; port 0 takes a free one.",
    )


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16
    if not (host and colon and is_port):
        raise click.BadParameter(f"must be HOST:PORT, got {text!r}")
    return text


def check_installed(command: str, *modules: str) -> None:
    """Raises CommandFailed unless what a command needs is there."""
    if not all(map(_installed, modules)):
        raise CommandFailed(
            f"headgate {command} needs grpcio and protobuf, which are not installed",
            hint="pip install 'headgate[grpc]'",
        )


def _installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package it is in
        return False
