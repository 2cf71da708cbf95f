"""Connections to Redis, the meaning of its errors, and the records in the target."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

import redis
from outfall.async_sink import ErrorAction
from outfall.connections import ServerOptions
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.first_contact import UNTRUSTED, UnexpectedProtocolError, causes_of, never_passes
from outfall.options import known_values, resolve_secret
from outfall.process_clients import ProcessClients
from outfall.redaction import Redaction
from outfall.redis.packing import RECORDS, bulk
from outfall.tls import system_authorities
from outfall.unencrypted_secrets import Sent, given
from outfall.urls import split_server, stays_here
from outfall.versioned import RecordStore
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

_PASSING = (
    "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "OOM", "READONLY",
    "TRYAGAIN", "UNBLOCKED", "WAIT:",
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
    lost = isinstance(error, ConnectionError | RedisClusterException)
    if lost and any(isinstance(cause, ssl.SSLError) for cause in causes_of(error)):
        return ErrorAction.FATAL
    if isinstance(error, ConnectionError | TimeoutError | OSError | TransientError) or code in _PASSING:
        return ErrorAction.RETRY
    if isinstance(error, RedisClusterException):  # no node answers, or none has a slot
        return ErrorAction.FATAL if "not enabled" in str(error) else ErrorAction.RETRY
    # A command that the server knows and rejects: the row is at fault.
    rejected = isinstance(error, ResponseError) and "unknown command" not in str(error).lower()
    return ErrorAction.DEAD_LETTER if rejected else ErrorAction.FATAL


def summary(error: BaseException) -> str:
    """Return the error in the server's words, with what its code means."""
    code = code_of(error)
    return f"{code}: {_REASONS[code]}" if code in _REASONS else f"{type(error).__name__}: {error}"


class RedisConnection(ServerOptions):
    """The options of a connection to a server, a cluster or Sentinels."""

    clients = ProcessClients[Any]()

    url: str = Field(
        description="The server: `redis://host:port/database`, or `rediss://` for TLS. Without credentials."
    )
    cluster: bool = Field(
        default=False, description="Whether the server is a node of a Redis Cluster, whose other nodes are looked up."
    )
    sentinel: str | None = Field(
        default=None,
        min_length=1,
        description="The name of a master that Sentinels watch: `url` is then the address of a Sentinel, which names"
        " the master, also after a failover. Sentinels with a password of their own are not supported.",
    )
    wait_replicas: int = Field(
        default=0,
        ge=0,
        description="How many replicas must have a write before it counts (`WAIT`). With as many as can become the"
        " master, a failover loses no acknowledged write. Default: none.",
    )
    client_certificate: str | None = Field(default=None, description="A file with the client's certificate (PEM).")
    client_key: str | None = Field(default=None, description="A file with the key of that certificate.")

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        form = "redis://host:port/database, or rediss:// for TLS"
        database = split_server(value, ("redis", "rediss"), form).path.strip("/")
        if database and not database.isdecimal():
            raise ValueError("the path must be the number of a database")
        return value

    @model_validator(mode="after")
    def _connects(self) -> Self:
        if self.cluster and urlsplit(self.url).path.strip("/") not in ("", "0"):
            raise ValueError("a cluster has database 0 only")
        if self.cluster and self.sentinel is not None:
            raise ValueError("cluster and sentinel exclude each other: a cluster has no Sentinels")
        if self.client_key and not self.client_certificate:
            raise ValueError("client_key requires client_certificate")
        if (self.ca_bundle or self.client_certificate) and not self.url.startswith("rediss://"):
            raise ValueError("certificates require a url with rediss://")
        return self

    def secrets_sent(self) -> Iterator[Sent]:
        yield Sent("url", self.url, given(self, "password"))

    def _check_host(self, host: str) -> None:
        """Check a server that another one has named, before the password is sent there."""
        encrypted = self.url.startswith("rediss://") or self.allow_unencrypted
        if self.password is not None and not encrypted and not stays_here(host):
            raise ConfigurationError(
                f"the password would be sent to {host} without TLS",
                why=f"the server of the url, {place(self.url)}, names this host",
                do="set a url with rediss://, or where the network is trusted allow_unencrypted=true",
            )

    def make(self) -> Any:
        """Create a client. That of a cluster connects, to look up the nodes."""
        shared: dict[str, Any] = {
            "socket_connect_timeout": self.connect_timeout.total_seconds(),
            "socket_timeout": self.read_timeout.total_seconds(),
            "retry": Retry(NoBackoff(), 0),  # the base retries and counts
        }
        if self.url.startswith("rediss://"):
            # No certificate is accepted unchecked.
            shared |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
            files = {"ssl_ca_certs": self.ca_bundle or system_authorities(), "ssl_certfile": self.client_certificate,
                     "ssl_keyfile": self.client_key}  # fmt: skip
            shared |= {name: path for name, path in files.items() if path}
        own = {
            "username": self.username,
            "password": None if self.password is None else resolve_secret(self.password),
        }
        if self.sentinel is None:
            kind = redis.RedisCluster if self.cluster else redis.Redis
            client: Any = kind.from_url(self.url, **shared, **own)
            for node in client.get_nodes() if self.cluster else ():
                self._check_host(node.host)
            return client
        parts = urlsplit(self.url)
        shared |= {"ssl": parts.scheme == "rediss"}
        watching: Any = _Sentinel(self._check_host, [(parts.hostname, parts.port or 26379)], sentinel_kwargs=shared)
        return watching.master_for(self.sentinel, db=int(parts.path.strip("/") or 0), **shared, **own)

    @contextmanager
    def password_masked(self) -> Iterator[None]:
        """Mask the password in the errors of the client, in case a server repeats the command that it was in."""
        try:
            yield
        except Exception as error:
            Redaction(known_values(self.password)).clean(error)
            raise

    def node_of(self, key: bytes) -> Any:
        """Return the client of the server that has a key."""
        client = self.client()
        return client.get_redis_connection(client.get_node_from_key(key)) if self.cluster else client

    @property
    def patience(self) -> int:
        """How long replicas may take, in milliseconds: half as long as the connection waits for a response."""
        return max(1, int(self.read_timeout.total_seconds() * 500))

    def waiting(self) -> list[bytes]:
        """Return the command after writes whose response is the number of replicas that have them, if any must."""
        if not self.wait_replicas:
            return []
        return [b"*3\r\n%b%b%b" % (bulk("WAIT"), bulk(self.wait_replicas), bulk(self.patience))]

    def lacking(self, replicas: int) -> str | None:
        """Return why writes do not count yet that so many replicas have; `None` if they do."""
        if replicas >= self.wait_replicas:
            return None
        return f"WAIT: {replicas} replicas have the writes, and wait_replicas is {self.wait_replicas}"


