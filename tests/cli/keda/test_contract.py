"""The messages of KEDA's contract, byte by byte as protoc's encoders make them of the published
definition."""

from __future__ import annotations

from typing import Any

import pytest

from commands.keda import contract

VECTORS: list[tuple[Any, str]] = [
    (
        contract.ScaledObjectRef(
            name="workers", namespace="shop", scalerMetadata={"topic": "orders"}
        ),
        "0a07776f726b657273120473686f701a0f0a05746f70696312066f7264657273",
    ),
    (contract.IsActiveResponse(result=True), "0801"),
    (contract.IsActiveResponse(result=False), ""),
    (
        contract.GetMetricSpecResponse(
            metricSpecs=[contract.MetricSpec(metricName="m", targetSize=100, targetSizeFloat=100)]
        ),
        "0a0e0a016d1064190000000000005940",
    ),
    (
        contract.GetMetricsRequest(
            scaledObjectRef=contract.ScaledObjectRef(name="w"), metricName="m"
        ),
        "0a030a017712016d",
    ),
    (
        contract.GetMetricsResponse(
            metricValues=[
                contract.MetricValue(metricName="m", metricValue=300, metricValueFloat=300)
            ]
        ),
        "0a0f0a016d10ac02190000000000c07240",
    ),
]


@pytest.mark.parametrize(("message", "expected"), VECTORS)
def test_a_message_is_the_bytes_of_the_published_definition(message: Any, expected: str) -> None:
    assert message.SerializeToString(deterministic=True).hex() == expected
    assert type(message).FromString(bytes.fromhex(expected)) == message


def test_fields_of_later_versions_are_ignored() -> None:
    later = bytes.fromhex("0a0177" + "fa0103616263")  # field 31, "abc"
    assert contract.ScaledObjectRef.FromString(later).name == "w"
