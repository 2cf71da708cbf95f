"""boto3 clients: one per process and set of options, shared by its threads, and never pickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from pydantic import SecretStr

from outfall.options import resolve_secret
from outfall.process_clients import ProcessClients, hide_secrets

SessionFactory = Callable[[], Any]
"""Makes a `boto3.session.Session`. Picklable, so that tasks can call it too."""

_TRIES = 1
"""Only ours are made again, so that each is seen. boto3 slows a client down all the same when S3 throttles it."""


@dataclass(frozen=True)
class Access:
    """How a process reaches S3. Holds no client; picklable."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    connections: int = 10
    sse_customer_key: SecretStr | None = None
    """What requests carry, that no text may show."""
    # Whether two are one is asked of them, but no hash: a data class with `__call__` has none.
    session_factory: SessionFactory | None = field(default=None, hash=False)

    def client(self) -> Any:
        """Return this process's client. Credentials come from `session_factory`, else from boto3's own chain."""
        return _clients.get(self)

    def renew(self, client: Any) -> None:
        """Have the next call of `client` make a new one, with new credentials, unless that has happened already."""
        _clients.drop(self, client)

    def make(self) -> Any:
        """Make a client of its own."""
        session = boto3.session.Session() if self.session_factory is None else self.session_factory()
        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            max_pool_connections=self.connections,
            retries={"mode": "adaptive", "total_max_attempts": _TRIES},
            s3={"addressing_style": "path" if self.path_style else "auto"},
        )
        client = session.client("s3", endpoint_url=self.endpoint_url, region_name=self.region, config=config)
        hide_secrets(client, [] if self.sse_customer_key is None else [resolve_secret(self.sse_customer_key)])
        return client


_clients = ProcessClients[Access]()
