"""Connections to Redis, the meaning of its errors, and the records in the target."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

import redis
from outfall.async_sink import ErrorAction
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.options import resolve_secret
from outfall.process_clients import ProcessClients
from outfall.versioned import RecordStore
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

RECORDS = "outfall:record:"
"""Before the key of a record."""

_PASSING = (
    "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "OOM", "READONLY",
    "TRYAGAIN", "UNBLOCKED",
)  # fmt: skip
"""How errors begin that pass: after a failover, when data is loaded, when there is memory or disk again."""
_REASONS = {
    "OOM": "the server is full (maxmemory) and its policy evicts nothing",
    "READONLY": "the server is a replica, perhaps after a failover",
    "LOADING": "the server is loading its data",
    "MASTERDOWN": "the replica has lost its master",
    "MISCONF": "the server cannot save its data to its disk",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write",
    "CLUSTERDOWN": "a part of the cluster is down",
}


def code_of(error: BaseException) -> str:
    """Return the first word of a server's error, which is its code, or the class of another error."""
    for kind, code in ((OutOfMemoryError, "OOM"), (ReadOnlyError, "READONLY"), (NoPermissionError, "NOPERM")):
        if isinstance(error, kind):  # the client removes the code from the text
            return code
    known = {"BusyLoadingError": "LOADING", "MasterDownError": "MASTERDOWN", "ClusterDownError": "CLUSTERDOWN",
             "MovedError": "MOVED", "AskError": "ASK", "TryAgainError": "TRYAGAIN"}  # fmt: skip
    if type(error).__name__ in known:
        return known[type(error).__name__]
    word = str(error).partition(" ")[0]
    return word if isinstance(error, ResponseError) and word.isupper() else type(error).__name__


def classify(error: BaseException) -> ErrorAction:
    """Classify an error of the client, or of one command."""
    code = code_of(error)
    if isinstance(error, AuthenticationError | AuthorizationError) or code in ("NOPERM", "NOAUTH", "WRONGPASS"):
        return ErrorAction.FATAL
    if isinstance(error, ConnectionError) and isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return ErrorAction.FATAL
    if isinstance(error, ConnectionError | TimeoutError | OSError | TransientError) or code in _PASSING:
        return ErrorAction.RETRY
    # A command that the server knows and rejects: the row is at fault.
    rejected = isinstance(error, ResponseError) and "unknown command" not in str(error).lower()
    return ErrorAction.DEAD_LETTER if rejected else ErrorAction.FATAL


def told(error: BaseException) -> str:
    """Return the error in the server's words, with what its code means."""
    code = code_of(error)
    return f"{code}: {_REASONS[code]}" if code in _REASONS else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class RedisAccess:
    """How to reach a server. Holds no connection."""

    url: str
    cluster: bool
    username: str | None
    password: SecretStr | None
    ca_bundle: str | None
    client_certificate: str | None
    client_key: str | None
    connect_timeout: float
    read_timeout: float

    def client(self) -> Any:
        """Return this process's client, which threads share. Raises as the client, or `ConfigurationError`."""
        return _clients.get(self)

    def renew(self, client: Any) -> None:
        """Let the next call of `client` look up the address again: after a failover another server may have it."""
        _clients.drop(self, client)

    def make(self) -> Any:
        """Create a client. That of a cluster connects, to look up the nodes."""
        more: dict[str, Any] = {}
        if self.url.startswith("rediss://"):
            # No certificate is accepted unchecked.
            more = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
            files = {"ssl_ca_certs": self.ca_bundle, "ssl_certfile": self.client_certificate,
                     "ssl_keyfile": self.client_key}  # fmt: skip
            more |= {name: path for name, path in files.items() if path}
        kind = redis.RedisCluster if self.cluster else redis.Redis
        return kind.from_url(
            self.url,
            username=self.username,
            password=None if self.password is None else resolve_secret(self.password),
            socket_connect_timeout=self.connect_timeout,
            socket_timeout=self.read_timeout,
            retry=Retry(NoBackoff(), 0),  # the base retries and counts
            **more,
        )


_clients = ProcessClients[RedisAccess]()


def place(url: str) -> str:
    """Return the host, the port and the database of a URL, as one name."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}/{parts.path.strip('/') or '0'}"


@contextmanager
def errors_of(access: RedisAccess, what: str) -> Iterator[Any]:
    """Give a client, and raise its errors as `OutfallError`s that say what failed."""
    client = None
    try:
        client = access.client()
        yield client
    except OutfallError:
        raise
    except (RedisError, OSError, ValueError) as error:
        if client is not None:
            access.renew(client)
        raise _translated(access, what, error) from error


def _translated(access: RedisAccess, what: str, error: Exception) -> OutfallError:
    text = f"Redis at {place(access.url)}: {what} failed"
    if isinstance(error, ValueError) and not isinstance(error, RedisError):
        return ConfigurationError(text, why=str(error), do="correct the url and the certificate files")
    if classify(error) is ErrorAction.RETRY:
        return TransientError(
            text, why=told(error), do="try again; if the error persists, check the server, its address and the network"
        )
    return TargetError(
        text, why=told(error), do="correct username, password, the certificates, or the permissions of the ACL user"
    )


class RedisRecords(RecordStore):
    """Records as strings, each replaced by a script."""

    _REPLACE = """
    local found = redis.call('GET', KEYS[1])
    if (found or '') ~= ARGV[1] then return 0 end
    if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
    return 1
    """

    def __init__(self, access: RedisAccess) -> None:
        """Keep records in this server."""
        self.where = f"redis:{place(access.url)}"
        self._access = access

    def read(self, name: str) -> str | None:
        with errors_of(self._access, f"reading the record {name}") as client:
            found = client.get(RECORDS + name)
        return None if found is None else found.decode(errors="backslashreplace")

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        with errors_of(self._access, f"writing the record {name}") as client:
            return bool(client.eval(self._REPLACE, 1, RECORDS + name, old or "", new or ""))
