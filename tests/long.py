"""How many examples a property test runs: a tenth in ``make test``, all in ``make slow``.

`make slow` runs every property test again (hypothesis marks them) with all its examples.
"""

from __future__ import annotations

import os

LONG = os.environ.get("HEADGATE_LONG") == "1"


def examples(count: int, *, fast: int | None = None) -> int:
    """``count`` in `make slow`, else ``fast``: a tenth of it, unless an example takes long."""
    return count if LONG else fast or max(min(count, 3), count // 10)
