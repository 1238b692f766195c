"""``python -m tools.receiver PORT [LOG [SEED]]``."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.receiver.server import main

if __name__ == "__main__":
    given = sys.argv[1:]
    log = Path(given[1]) if len(given) > 1 and given[1] else None
    main(int(given[0]), log, int(given[2]) if len(given) > 2 else 1)
