"""The place of a change in the order of delivery: one decimal that grows with each change of a key.

A position in the source's log does not: it is that of the row's record and not of its commit, and rows of incremental
snapshots have none. Kafka keeps the order in which Debezium wrote the changes of a key, because all of them are in one
partition. So their offsets order them, within one life of the topic:

```
sequence = generation · 10^28 + offset · 10^9 + partition
```

The generation is 1 for the first life of a topic, and greater after something that made offsets incomparable: the topic
was created again, its partitions were added to, or another topic feeds the table. It also makes each of these sequences
greater than any position in a log, which has at most 19 digits. The partition tells whether a key has moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outfall.delivery_order import PER_GENERATION, PER_OFFSET
from outfall.errors import ConfigurationError

SEQUENCE_TYPE = "decimal(38,0)"
"""The type of sequences in Spark; in the table a decimal with 38 digits."""

_MOST_GENERATIONS = 10**10 - 1


@dataclass(frozen=True)
class TopicLife:
    """One life of a topic, within which offsets order the changes of a key."""

    generation: int
    """At least 1. Changes of a greater generation are newer."""
    name: str | None = None
    """The only topic whose records are changes; `None` if it is not known."""
    partitions: int | None = None
    """The number of partitions; `None` if it is not known."""

    def __post_init__(self) -> None:
        if not 1 <= self.generation < _MOST_GENERATIONS:
            raise ConfigurationError(
                f"the generation {self.generation} of the topic is not between 1 and {_MOST_GENERATIONS - 1}",
                do="begin with 1, and add 1 after the topic was created again",
            )


class DeliveryOrder(Protocol):
    """Finds out which life of a topic is read, such as `outfall.kafka.TopicGeneration`."""

    @property
    def generation(self) -> int:
        """The generation of the topic's life."""

    @property
    def topic(self) -> str:
        """The name of the topic."""

    def open(self) -> int:
        """Return the number of partitions. Called once per query, where the query is defined.

        Raises `OutfallError` if the topic is not the expected one, or the brokers do not respond.
        """


def found(order: int | DeliveryOrder) -> TopicLife:
    """Return the life of the topic: by its generation alone, or as the brokers know it."""
    if isinstance(order, int):
        return TopicLife(order)
    if callable(getattr(order, "open", None)):
        return TopicLife(order.generation, order.topic, order.open())
    raise ConfigurationError(
        f"order is a {type(order).__name__}",
        do="pass the generation of the topic, 1 for its first life, or outfall.kafka.TopicGeneration(…)",
    )


def sequence(generation: int, offset: str, partition: str) -> str:
    """Return, as SQL, the sequence of the record with an offset and a partition. It is exact."""
    first = f"cast('{generation * PER_GENERATION}' AS {SEQUENCE_TYPE})"
    offsets = f"cast({offset} AS decimal(19,0)) * cast({PER_OFFSET} AS decimal(10,0))"
    return f"cast({first} + {offsets} + cast({partition} AS decimal(10,0)) AS {SEQUENCE_TYPE})"
