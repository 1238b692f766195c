"""The five bands: which effective priority is in which, and what each may use of a round.

=====  ==================  ========
band   effective priority  weight
=====  ==================  ========
4      750 and more        8
3      500 to 749          4
2      250 to 499          2
1      0 to 249            1
0      below 0             1
=====  ==================  ========

Credit is counted in bytes of cost. Each round gives each band ``weight x QUANTUM_BYTES``
(deficit round robin: Shreedhar and Varghese, SIGCOMM 1995). A turn costs what it turns out to cost,
so a band may overdraw its credit by one turn; the next rounds then give it less. What a band does
not use in a round is not kept.
"""

from __future__ import annotations

from bisect import bisect_right

from shards import layout as at

BANDS = at.BANDS
TOP = BANDS - 1
EDGES = (0, 250, 500, 750)  # EDGES[b] is the lowest priority of band b + 1
WEIGHTS = (1, 1, 2, 4, 8)

# What a turn may cost: 32 writes to idle watchers at 4 KiB each, about 0.2 ms of the loop. A round
# in which all bands are busy is 16 of them, about 3 ms.
QUANTUM_BYTES = 128 << 10
# A turn that wrote nothing has still used the loop. It also bounds the turns of a round: a band
# has at most weight x 32 of them.
TURN_COST_MIN_BYTES = 4 << 10


def band_of(priority: int) -> int:
    """The band of an effective priority."""
    return bisect_right(EDGES, priority)


class Credit:
    """What each band may still use of this round.

    Invariant: no band has more than one round's credit. A band's debt is below the cost of its
    last turn.
    """

    def __init__(self) -> None:
        self.left_bytes = [weight * QUANTUM_BYTES for weight in WEIGHTS]
        self.rounds = 1

    def choose(self, counts: list[int], others: list[int]) -> int:
        """The band to serve next: of those that have entries, by either count, the one with the
        largest share of its credit left, so that bands take turns within a round. -1 for none."""
        left = self.left_bytes
        while True:
            best, best_share, busy = -1, 0, False
            for band in _DOWN:
                if counts[band] or others[band]:
                    busy = True
                    share = left[band] * _SHARES[band]
                    if share > best_share:
                        best, best_share = band, share
            if best >= 0 or not busy:
                return best
            self._next_round([band for band in _DOWN if counts[band] or others[band]])

    def charge(self, band: int, cost_bytes: int) -> None:
        """Takes a turn's cost from its band."""
        self.left_bytes[band] -= max(cost_bytes, TURN_COST_MIN_BYTES)

    def check_invariants(self) -> None:
        """Raises AssertionError if a band has too much."""
        for left, most in zip(self.left_bytes, _ROUND_BYTES, strict=True):
            assert left <= most

    def _next_round(self, busy: list[int]) -> None:
        """Gives all bands the credit of as many rounds as one of the busy ones needs. These have
        none left; others lose what they have not used."""
        left = self.left_bytes
        rounds = min(-left[band] // _ROUND_BYTES[band] for band in busy) + 1
        for band in range(BANDS):
            credit = left[band] + rounds * _ROUND_BYTES[band]
            left[band] = min(credit, _ROUND_BYTES[band])
        self.rounds += rounds


_DOWN = tuple(range(TOP, -1, -1))
_ROUND_BYTES = tuple(weight * QUANTUM_BYTES for weight in WEIGHTS)
_SHARES = tuple(WEIGHTS[TOP] // weight for weight in WEIGHTS)
