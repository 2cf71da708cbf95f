"""Secrets on connections without TLS: none is sent to another host, unless the user permits it. One rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self, TypedDict

from pydantic import Field, SecretStr, model_validator

from outfall.options import SinkOptions
from outfall.secret_values import names_a_secret
from outfall.urls import is_overheard, split_url

_WITH_TLS = {"http": "https", "redis": "rediss"}


class Sent(NamedTuple):
    """What requests to a URL contain."""

    option: str
    """The option with the URL."""
    url: str
    secrets: tuple[str, ...]
    """The options with secrets, or what they are; empty without one."""


class UnencryptedSecrets(SinkOptions):
    """The options of connections to URLs that may contain secrets. A subclass says which, in `secrets_sent`."""

    allow_unencrypted: bool = Field(
        default=False,
        description="Whether secrets may be sent [without TLS](apis.md#secrets) to another host. Others on the network"
        " can read them then.",
    )

    def secrets_sent(self) -> Iterable[Sent]:
        """Return for each URL of these options what is sent there. Reads no secret."""
        return ()

    def may_send(self, sent: Sent) -> bool:
        """Return whether something may be sent to its URL."""
        return self.allow_unencrypted or not sent.secrets or not is_overheard(sent.url)

    @model_validator(mode="after")
    def _are_encrypted(self) -> Self:
        for sent in self.secrets_sent():
            if not self.may_send(sent):
                raise ValueError(
                    f"{sent.option} must be {_WITH_TLS.get(split_url(sent.url).scheme, 'encrypted')}, because requests"
                    f" contain a secret: {sent.secrets[0]}. Where the network is trusted, set allow_unencrypted=true"
                )
        return self


class UnencryptedSecretsSettings(TypedDict, total=False):
    """The field of `UnencryptedSecrets` as a keyword argument of a sink's constructor."""

    allow_unencrypted: bool


def given(options: SinkOptions, *names: str) -> tuple[str, ...]:
    """Return which of these options are set."""
    return tuple(name for name in names if getattr(options, name) is not None)


def secret_entries(option: str, entries: Mapping[str, SecretStr]) -> Iterator[str]:
    """Yield the entries of a mapping that hold secrets: by their names, or since they are given as references."""
    for name, value in entries.items():
        if names_a_secret(name) or value.get_secret_value().startswith(("env:", "file:")):
            yield f"{name} of {option}"
