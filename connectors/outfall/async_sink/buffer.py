"""The buffered entries of a partition in order, and their serialization between epochs."""

from __future__ import annotations

import base64
import heapq
import json
from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Generic, TypeVar

from outfall.errors import SerializationError
from outfall.serde import SimpleVersionedSerializer, parse_json

E = TypeVar("E")


class EntryBuffer(Generic[E]):
    """A queue to whose head failed entries return, each to its position.

    Entries in back-off are set aside, so that others pass them. With strict order they block the queue instead. Of the
    entries with the same key, all but the first are set aside too.
    """

    def __init__(self, *, ordered: bool) -> None:
        """Start empty. If `ordered`, no entry may pass an entry in back-off."""
        self._ordered = ordered
        self._ready: deque[BufferedEntry[E]] = deque()
        self._ready_bytes = 0
        self._whole: list[_Waiting[E]] = []
        """Requests to be sent again unchanged, by their first entry."""
        self._waiting: list[_Waiting[E]] = []
        """Entries in back-off: a heap by the end of the back-off."""
        self._unpaid: deque[_Waiting[E]] = deque()
        """Entries that wait for the retry budget, in the order in which their back-off ended."""
        self._paid_at: float | None = None
        """When the budget has a token again, at the latest."""
        self._followers: dict[Hashable, deque[BufferedEntry[E]] | None] = {}
        """By busy key: the entries after the one that is ready, waiting or in flight; `None` for none."""
        self.count = 0
        """Number of buffered entries, including those set aside."""
        self._next_number = 0

    def __iter__(self) -> Iterator[E]:
        """All entries in order."""
        return (item.entry for item in sorted(self._items(), key=_number))

    @property
    def oldest(self) -> float | None:
        """When the oldest entry was written; `None` if there is none."""
        return min((item.since for item in self._items()), default=None)

    @property
    def ready(self) -> int:
        """Number of entries that can be sent now."""
        if self._stopped:
            return 0
        whole = sum(len(part.items) for part in self._whole) if self._whole else 0
        return len(self._ready) + whole

    def fills(self, entries: int, size: int) -> bool:
        """Whether a request of this many entries or bytes can be sent now.

        Also one that need not be full, because it repeats a request or a part of one.
        """
        if self._stopped:
            return False
        ready = self._ready
        if len(ready) >= entries or self._ready_bytes >= size or self._whole:
            return True
        return bool(ready) and ready[0].largest_batch is not None

    @property
    def next_ready_at(self) -> float | None:
        """When the next entries have finished waiting for their back-off or the budget."""
        moments = [part.ready_at for part in self._waiting[:1]]
        if self._unpaid and self._paid_at is not None:
            moments.append(self._paid_at)
        return min(moments, default=None)

    @property
    def first_number(self) -> int | None:
        """The position of the entry at the head; `None` if no entry can be sent now."""
        if self._stopped or not (self._whole or self._ready):
            return None
        if not self._whole:
            return self._ready[0].number
        return self._whole[0].number if not self._ready else min(self._whole[0].number, self._ready[0].number)

    @property
    def next_number(self) -> int:
        """The position of the next entry to be added."""
        return self._next_number

    def _items(self) -> Iterator[BufferedEntry[E]]:
        """All entries, including those set aside."""
        aside = (part.items for part in chain(self._whole, self._waiting, self._unpaid))
        return chain(self._ready, *aside, *filter(None, self._followers.values()))

    @property
    def _stopped(self) -> bool:
        return self._ordered and (bool(self._waiting) or bool(self._unpaid))

    def add(self, entry: E, size: int, key: Hashable = None, since: float = 0.0) -> None:
        """Add an entry of `size` bytes, written at `since` in seconds, at the tail.

        Only one entry per key is in flight at a time; `None` is no key.
        """
        item = BufferedEntry(entry, size, self._next_number, since, key)
        self._next_number += 1
        self.count += 1
        if key is not None:
            if key in self._followers:
                followers = self._followers[key] = self._followers[key] or deque()
                followers.append(item)
                return
            self._followers[key] = None
        self._ready.append(item)
        self._ready_bytes += size

    def take(self, most: int, most_bytes: int) -> Batch[E] | None:
        """Take the entries of the next request from the head; `None` if nothing can be sent now.

        A total equal to a limit is allowed.
        """
        if self._stopped:
            return None
        if self._whole and (not self._ready or self._whole[0].number < self._ready[0].number):
            part = self._whole.pop(0)
            self.count -= len(part.items)
            return Batch(part.items, sum(item.size for item in part.items), part.request_id)
        items: list[BufferedEntry[E]] = []
        size = 0
        while self._ready:
            head = self._ready[0]
            if head.largest_batch is not None:
                most = min(most, head.largest_batch)
            if len(items) >= most or (items and size + head.size > most_bytes):
                break
            items.append(self._ready.popleft())
            size += head.size
        self.count -= len(items)
        self._ready_bytes -= size
        return Batch(items, size) if items else None

    def give_back(self, items: Sequence[BufferedEntry[E]]) -> None:
        """Return entries to their positions, to be sent at once."""
        self.count += len(items)
        self._insert(items)

    def set_aside(
        self,
        items: Sequence[BufferedEntry[E]],
        ready_at: float,
        *,
        request_id: int | None = None,
        charged: bool = False,
    ) -> None:
        """Return entries, in order, to the buffer, to be sent after a back-off that ends at `ready_at`.

        `request_id` is set if they remain one request. If `charged`, sending them takes a token from the budget.
        """
        self.count += len(items)
        heapq.heappush(self._waiting, _Waiting(ready_at, items[0].number, list(items), request_id, charged))

    def release(self, now: float, pay: Callable[[], float]) -> None:
        """Move the entries whose wait is over back to their positions.

        `pay` takes a token from the budget; it returns the seconds to wait if there is none.
        """
        while self._waiting and self._waiting[0].ready_at <= now:
            self._unpaid.append(heapq.heappop(self._waiting))
        while self._unpaid:
            wait = pay() if self._unpaid[0].charged else 0.0
            if wait > 0:
                self._paid_at = now + wait
                return
            self._return(self._unpaid.popleft())

    def _return(self, part: _Waiting[E]) -> None:
        for item in part.items:
            item.paid |= part.charged
        if part.request_id is None:
            self._insert(part.items)
        else:
            insort(self._whole, part, key=lambda whole: whole.number)

    def done(self, item: BufferedEntry[E]) -> None:
        """Release the next entry with the same key. The entry must have one."""
        followers = self._followers[item.key]
        if not followers:
            del self._followers[item.key]
            return
        follower = followers.popleft()
        # At the head, as if the previous entry had not blocked it: there is no order between keys.
        self._ready.appendleft(follower)
        self._ready_bytes += follower.size

    def _insert(self, items: Sequence[BufferedEntry[E]]) -> None:
        last = items[-1].number
        merged = list(items)
        while self._ready and self._ready[0].number < last:
            merged.append(self._ready.popleft())
        self._ready.extendleft(sorted(merged, key=_number, reverse=True))
        self._ready_bytes += sum(item.size for item in items)


