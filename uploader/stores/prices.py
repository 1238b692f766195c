"""What a store charges: prices by class of store, in US dollars.

The defaults are Amazon's, us-east-1, without discounts. A *class* is S3's storage class, or a name
that the operator chose for a store with other prices. DELETE is free everywhere. Prices for storage
are left out: nothing in this program decides by them.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

GIB = 1 << 30
SECONDS_PER_MONTH = 30 * 86_400  # "a month" is 30 days wherever dollars are


class Prices(Struct, frozen=True):
    """The prices of one class; a configuration may leave out those per GiB."""

    put_usd_per_1000: float
    get_usd_per_1000: float
    list_usd_per_1000: float
    put_usd_per_gib: float = 0.0
    get_usd_per_gib: float = 0.0

    def put_class_usd(self, puts: float, lists: float, put_bytes: float) -> float:
        """What a budget limits: PUTs, the LISTs that S3 counts among them, and bytes put."""
        requests = puts * self.put_usd_per_1000 + lists * self.list_usd_per_1000
        return requests / 1_000 + put_bytes * self.put_usd_per_gib / GIB

    def usd(
        self, puts: float, gets: float, lists: float, put_bytes: float, get_bytes: float
    ) -> float:
        """What all of them cost."""
        reads = gets * self.get_usd_per_1000 / 1_000 + get_bytes * self.get_usd_per_gib / GIB
        return self.put_class_usd(puts, lists, put_bytes) + reads


FREE = Prices(0.0, 0.0, 0.0)
DEFAULT_PRICES: Mapping[str, Prices] = {
    "standard": Prices(0.005, 0.0004, 0.005),
    "express": Prices(0.00113, 0.00003, 0.00113, 0.0032, 0.0006),
    "free": FREE,
}


def default_class(store_url: str) -> str:
    """The class of a store that no configuration names."""
    return "standard" if store_url.startswith("s3://") else "free"
