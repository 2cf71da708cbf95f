"""Clients of services, kept by a process: making one takes longer than many a task."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from outfall.redaction import Redaction

_MOST = 8


class _Access(Hashable, Protocol):
    """How a service is reached. Two that are equal share a client."""

    def make(self) -> Any: ...


A = TypeVar("A", bound=_Access)


class ProcessClients(Generic[A]):
    """The clients of this process, shared by its threads and tasks, each made when it is first asked for.

    Few are kept, those used last: what each task unpickles anew may count as another access. A child process makes its
    own.
    """

    def __init__(self, most: int = _MOST) -> None:
        """Keep nothing yet, and never more than so many."""
        self._most = most
        self._after_fork()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Begin anew: the parent's connections are the parent's, and its lock may be held."""
        self._lock = threading.Lock()
        self._made: OrderedDict[A, Any] = OrderedDict()

    def get(self, access: A) -> Any:
        """Return the client of an access. What its `make` raises is raised, and the next call tries again."""
        with self._lock:  # boto3's sessions may not be made in two threads at once
            client = self._made.get(access)
            if client is None:
                client = self._made[access] = access.make()
            self._made.move_to_end(access)
            if len(self._made) > self._most:
                self._made.popitem(last=False)
            return client

    def drop(self, access: A, client: Any) -> None:
        """Have the next call make a new client in place of this one, unless that has happened already."""
        with self._lock:
            if self._made.get(access) is client:
                del self._made[access]


def hide_secrets(client: Any, more: Iterable[str] = ()) -> None:
    """Take out of what a boto3 client raises and returns of errors whatever a server says back of secrets.

    Args:
        client: made just now.
        more: what its requests carry beside the credentials, such as a key of the user's own.
    """
    given = [value for value in more if value]

    def redaction() -> Redaction:
        # Not asked for by `get_frozen_credentials`, which may fetch new ones: those were not sent.
        held = vars(client._get_credentials() or object) if hasattr(client, "_get_credentials") else {}
        names = ("secret_key", "_secret_key", "token", "_token")
        found = [held[name] for name in names if isinstance(held.get(name), str)]
        return Redaction([*given, *(value for value in found if len(value) >= _SHORTEST)])

    def answered(parsed: dict[str, Any], **_: Any) -> None:
        failed = [parsed.get("Error"), *(item for name in _PER_RECORD for item in parsed.get(name) or ())]
        for error in failed:
            for name in _MESSAGES:
                if isinstance(error, dict) and isinstance(error.get(name), str):
                    error[name] = redaction().hide(error[name])

    def broke(exception: Exception, **_: Any) -> None:
        hidden = redaction()
        exception.args = tuple(hidden.hide(value) if isinstance(value, str) else value for value in exception.args)

    # A session of the user's own may give what is no client of boto3's.
    if (events := getattr(getattr(client, "meta", None), "events", None)) is not None:
        events.register("after-call", answered)
        events.register("after-call-error", broke)


_PER_RECORD = ("Records", "RequestResponses", "Errors")
"""Where services say it record by record."""
_MESSAGES = ("Message", "ErrorMessage")
"""Not codes: what is done about an error goes by them."""
_SHORTEST = 8
"""Characters. AWS's own secrets have forty and more; those of a test may be a letter that stands in every word."""
