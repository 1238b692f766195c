"""``headgate pressure``: why the level is what it is, and what the daemon does about it."""

from __future__ import annotations

import click

from commands.client.http import Client, decoded
from commands.output import bytes_text, duration_text, echo, show, table
from commands.shell.options import client_option, output_option
from daemon.governor.ladder import RUNGS
from daemon.schemas.api import Pressure, SensorStatus, Status

BAR_WIDTH = 8


@click.command()
@client_option
@output_option
def pressure(client: Client, as_json: bool) -> None:
    """Show why the level of pressure is what it is.

    The level is the largest of the hard sensors' pressures and the soft ones' times their weights.

    \b
    Examples:
      headgate pressure
      headgate pressure -o json
    """
    status = decoded(client, client.call("GET", "/v0/status"), Status)
    if as_json:
        show(status.pressure, as_json, lambda _: "")
    else:
        echo(_text(status))


def _text(status: Status) -> str:
    found = status.pressure
    rows = [
        (
            each.sensor,
            _value(each),
            "-" if each.shard is None else each.shard,
            _bar(each.pressure),
            f"{each.pressure:.2f}",
            "hard" if each.hard else f"{each.weight:g}",
            each.source,
        )
        for each in sorted(found.sensors, key=_counted, reverse=True)
    ]
    lines = [
        f"pressure  {found.level:.2f} {_bar(found.level)}  {_cause(found)}",
        f"steady    {found.steady_level:.2f}  the level that the commit window follows",
        f"window    {duration_text(status.window_ms)}",
        f"coalesce  {duration_text(found.coalesce_ms)}",
        f"scaling   {found.scaling} of 100: how much more CPU would help",
        f"memory    {_left(found.memory_left_bytes)}",
        "",
        table(("sensor", "value", "shard", "", "pressure", "weight", "what it is"), rows),
        "",
        table(
            ("rung", "on / off", "in force", "entered", "effect"),
            [
                (
                    rung.name,
                    f"{rung.above:g} / {rung.release:g}{_input(rung.of)}",
                    "yes" if rung.name in found.rungs else "-",
                    found.entered.get(rung.name, 0),
                    rung.effect,
                )
                for rung in RUNGS
            ],
        ),
    ]
    return "\n".join(lines)


def _counted(sensor: SensorStatus) -> float:
    """How much a sensor adds to the level."""
    return sensor.pressure if sensor.hard else sensor.weight * sensor.pressure


def _cause(found: Pressure) -> str:
    if not found.level:
        return "no sensor presses"
    worst = max(found.sensors, key=_counted)
    shard = "" if worst.shard is None else f" of shard {worst.shard}"
    return f"because of {worst.sensor}{shard} ({_value(worst)})"


def _value(sensor: SensorStatus) -> str:
    if sensor.raw is None:
        return "broken"
    if sensor.unit == "ms":
        return duration_text(sensor.raw)
    if sensor.unit == "times":
        return f"{sensor.raw:.1f}x"
    return f"{sensor.raw * 100:.0f}%"


def _left(count: int | None) -> str:
    return "not known" if count is None else f"{bytes_text(count)} left"


def _bar(pressure: float) -> str:
    full = round(pressure * BAR_WIDTH)
    return "#" * full + "." * (BAR_WIDTH - full)


def _input(of: str) -> str:
    return "" if of == "level" else f" {of}"
