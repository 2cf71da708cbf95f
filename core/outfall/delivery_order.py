"""The order of changes from Kafka: the decimal that holds it, and the lives of topics within which offsets order them.

```
sequence = generation · PER_GENERATION + offset · PER_OFFSET + partition
```
"""

from __future__ import annotations

from dataclasses import dataclass

from outfall.errors import ConfigurationError

PER_OFFSET = 10**9
"""The distance between the sequences of two offsets: more than a partition's number, which is the remainder."""

PER_GENERATION = 10**28
"""The distance between the sequences of two generations: more than any offset's. Also the least sequence."""

_MOST_GENERATIONS = 10**10 - 1


@dataclass(frozen=True)
class TopicLife:
    """One life of a topic, within which offsets order the changes of a key.

    Raises:
        ConfigurationError: The generation is out of range.
    """

    topic: str
    """The name of the topic."""
    generation: int = 1
    """At least 1. Changes of a greater generation are newer."""
    partitions: int | None = None
    """The number of partitions; `None` if it is not known."""

    def __post_init__(self) -> None:
        check_generation(self.generation, self.topic)


def check_generation(generation: object, topic: str | None = None) -> int:
    """Return a generation. Raises `ConfigurationError` if it is no number, or out of range."""
    if not isinstance(generation, int) or not 1 <= generation < _MOST_GENERATIONS:
        raise ConfigurationError(
            f"the generation {generation!r} of the topic {topic or ''}".rstrip()
            + f" is not between 1 and {_MOST_GENERATIONS - 1}",
            do="begin with 1, and add 1 after the topic was created again",
        )
    return generation
