"""Keys belong to consumers as consistent hashing says, and move only where they must."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.partitioner import hashed_bytes
from delivery.subscriptions.window.members import NODES, HashRing, hash_of

KEYS = [f"order-{n}" for n in range(2_000)]
names = st.text(min_size=1, max_size=8)


def ring_of(*consumers: str) -> HashRing:
    ring = HashRing()
    for consumer in consumers:
        ring.join(consumer)
    return ring


@pytest.mark.parametrize(("key", "place"), [(b"payment", 0xFCF9E347), (b"", 0xC610FF71)])
def test_the_hash_is_the_published_one(key: bytes, place: int) -> None:
    """K1."""
    assert hash_of(key) == place


def test_a_long_key_belongs_to_whom_its_digest_belongs() -> None:
    """Hashing it whole takes 0.1 s for 1 MB, and each join asks for the owners of 500 keys."""
    ring = ring_of("a", "b", "c")
    nodes = sorted((hash_of(f"{name}-{n}".encode()), name) for name in "abc" for n in range(NODES))
    owners = set()
    for number in range(200):
        key = f"{'x' * 300}{number}"
        place = hash_of(hashed_bytes(key))
        expected = next((name for node, name in nodes if node >= place), nodes[0][1])
        assert ring.owner(key) == expected
        owners.add(expected)
    assert owners == {"a", "b", "c"}


def test_eight_consumers_have_similar_loads_whatever_their_names() -> None:
    """K2. Of 5,000 sets of names 8 have more, and 1.38 at most: nodes lie where the names put
    them."""
    rng = random.Random(2)
    loads = []
    for number in range(300):
        first, prefix = rng.randrange(1_000_000), rng.choice(("worker-", "pod-x7f-", "c", ""))
        digits = f"{rng.getrandbits(64):016x}"
        made = [f"{prefix}{first + n}" if number % 2 else f"{digits}-{n}" for n in range(8)]
        loads.append(8 * max(ring_of(*made).shares().values()))
    assert sum(load > 1.35 for load in loads) <= 3
    assert max(loads) <= 1.5 and median(loads) <= 1.2


def test_the_share_of_a_consumer_is_its_part_of_the_keys() -> None:
    ring = ring_of(*(f"worker-{n}" for n in range(8)))
    owners = [ring.owner(f"key-{n}") for n in range(20_000)]
    for name, share in ring.shares().items():
        assert owners.count(name) / len(owners) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("consumers", [1, 2, 5, 20])
def test_a_join_moves_keys_to_the_joiner_only_and_about_its_share(consumers: int) -> None:
    """K3."""
    ring = ring_of(*(f"worker-{n}" for n in range(consumers)))
    before = {key: ring.owner(key) for key in KEYS}
    ring.join("new")
    moved = [key for key in KEYS if ring.owner(key) != before[key]]
    assert {ring.owner(key) for key in moved} == {"new"}
    share = len(KEYS) / (consumers + 1)
    assert 0.5 * share <= len(moved) <= 1.6 * share


@given(st.sets(names, min_size=2, max_size=6), st.randoms())
def test_the_consumers_decide_and_not_their_order(consumers: set[str], rng: object) -> None:
    ring, other = ring_of(*sorted(consumers)), ring_of(*sorted(consumers, reverse=True))
    left = min(consumers)
    other.leave(left)
    other.join(left)
    assert [ring.owner(key) for key in KEYS[:50]] == [other.owner(key) for key in KEYS[:50]]
    other.check_invariants()


def test_of_two_consumers_with_a_node_at_one_place_the_name_decides() -> None:
    place = hash_of(b"worker-90-60")
    assert place == hash_of(b"worker-1277-93")
    key = next(
        key for key in map(str, range(100_000)) if 0 <= place - hash_of(key.encode()) < 1 << 18
    )
    for order in (("worker-90", "worker-1277"), ("worker-1277", "worker-90")):
        ring = ring_of(*order)
        assert ring.owner(key) == "worker-1277"
        ring.join("none", ["-"])
        assert ring.owner(key) == "worker-1277"
        ring.leave("worker-1277")
        assert ring.owner(key) == "worker-90"
        ring.check_invariants()


@given(st.sets(names, min_size=1, max_size=5), st.data())
def test_a_key_belongs_to_the_ring_of_those_that_accept_it(
    consumers: set[str], data: st.DataObject
) -> None:
    """K16: as if the others were not there."""
    picky = data.draw(st.sets(st.sampled_from(sorted(consumers))))
    ring, accepting = HashRing(), HashRing()
    for consumer in consumers:
        ring.join(consumer, ["order-1*", "ship?"] if consumer in picky else [])
        if consumer not in picky:
            accepting.join(consumer)
    everyone = ring_of(*consumers)
    for key in KEYS[:20]:
        accepts_all = key.startswith("order-1")
        assert ring.owner(key) == (everyone if accepts_all else accepting).owner(key)


def test_a_key_that_nobody_accepts_has_no_owner() -> None:
    ring = HashRing()
    assert ring.owner("payment") is None
    ring.join("a", ["eu-west-?"])
    assert (ring.owner("eu-west-1"), ring.owner("eu-west-12"), len(ring.shares())) == ("a", None, 1)
    ring.leave("a")
    assert ring.owner("eu-west-1") is None and "a" not in ring.shares()


def test_a_consumer_is_on_the_ring_once() -> None:
    ring = ring_of("a")
    with pytest.raises(ValueError, match="'a' is on the ring"):
        ring.join("a")
    ring.check_invariants()
    assert NODES == 100