def pipelined(node: Any, calls: Sequence[bytes]) -> list[Any]:
    """Send packed commands in one go, and return the response or the server's error of each.

    Raises the errors of the connection. A connection with responses that were not read is not used again.
    """
    connection = node.connection_pool.get_connection()
    read = False
    try:
        connection.send_packed_command(calls)
        found = [_response(connection) for _ in calls]
        read = True
        return found
    finally:
        if not read:
            connection.disconnect()
        node.connection_pool.release(connection)


def _response(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def place(url: str) -> str:
    """Return the host, the port and the database of a URL, as one name."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}/{parts.path.strip('/') or '0'}"


class _Sentinel(Sentinel):
    def __init__(self, check_host: Callable[[str], None], *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)  # type: ignore[no-untyped-call]
        self._check_host = check_host

    def discover_master(self, service_name: str) -> Any:
        try:
            host, port = super().discover_master(service_name)  # type: ignore[no-untyped-call]
            self._check_host(host)
            return host, port
        except MasterNotFoundError:
            # Its text shows the client, and not why the Sentinel does not respond. Asked again, that says it.
            for sentinel in self.sentinels:
                sentinel.sentinel_masters()
            raise MasterNotFoundError(f"no master {service_name!r} is known or up") from None


@contextmanager
def errors_of(access: RedisConnection, what: str) -> Iterator[Any]:
    """Yield a client, and translate its errors to `OutfallError`s that state what failed."""
    client = None
    try:
        with access.password_masked():
            client = access.client()
            yield client
    except OutfallError:
        raise
    except (RedisError, RedisClusterException, OSError, ValueError) as error:
        if client is not None:
            access.renew(client)
        raise _translated(access, what, error) from error


def _translated(access: RedisConnection, what: str, error: Exception) -> OutfallError:
    text = f"Redis at {place(access.url)}: {what} failed"
    if isinstance(error, InvalidResponse) or "Protocol Error: " in str(error):  # the client of a cluster repeats it
        error.__cause__ = UnexpectedProtocolError("the server does not speak Redis's protocol")
    if isinstance(error, ValueError) and not isinstance(error, RedisError):
        return ConfigurationError(text, why=str(error), do="correct the url and the certificate files")
    if classify(error) is ErrorAction.RETRY:
        return TransientError(
            text,
            why=summary(error),
            do="try again; if the error persists, check the server, its address and the network",
        )
    wrong = never_passes(error)
    do = "correct username, password, the certificates, or the permissions of the ACL user"
    if wrong is not None:
        do = f"{wrong.do}{' (ca_bundle)' if wrong is UNTRUSTED else ''}"
    told = str(error).lower()
    if access.cluster and ("not enabled" in told or "cluster support disabled" in told):
        do = "omit cluster: the server is a single one"
    elif access.sentinel is not None and "unknown command" in told and "sentinel" in told:
        do = "set url to a Sentinel, or omit sentinel: the server is none"
    return TargetError(text, why=summary(error), do=do)


class RedisRecords(RecordStore):
    """Records as strings, each replaced by a script."""

    _REPLACE = """
    local found = redis.call('GET', KEYS[1])
    if (found or '') ~= ARGV[1] then return 0 end
    if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
    return 1
    """

    def __init__(self, access: RedisConnection) -> None:
        """Keep records in this server."""
        self.where = f"redis:{place(access.url)}"
        self._access = access

    def read(self, name: str) -> str | None:
        with errors_of(self._access, f"reading the record {name}"):
            found = self._access.node_of(RECORDS + name.encode()).get(RECORDS + name.encode())
        return None if found is None else found.decode(errors="backslashreplace")

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        access, key = self._access, RECORDS + name.encode()
        with errors_of(access, f"writing the record {name}"):
            # On one connection: WAIT refers to the writes of its connection.
            with access.node_of(key).pipeline(transaction=False) as pipeline:
                pipeline.eval(self._REPLACE, 1, key, old or "", new or "")
                if access.wait_replicas:
                    pipeline.wait(access.wait_replicas, access.patience)
                replaced, *replicas = pipeline.execute()
            lacking = access.lacking(*replicas) if replicas else None
            if lacking is not None:
                raise TransientError(
                    f"{self.where}: writing the record {name} failed",
                    why=lacking,
                    do="start the replicas, or lower wait_replicas",
                )
            return bool(replaced)
