"""Tables of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "-"


def render(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two blanks apart; the first is left-aligned."""
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"a row has {len(row)} cells, the table {len(heads)} columns: {row}")
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = []
    for row in [heads, ["-" * width for width in widths], *rows]:
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def number(value: float | None) -> str:
    """A figure with three digits that count, whole above 100, thousands apart by commas."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
