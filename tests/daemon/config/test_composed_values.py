"""The key ``pressure_weights``: a table or text, of soft sensors only."""

from __future__ import annotations

import pytest

from daemon.config import ConfigError, Override, load
from daemon.config.composed_values import read_weights


@pytest.mark.parametrize(
    ("written", "weights"),
    [
        ("busy=0.5,store=0", {"busy": 0.5, "store": 0.0}),
        (" busy = 1 , ", {"busy": 1.0}),
        ("", {}),
        ({"ledger": 1, "ready": 0.25}, {"ledger": 1.0, "ready": 0.25}),
    ],
)
def test_weights_are_a_table_or_text(written: object, weights: dict[str, float]) -> None:
    assert read_weights(written) == weights


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("ring=0.5", "must not have 'ring': it is a hard sensor, which always counts fully"),
        ("bussy=1", "must have the sensors ready, scheduling, busy, uploads, store, ledger, not"),
        ("busy=1.5", "must be 0 to 1 for 'busy'"),
        ("busy=-1", "must be 0 to 1 for 'busy'"),
        ("busy=nan", "must be a finite number for 'busy'"),
        ({"busy": True}, "must be a number for 'busy'"),
        ("busy", "must be a table, or text like busy=0.5,store=0"),
        (7, "must be a table, or text like busy=0.5,store=0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(written: object, said: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        read_weights(written)
    assert str(refused.value).startswith(said)


def test_the_configuration_has_no_weights_by_default_and_names_the_key_in_its_errors() -> None:
    assert load(None, {}).pressure_weights == {}
    given = load(None, {"HEADGATE_PRESSURE_WEIGHTS": "busy=0.5"})
    assert given.pressure_weights == {"busy": 0.5}
    with pytest.raises(ConfigError, match=r"pressure_weights must not have 'disk'.*--set"):
        load(None, {}, [Override("pressure_weights", "disk=1")])
