"""Finds the records at fault among those that brokers refused together.

A broker appends a batch whole or not at all. If one record is invalid, it refuses the batch, and librdkafka reports the
error for each record of it. So a record counts as refused only if it was sent alone, or if its error can concern no
other record of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

Report = Callable[[int, str, str], None]
"""Called with a permanently rejected record: its index in its batch, Kafka's error name, and the error text."""


class SentRecord(NamedTuple):
    """A record that may have to be sent again."""

    record: tuple[Any, ...]
    """Topic, value, key and partition."""
    more: dict[str, Any]
    """Further arguments of librdkafka's `produce`."""
    own_topic: bool
    """Whether the row names its topic, so that another row may have another one."""
    report: Report
    row: int
    """Its index in its batch, for `report`."""


class RecordRefusal(NamedTuple):
    """Why a record was not written."""

    error: KafkaError
    own: bool
    """Whether the error concerns this record for certain, and not another one of its batch."""


Send = Callable[[Sequence[SentRecord]], Mapping[int, RecordRefusal]]
"""Sends records, waits for the brokers, and returns the refused ones by their positions. Raises other errors."""


def find_culprits(
    sent: Sequence[SentRecord],
    refusals: Mapping[int, RecordRefusal],
    send: Send,
    report: Callable[[SentRecord, KafkaError], None],
) -> None:
    """Send records again that were refused together, in halves down to single ones, and report those at fault.

    Records of one key keep their order: records of the key that were acknowledged after a refused one are sent again
    after it, and are duplicated. Records without a key may arrive after later ones.

    Args:
        sent: records that were sent in this order.
        refusals: those that were refused, by their positions.
        send: sends records again.
        report: takes each record at fault, with its error.
    """
    together = {position for position, refusal in refusals.items() if not refusal.own and len(sent) > 1}
    for position, refusal in sorted(refusals.items()):
        if position not in together:
            report(sent[position], refusal.error)
    again = _again(sent, together, refusals)
    half = (len(again) + 1) // 2
    for part in (again[:half], again[half:]):
        if part:
            find_culprits(part, send(part), send, report)


def _again(sent: Sequence[SentRecord], together: Collection[int], refused: Collection[int]) -> list[SentRecord]:
    """Return the records that must be sent again, in order."""
    keys = set()
    found = []
    for position, item in enumerate(sent if together else ()):
        topic, _, key, partition = item.record
        if position in together:
            keys.add((topic, key, partition))
            found.append(item)
        elif key is not None and position not in refused and (topic, key, partition) in keys:
            found.append(item)
    return found
