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

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from outfall.delivery_order import PER_GENERATION, PER_OFFSET, TopicLife, check_generation
from outfall.errors import ConfigurationError
from outfall.spark.debezium.events import literal

SEQUENCE_TYPE = "decimal(38,0)"
"""The type of sequences in Spark; in the table a decimal with 38 digits."""


class DeliveryOrder(Protocol):
    """Finds out which lives of topics are read, such as `outfall.kafka.TopicGenerations`."""

    def open(self) -> Sequence[TopicLife]:
        """Return the life of each topic. Called once per query, where the query is defined.

        Raises `OutfallError` if a topic is not the expected one, or the brokers do not respond.
        """


class ReadTopics:
    """The topics whose records a query reads: those with a life each, or all of one generation."""

    def __init__(self, lives: Sequence[TopicLife], generation: int = 1) -> None:
        """Keep the lives. Without any, all topics have the generation."""
        self._lives = lives
        self._generations = _grouped((life.generation, life.topic) for life in lives) or {generation: []}

    def check_tables(self, tables: Iterable[str | None]) -> None:
        """Raise `ConfigurationError` if two topics of one generation have the changes of one table.

        `None` is the only table, whose name is not known.
        """
        for table in tables:
            for generation, topics in self._generations.items():
                if len(shared := _have(topics, table)) > 1:
                    raise ConfigurationError(
                        f"the topics {shared[0]} and {shared[1]} both have the changes of {table or 'one table'}, and"
                        f" the generation {generation}",
                        why="offsets order the changes of one topic only",
                        do="give the topic that took over the table a generation one greater, once the query has read"
                        " the other one to its end",
                    )

    def problems(self) -> list[tuple[str, str]]:
        """Return the conditions under which a record has no place in the order, with reasons and remedies."""
        if not self._lives:
            return []
        other = (
            "order does not have its topic, so nothing says which changes are newer: do not subscribe to it, or add it"
            " to order"
        )
        added = (
            "the topic has more than {} partitions, so keys have moved to others: see 'After an accident' in the recipe"
            " for change data"
        )
        counts = _grouped((life.partitions, life.topic) for life in self._lives if life.partitions is not None)
        return [
            (f"NOT {_is_in(life.topic for life in self._lives)}", other),
            *((f"{_is_in(topics)} AND partition >= {count}", added.format(count)) for count, topics in counts.items()),
        ]

    def sequence(self) -> str:
        """Return, as SQL, the sequence of a record. It is exact."""
        first = {number: f"cast('{number * PER_GENERATION}' AS {SEQUENCE_TYPE})" for number in self._generations}
        # One CASE over the topics of each generation: its depth does not grow with them.
        cases = " ".join(f"WHEN {_is_in(topics)} THEN {first[number]}" for number, topics in self._generations.items())
        start = f"CASE {cases} END" if len(first) > 1 else next(iter(first.values()))
        offsets = f"cast(offset AS decimal(19,0)) * cast({PER_OFFSET} AS decimal(10,0))"
        return f"cast({start} + {offsets} + cast(partition AS decimal(10,0)) AS {SEQUENCE_TYPE})"


def found(order: int | Mapping[str, int] | DeliveryOrder) -> ReadTopics:
    """Return the topics that are read: by generations alone, or as the brokers know them."""
    if isinstance(order, int):
        return ReadTopics([], check_generation(order))
    if isinstance(order, Mapping) and order:
        return ReadTopics([TopicLife(topic, generation) for topic, generation in order.items()])
    if not isinstance(order, Mapping) and callable(getattr(order, "open", None)):
        return ReadTopics(order.open())
    raise ConfigurationError(
        f"order is a {type(order).__name__}" + (" without topics" if isinstance(order, Mapping) else ""),
        do="pass the generation of the topics, 1 for their first life, a generation for each topic, or"
        " outfall.kafka.TopicGenerations(…)",
    )


def _grouped(pairs: Iterable[tuple[int, str]]) -> dict[int, list[str]]:
    groups: dict[int, list[str]] = {}
    for number, topic in pairs:
        groups.setdefault(number, []).append(topic)
    return groups


def _have(topics: Sequence[str], table: str | None) -> list[str]:
    """Return the topics that are named after a table; all without one."""
    if table is None:
        return list(topics)
    # In names of topics, characters that Kafka does not take are underscores.
    name = re.sub("[^a-zA-Z0-9._-]", "_", table)
    return [topic for topic in topics if f".{topic}".endswith(f".{name}")]


def _is_in(topics: Iterable[str]) -> str:
    return f"topic IN ({', '.join(map(literal, topics))})"
