"""What was measured of the governor, in the shape of the JSON that is kept."""

from __future__ import annotations

import msgspec

from bench.load import Load
from bench.overload import OverloadResult


class PressedResult(msgspec.Struct, frozen=True):
    """One load: what the governor made of it. Level and window are means over the load;
    ``put_ratio`` is PUTs a second over their optimum at the windows in force."""

    size: str
    load_name: str
    load: Load
    level: float
    window_ms: float
    rungs: list[str]
    puts_per_s: float
    put_optimum_per_s: float
    put_ratio: float


class BudgetResult(msgspec.Struct, frozen=True):
    """A run with a budget and prices scaled up. ``spent_usd_per_month`` is what the time after the
    governor had settled would cost in a month; ``free_puts_per_s`` is the pace without a budget."""

    budget_usd_per_month: float
    spent_usd_per_month: float
    seconds: float
    puts_per_s: float
    free_puts_per_s: float
    window_ms: float
    target_bytes: int
    acked_per_s: float

    @property
    def error(self) -> float:
        """How far off the budget, as a share of it."""
        return self.spent_usd_per_month / self.budget_usd_per_month - 1


class SideResult(msgspec.Struct, frozen=True):
    """One turn of one of two daemons that are compared."""

    acked_per_s: float
    acked_per_cpu_s: float
    memory_peak_bytes: int
    memory_bound_bytes: int


class ComparedResult(msgspec.Struct, frozen=True):
    """Turns of two daemons on one core, in pairs: with what is measured, and without."""

    name: str
    size: str
    turns: list[tuple[SideResult, SideResult]]


class ImportSide(msgspec.Struct, frozen=True):
    """One import: its rate, its budget at the end, and the most that was in flight."""

    bytes_per_s: float
    budget_bytes: int
    peak_bytes: int


class ImportResult(msgspec.Struct, frozen=True):
    """Turns of imports on one daemon, in pairs: with the byte budget, and with everything in
    flight."""

    turns: list[tuple[ImportSide, ImportSide]]


class GovernorResults(msgspec.Struct):
    """All of them."""

    loads: list[PressedResult] = []
    budget: BudgetResult | None = None
    goodput: list[ComparedResult] = []
    imports: ImportResult | None = None
    overload: OverloadResult | None = None
    cost: ComparedResult | None = None
