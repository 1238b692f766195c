"""``headgate bench``: the benchmark of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from commands.shell.exits import CommandFailed

CHECKOUT = Path(__file__).resolve().parents[2]


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(context: click.Context, /, arguments: tuple[str, ...]) -> None:
    """Measure this machine (needs the source checkout).

    It runs what `make bench` runs and passes all arguments on, --help too.

    \b
    Examples:
      headgate bench --quick
      headgate bench --list
    """
    if not (CHECKOUT / "bench" / "__main__.py").is_file():
        raise CommandFailed(
            f"{CHECKOUT} has no folder bench/, which only the source checkout has",
            hint="clone the repository and run `make bench` there",
        )
    command = [sys.executable, "-m", "bench", *arguments]
    context.exit(subprocess.run(command, cwd=CHECKOUT, check=False).returncode)
