"""Which serializer stores a sink's states."""

from __future__ import annotations

from typing import Any

from outfall.capabilities import SupportsPreCommitTopology, SupportsStateSerializer
from outfall.serde import JsonSerializer, SimpleVersionedSerializer


def state_serializer(sink: Any) -> SimpleVersionedSerializer[Any]:
    """The sink's own serializer, else JSON."""
    return sink.state_serializer() if isinstance(sink, SupportsStateSerializer) else JsonSerializer()


def hand_over_serializer(sink: Any) -> SimpleVersionedSerializer[Any]:
    """The serializer of what tasks hand over: write results before a pre-commit topology, else committables."""
    if isinstance(sink, SupportsPreCommitTopology):
        return sink.write_result_serializer()
    serializer: SimpleVersionedSerializer[Any] = sink.committable_serializer()
    return serializer
