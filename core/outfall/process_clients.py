"""Caches clients of services per process, because creating one takes longer than many tasks."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from outfall.redaction import Redaction

_MOST = 8


class _Access(Hashable, Protocol):
    """The way to reach a service. Equal objects share a client."""

    def make(self) -> Any: ...


A = TypeVar("A", bound=_Access)


class ProcessClients(Generic[A]):
    """Clients of this process, shared by its threads and tasks. Each is created on first use.

    Only the most recently used are kept, because an access that a task unpickles may differ from earlier ones. A child
    process creates its own clients.
    """

    def __init__(self, most: int = _MOST, *, environment: str | None = None) -> None:
        """Start empty, with a maximum number of clients.

        `environment` is the prefix of the variables that clients read: other values need other clients, such as those
        that a user corrects in a notebook.
        """
        self._most = most
        self._environment = environment
        self._after_fork()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Start empty: the connections belong to the parent, and its lock may be taken."""
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, access: A) -> Any:
        """Return the client of an access. Raises the error of its `make`; the next call then retries."""
        key = self._key(access)
        with self._lock:  # boto3 sessions must not be created in two threads at once
            client = self._made.get(key)
            if client is None:
                client = self._made[key] = access.make()
            self._made.move_to_end(key)
            if len(self._made) > self._most:
                self._made.popitem(last=False)
            return client

    def drop(self, access: A, client: Any) -> None:
        """Let the next call create a new client in place of this one, unless that has already happened."""
        key = self._key(access)
        with self._lock:
            if self._made.get(key) is client:
                del self._made[key]

    def _key(self, access: A) -> Hashable:
        if self._environment is None:
            return access
        return access, *sorted(item for item in os.environ.items() if item[0].startswith(self._environment))


def hide_secrets(client: Any, more: Iterable[str] = ()) -> None:
    """Remove secrets from the errors that a new boto3 client raises and returns, in case a server repeats them.

    `more` are secrets in its requests other than the credentials, such as a user's encryption key.
    """
    given = [value for value in more if value]

    def redaction() -> Redaction:
        # Not `get_frozen_credentials`, which may fetch new ones that were never sent.
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
        redaction().clean(exception)

    # A user's session may return an object that is not a boto3 client.
    if (events := getattr(getattr(client, "meta", None), "events", None)) is not None:
        events.register("after-call", answered)
        events.register("after-call-error", broke)


_PER_RECORD = ("Records", "RequestResponses", "Errors")
"""The fields with the errors of single records."""
_MESSAGES = ("Message", "ErrorMessage")
"""Not codes, because error handling depends on them."""
_SHORTEST = 8
"""Characters. AWS secrets have forty and more. A test secret may be a letter that occurs in every word."""
