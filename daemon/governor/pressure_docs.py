"""The tables of docs/pressure.md, made of SENSORS and RUNGS.

    python -m daemon.governor.pressure_docs docs/pressure.md

Each follows a marker ``<!-- NAME -->`` and ends at the next empty line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from daemon.config.sensors import SENSORS
from daemon.governor.ladder import RUNGS


def page(text: str) -> str:
    """The page with its tables as they should be."""
    for name, table in (("sensors", _sensors()), ("rungs", _rungs()), ("clients", _clients())):
        before, marker, rest = text.partition(f"<!-- {name} -->\n\n")
        text = before + marker + table + "\n" + re.sub(r"\A(\|[^\n]*\n)*\n?", "", rest)
    return text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _sensors() -> str:
    return _table(
        ("sensor", "unit", "0 up to", "1 from", "", "what it is"),
        [
            (
                f"`{each.name}`", each.unit, f"{each.zero:g}", f"{each.full:g}",
                "hard" if each.hard else "soft", each.source,
            )
            for each in SENSORS
        ],
    )  # fmt: skip


def _rungs() -> str:
    return _table(
        ("rung", "follows", "begins above", "ends below", "effect"),
        [
            (
                f"`{each.name}`",
                f"the {each.of}",
                f"{each.above:g}",
                f"{each.release:g}",
                each.effect,
            )
            for each in RUNGS
        ],
    )


def _clients() -> str:
    return _table(
        ("when", "what a client sees", "is anything lost?"),
        [
            ("no rung is in force", "each record is a frame of its own, 1 to 5 ms after its commit",
             "no"),
            *((f"`{rung.name}`", rung.client_sees, "no") for rung in RUNGS),
            ("a cap, a `ttl_ms` or a trim passes a cursor, at any pressure",
             "a tombstone with `gap_from` and `gap_to`", "what the topic's settings say"),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
