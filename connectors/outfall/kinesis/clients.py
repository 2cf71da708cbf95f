"""boto3 clients: one per process and set of options, shared by its threads and tasks, and never pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from outfall.process_clients import ProcessClients, hide_secrets


@dataclass(frozen=True)
class Access:
    """How a process reaches a service. Holds no client."""

    service: str
    region: str | None
    endpoint_url: str | None
    connect_timeout: float
    read_timeout: float
    connections: int

    def client(self) -> Any:
        """Return this process's client. Credentials come from boto3's own chain.

        Raises:
            BotoCoreError: none can be made.
            ValueError: likewise.
        """
        return _clients.get(self)

    def renew(self, client: Any) -> None:
        """Have the next call of `client` make a new one, with new credentials, unless that has happened already.

        boto3 renews by itself what expires, where the source says when. Keys in a file it reads once.
        """
        _clients.drop(self, client)

    def make(self) -> Any:
        """Make a client of its own."""
        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            max_pool_connections=self.connections,
            retries={"total_max_attempts": 1},  # the base retries, and counts
        )
        client = boto3.session.Session().client(
            self.service, region_name=self.region, endpoint_url=self.endpoint_url, config=config
        )
        hide_secrets(client)
        return client


_clients = ProcessClients[Access]()
