"""KEDA's contract for external scalers: the gRPC service ``externalscaler.ExternalScaler``.

Messages and numbers of fields are those of the definition that KEDA publishes,
externalscaler.proto. They are built here, so there is neither a build step nor a generated file.
Each number has two fields, an integer for old versions of KEDA and a double; both are set.

Needs the extra ``keda``: only the command ``headgate scaler`` imports this module.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _BOOL = _Field.TYPE_STRING, _Field.TYPE_BOOL
_INTEGER, _DOUBLE = _Field.TYPE_INT64, _Field.TYPE_DOUBLE

# Message: (field, type or the name of a message, whether it is repeated), numbered from 1.
_MESSAGES: dict[str, list[tuple[str, int | str, bool]]] = {
    "ScaledObjectRef": [
        ("name", _TEXT, False),
        ("namespace", _TEXT, False),
        ("scalerMetadata", "ScaledObjectRef.ScalerMetadataEntry", True),
    ],
    "IsActiveResponse": [("result", _BOOL, False)],
    "MetricSpec": [
        ("metricName", _TEXT, False),
        ("targetSize", _INTEGER, False),
        ("targetSizeFloat", _DOUBLE, False),
    ],
    "GetMetricSpecResponse": [("metricSpecs", "MetricSpec", True)],
    "GetMetricsRequest": [
        ("scaledObjectRef", "ScaledObjectRef", False),
        ("metricName", _TEXT, False),
    ],
    "MetricValue": [
        ("metricName", _TEXT, False),
        ("metricValue", _INTEGER, False),
        ("metricValueFloat", _DOUBLE, False),
    ],
    "GetMetricsResponse": [("metricValues", "MetricValue", True)],
}


def _describe() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="externalscaler.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                added.type = kind
    # A map is a repeated message of keys and values.
    entry = file.message_type[0].nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for number, field in enumerate(("key", "value"), 1):
        entry.field.add(name=field, number=number, type=_TEXT, label=_Field.LABEL_OPTIONAL)
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()  # of our own, which other users of protobuf do not see
    pool.Add(_describe())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASS = _classes()
ScaledObjectRef = _CLASS["ScaledObjectRef"]
IsActiveResponse = _CLASS["IsActiveResponse"]
MetricSpec = _CLASS["MetricSpec"]
GetMetricSpecResponse = _CLASS["GetMetricSpecResponse"]
GetMetricsRequest = _CLASS["GetMetricsRequest"]
MetricValue = _CLASS["MetricValue"]
GetMetricsResponse = _CLASS["GetMetricsResponse"]