@dataclass(slots=True)
class Batch(Generic[E]):
    """The entries of one request."""

    items: list[BufferedEntry[E]]
    size: int
    request_id: int | None = None
    """The id of a request that is sent again unchanged."""


@dataclass(slots=True)
class BufferedEntry(Generic[E]):
    """One buffered entry."""

    entry: E
    size: int
    number: int
    """Its position among all entries."""
    since: float = 0.0
    """When it was written."""
    key: Hashable = None
    """Only one entry per key is in flight at a time. `None` for no key."""
    tries: int = 0
    """How often it failed."""
    first_sent: float | None = None
    largest_batch: int | None = None
    """Maximum number of entries in its request, after a larger one was rejected."""
    paid: bool = False
    """Whether it has used a token of the budget."""


@dataclass(order=True, slots=True)
class _Waiting(Generic[E]):
    ready_at: float
    number: int
    items: list[BufferedEntry[E]] = field(compare=False)
    request_id: int | None = field(compare=False)
    charged: bool = field(compare=False)


def _number(item: BufferedEntry[E]) -> int:
    return item.number


@dataclass(frozen=True)
class BufferedRequests(Generic[E]):
    """The buffered entries of a partition, in order."""

    entries: Sequence[E]
    oldest: datetime | None = None
    """When the oldest entry was written, with time zone; `None` in states of version 1."""


class BufferedRequestsSerializer(SimpleVersionedSerializer[BufferedRequests[E]]):
    """JSON with the entries' bytes in base64, the version of their own serializer, and the time of the oldest.

    Version 1 had no time.

    Sizes are not stored: they follow from the entry, and the limits may have changed.
    """

    def __init__(self, entries: SimpleVersionedSerializer[E]) -> None:
        """Use this serializer for each entry."""
        self._entries = entries

    @property
    def version(self) -> int:
        return 2

    def serialize(self, value: BufferedRequests[E]) -> bytes:
        encoded = [base64.b64encode(self._entries.serialize(entry)).decode() for entry in value.entries]
        oldest = value.oldest.isoformat() if value.oldest else None
        stored = {"version": self._entries.version, "oldest": oldest, "entries": encoded}
        return json.dumps(stored, separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> BufferedRequests[E]:
        self.check_version(version)
        try:
            stored = parse_json(data)
            written_by = int(stored["version"])
            encoded = [base64.b64decode(text, validate=True) for text in stored["entries"]]
            oldest = datetime.fromisoformat(stored["oldest"]) if version > 1 and stored["oldest"] else None
        except (ValueError, KeyError, TypeError) as error:
            raise SerializationError("a stored request buffer is damaged", why=str(error)) from error
        return BufferedRequests([self._entries.deserialize(written_by, item) for item in encoded], oldest)
