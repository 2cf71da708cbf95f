"""Which states a part keeps, and which serializers store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import SupportsNamedStates, SupportsPreCommitTopology, SupportsStateSerializer
from outfall.recovery.entries import StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import load_value
from outfall.serde import JsonSerializer, SimpleVersionedSerializer


def state_names(sink: Any, part: str) -> Sequence[str]:
    """The names of a part's states: its own name, unless the sink keeps several."""
    return tuple(sink.state_names(part)) if isinstance(sink, SupportsNamedStates) else (part,)


def state_serializer(sink: Any, name: str) -> SimpleVersionedSerializer[Any]:
    """What stores the state of this name: the sink's own serializer, else JSON."""
    if isinstance(sink, SupportsNamedStates):
        return sink.named_state_serializer(name)
    return sink.state_serializer() if isinstance(sink, SupportsStateSerializer) else JsonSerializer()


def load_states(sink: Any, stored: Mapping[str, StoredValue], log: RecoveryLog | None) -> dict[str, Any]:
    """Give back recorded states; `log` is where large ones lie."""
    return {name: load_value(state_serializer(sink, name), value, log=log) for name, value in stored.items()}


def resume_state(sink: Any, part: str, states: Mapping[str, Any]) -> Any:
    """What a part is given back, of all states by name; `None` when it has none."""
    own = {name: states[name] for name in state_names(sink, part) if name in states}
    if isinstance(sink, SupportsNamedStates):
        return own or None
    return own.get(part)


def states_after(sink: Any, part: str, snapshot: Any) -> Mapping[str, Any]:
    """The states in what a part's `snapshot()` returned, by name."""
    return snapshot if isinstance(sink, SupportsNamedStates) else {part: snapshot}


def hand_over_serializer(sink: Any) -> SimpleVersionedSerializer[Any]:
    """The serializer of what tasks hand over: write results before a pre-commit topology, else committables."""
    if isinstance(sink, SupportsPreCommitTopology):
        return sink.write_result_serializer()
    serializer: SimpleVersionedSerializer[Any] = sink.committable_serializer()
    return serializer
