"""How a sink reaches its server: options that are also the key of the client of this process."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Self, TypedDict

from pydantic import Field, SecretStr

from outfall.options import Duration, SinkOptions
from outfall.process_clients import ProcessClients
from outfall.unencrypted_secrets import UnencryptedSecrets, UnencryptedSecretsSettings


class ConnectionOptions(SinkOptions):
    """The options of a connection. The options of the sink inherit them, and `of` returns them alone.

    It holds no connection and can be pickled. A subclass adds fields, `clients` and `make`.
    """

    clients: ClassVar[ProcessClients[Any]]
    """The clients of this process, by their options."""

    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="Maximum time to connect.")
    read_timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="Maximum time to wait for a response before the request is sent again.",
    )

    @classmethod
    def of(cls, options: SinkOptions) -> Self:
        """Return the connection of a sink whose options inherit this class. Equal connections share a client."""
        return cls.model_construct(**{name: getattr(options, name) for name in cls.model_fields})

    def make(self) -> Any:
        """Create a client. A connection with `clients` overrides it."""
        raise NotImplementedError

    def client(self) -> Any:
        """Return this process's client, which threads share. Raises as `make` does."""
        return self.clients.get(self)

    def renew(self, client: Any) -> None:
        """Let the next call of `client` create a new one, unless that has happened since `client` was returned."""
        self.clients.drop(self, client)


class ServerOptions(UnencryptedSecrets, ConnectionOptions):
    """The options of a connection to a server with users and certificates."""

    username: str | None = Field(default=None, description="The name of the user.")
    password: SecretStr | None = Field(
        default=None, description="The password; also `env:NAME` or `file:PATH`, which are read where they are used."
    )
    ca_bundle: str | None = Field(
        default=None, description="A file with the trusted certificates, on each host. Default: those of the system."
    )


class ConnectionSettings(TypedDict, total=False):
    """The fields of `ConnectionOptions` as keyword arguments of a sink's constructor."""

    connect_timeout: timedelta | float | str
    read_timeout: timedelta | float | str


class ServerSettings(UnencryptedSecretsSettings, ConnectionSettings, total=False):
    """The fields of `ServerOptions` as keyword arguments of a sink's constructor."""

    username: str | None
    password: SecretStr | str | None
    ca_bundle: str | None
