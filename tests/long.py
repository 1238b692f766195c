"""How many examples a property test runs: a fifth in ``make test``, all in ``make slow``.

`make slow` runs every property test again (hypothesis marks them) with all its examples.
"""

from __future__ import annotations

import os

LONG = os.environ.get("HEADGATE_LONG") == "1"


def examples(count: int) -> int:
    """``count`` in `make slow`, else a fifth of it."""
    return count if LONG else max(1, count // 5)
