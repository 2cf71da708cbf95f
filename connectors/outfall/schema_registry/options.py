"""How to reach a schema registry: addresses, credentials, TLS, proxy, and how long to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from outfall.errors import ConfigurationError
from outfall.options import Duration, Pairs, make_options, parse_names, parse_options
from outfall.serde import parse_json
from outfall.unencrypted_secrets import Sent, UnencryptedSecrets, given, secret_entries
from outfall.urls import split_server, split_url

_SCHEMES = ("http", "https")


class SchemaRegistryOptions(UnencryptedSecrets):
    """How to reach a schema registry with Confluent's API. Immutable and hashable; holds no connection."""

    owner: ClassVar[str] = "schema_registry"

    url: Annotated[tuple[str, ...], BeforeValidator(parse_names)] = Field(
        description="The registry: `https://host:port`, with its path if it has one; without credentials. Several"
        " separated by commas: the next one is asked if one does not respond.",
    )
    username: str | None = Field(default=None, description="The user of basic authentication, with `password`.")
    password: SecretStr | None = Field(
        default=None, description="The password. All secrets accept `env:NAME` and `file:PATH`, on each host."
    )
    bearer_token: SecretStr | None = Field(default=None, description="Sent as `Authorization: Bearer …`.")
    oauth2_token_url: str | None = Field(
        default=None,
        description="Token endpoint for OAuth2 client credentials (RFC 6749 §4.4). Each process has one token, renewed"
        " before it expires and once if the registry rejects it.",
    )
    oauth2_client_id: str | None = Field(default=None, description="OAuth2: the client id.")
    oauth2_client_secret: SecretStr | None = Field(default=None, description="OAuth2: the client secret.")
    oauth2_scope: str | None = Field(default=None, description="OAuth2: the scopes, separated by spaces.")
    headers: Pairs = Field(
        default={},
        description="Additional headers, such as Confluent Cloud's `target-sr-cluster`. Values are secrets.",
    )
    ca_bundle: str | None = Field(
        default=None, description="A file with the trusted certificates, on each host. Default: those of the system."
    )
    client_certificate: str | None = Field(default=None, description="A file with the client's certificate (PEM).")
    client_key: str | None = Field(
        default=None, description="A file with its key, not encrypted. Default: in `client_certificate`."
    )
    proxy: SecretStr | None = Field(
        default=None,
        description="`http://host:port` of a proxy, also with user and password. Default: `HTTPS_PROXY`, `HTTP_PROXY`"
        " and `NO_PROXY` of the process.",
    )
    request_timeout: Duration = Field(
        default=timedelta(seconds=10), description="Maximum time for one attempt of a request to one URL."
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=2), description="How long a request is repeated while no URL responds."
    )

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return options from what a user gives.

        Args:
            value: A URL, a mapping, or a JSON object with options.

        Raises:
            ConfigurationError: An option is wrong. The error names each wrong one and contains no secret.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                texts = parse_json(value)
            except ValueError:
                raise ConfigurationError(
                    "schema_registry is not a JSON object", do='set a URL, or for example {"url": "https://…"}'
                ) from None
            return parse_options(cls, texts)
        given = dict(value) if isinstance(value, Mapping) else {"url": value}
        urls = given.get("url")
        if isinstance(urls, list | tuple):
            # As one text, whose credentials an error masks.
            given["url"] = ",".join(map(str, urls))
        return make_options(cls, given)

    @field_validator("url")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            split_server(one, _SCHEMES, "an http or https URL", "use username, password and the other options")
        return tuple(one.rstrip("/") for one in value)

    @field_validator("oauth2_token_url")
    @classmethod
    def _token_url(cls, value: str | None) -> str | None:
        if value is not None and split_url(value).scheme not in _SCHEMES:
            raise ValueError("must be an http or https URL")
        return value

    @field_validator("proxy")
    @classmethod
    def _proxy(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("env:", "file:")):
            found = split_url(value.get_secret_value())
            if found.scheme not in _SCHEMES or not found.hostname:
                raise ValueError("must be an http or https URL")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        for first, second in (("username", "password"), ("oauth2_token_url", "oauth2_client_id")):
            if (getattr(self, first) is None) != (getattr(self, second) is None):
                raise ValueError(f"{first} and {second} must be given together")
        if self.client_key is not None and self.client_certificate is None:
            raise ValueError("client_key requires client_certificate")
        ways = [self.username, self.bearer_token, self.oauth2_token_url]
        if sum(way is not None for way in ways) > 1:
            raise ValueError("set only one of username with password, bearer_token and oauth2_token_url")
        return self

    def secrets_sent(self) -> Iterator[Sent]:
        secrets = given(self, "password", "bearer_token", "oauth2_client_secret")
        for url in self.url:
            yield Sent("url", url, (*secrets, *secret_entries("headers", self.headers)))
        if self.oauth2_token_url is not None:
            yield Sent("oauth2_token_url", self.oauth2_token_url, given(self, "oauth2_client_secret"))
        proxy = "" if self.proxy is None else self.proxy.get_secret_value()
        if not proxy.startswith(("env:", "file:")) and split_url(proxy).password is not None:
            yield Sent("proxy", proxy, ("its password",))

    def __hash__(self) -> int:
        headers = tuple(sorted((name, value.get_secret_value()) for name, value in self.headers.items()))
        return hash((self.url, self.username, self.password, self.bearer_token, self.proxy, headers))


def parse_registry(value: Any) -> Any:
    """Return `SchemaRegistryOptions` for an option of another model; `None` stays `None`."""
    return None if value is None else SchemaRegistryOptions.parse(value)
