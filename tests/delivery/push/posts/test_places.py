"""Places for POSTs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from delivery.push.posts.client import Places

STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), max_size=60)


@given(st.integers(1, 5), STEPS)
def test_places_are_as_many_as_there_are_and_one_for_each_endpoint(
    total: int, steps: list[tuple[bool, str]]
) -> None:
    places, held = Places(total), Counter[str]()
    for takes, endpoint in steps:
        if takes:
            expected = held.total() < total or not held[endpoint]
            assert places.take(endpoint) == expected
            held[endpoint] += expected
        elif held[endpoint]:
            places.give(endpoint)
            held[endpoint] -= 1
        places.check_invariants()
        assert places.taken == held.total()


def test_an_endpoint_that_hangs_cannot_keep_others_from_being_called() -> None:
    places = Places(2)
    assert [places.take("hangs") for _ in range(4)] == [True, True, False, False]
    assert all(places.take(f"other {number}") for number in range(10))
    assert not places.take("other 1")
    places.give("hangs")
    assert places.taken == 11
