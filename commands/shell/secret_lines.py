"""What is secret comes from files or standard input, never from the command line, which other users
of a machine can see. No message shows it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

FILE_BYTES_MAX = 64 << 10  # of secrets or headers: far more than the daemon takes


def secret_lines(option: str, path: str) -> list[tuple[int, str]]:
    """The lines of a file, or of standard input for ``-``, that are not empty, with their numbers.
    Raises click.BadParameter."""
    try:
        if path == "-":
            text = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise click.BadParameter(
                f"{path} has more than {FILE_BYTES_MAX} bytes", param_hint=option
            )
        lines = [line.strip() for line in text.decode().splitlines()]
    except OSError as error:
        raise click.BadParameter(
            f"cannot read {path}: {error.strerror}", param_hint=option
        ) from error
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is not UTF-8", param_hint=option) from None
    found = [(number, line) for number, line in enumerate(lines, 1) if line]
    if not found:
        raise click.BadParameter(f"{path} has no lines", param_hint=option)
    return found
