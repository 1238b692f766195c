"""Why a source cannot be imported to its end: what a report says of it."""

from __future__ import annotations

from commands.client.records import SEVERAL_LINES_HINT, is_cut_off


class SourceProblem(Exception):
    """A source is missing, unreadable, damaged or not what it was. ``code`` is for programs."""

    code = "source"

    def __init__(self, problem: str, *, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class SourceMissing(SourceProblem):
    """Nothing is there, or nothing that can be read."""

    code = "missing"


class SourceChanged(SourceProblem):
    """A source is not the one whose beginning was imported: it is shorter, or begins otherwise."""

    code = "changed"


class SourceDamaged(SourceProblem):
    """Compressed data that cannot be read, or ends too early."""

    code = "damaged"


class InvalidRecord(SourceProblem):
    """A record that the topic cannot take. ``line`` counts from 1; None if it is not known.
    ``unit``: what positions count."""

    code = "invalid"

    def __init__(self, problem: str, position: int, line: int | None, unit: str = "byte") -> None:
        place = f"{unit} {position:,}" if line is None else f"line {line:,}"
        hint = "--invalid drop or --invalid TOPIC let the others pass"
        super().__init__(
            f"{place}: {problem}",
            hint=f"{SEVERAL_LINES_HINT}; {hint}" if is_cut_off(problem) else hint,
        )
        self.line = line
