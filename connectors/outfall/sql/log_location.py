"""URLs of servers, without secrets: of the recovery log in a database, and of a sink that it is beside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.options import nearest_name, resolve_secret
from outfall.urls import is_here as names_this_host
from outfall.urls import split_url

REFERENCES = ("env:", "file:")
"""What a parameter begins with that names a secret."""


@dataclass(frozen=True)
class ServerUrl:
    """The server and database of a URL, and the parameters of the client, without secrets except references to them."""

    scheme: str
    place: str
    """User, hosts and database: `user@host:5432/database`."""
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        query = urlencode(self.parameters, quote_via=quote, safe=":/,")
        return f"{self.scheme}://{self.place}" + (f"?{query}" if query else "")

    def secret(self, name: str) -> str | None:
        """Return the value of a parameter that is a reference to a secret; `None` without the parameter.

        Raises `ConfigurationError` if it does not exist on this host.
        """
        given = self.parameters.get(name)
        return None if given is None else resolve_secret(SecretStr(given))


def is_here(host: str) -> bool:
    """Return whether a host, or the directory of a socket, is this machine; also for no host."""
    return not host or host.startswith(("/", "@")) or names_this_host(host)


def server_url(text: object, scheme: str, secrets: tuple[str, ...]) -> ServerUrl:
    """Parse the URL of a server.

    `secrets` are the parameters that must be `env:NAME` or `file:PATH`. Raises `ConfigurationError` if it is not a URL
    of this scheme, or contains a secret; the text shows nothing of it.
    """
    do = (
        f"write {scheme}://user@host/database, percent-encode other characters in it (@ as %40, / as %2F), and give the"
        f" password as {scheme}://user@host/database?password=env:NAME or by the client's own variables and files"
    )
    if not isinstance(text, str) or "://" not in text:
        raise ConfigurationError(f"a recovery location is not a {scheme} URL", do=do)
    try:
        split = split_url(text)
    except ValueError as error:
        raise ConfigurationError(f"a recovery location in {scheme}: is invalid", why=str(error), do=do) from None
    user, _, host = split.netloc.rpartition("@")
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    # A misspelled name of the password too.
    literal = [
        name
        for name, value in given.items()
        if (name in secrets or "passw" in name.lower()) and not value.startswith(REFERENCES)
    ]
    problem = None
    if literal or ":" in user:
        problem = "it contains a password, which would be shown wherever the location is"
    elif "@" in user or "@" in split.path or "@" in split.fragment or split.fragment or re.search(r"\s", text.strip()):
        problem = "it cannot be parsed"
    elif not unquote(split.path).strip("/") or "/" in split.path.strip("/"):
        problem = "it has no database"
    if problem:
        raise ConfigurationError(f"a recovery location in {scheme}: is invalid", why=problem, do=do)
    return ServerUrl(scheme, f"{user}@{host}{split.path}" if user else f"{host}{split.path}", given)


def split_options(
    url: ServerUrl, names: tuple[str, ...], known: tuple[str, ...] = ()
) -> tuple[ServerUrl, dict[str, str]]:
    """Separate the options of the log from the parameters of the client.

    With `known`, raises `ConfigurationError` if the client does not know a parameter.
    """
    own = {name: value for name, value in url.parameters.items() if name in names}
    rest = {name: value for name, value in url.parameters.items() if name not in names}
    for name in rest:
        if known and name not in known:
            near = nearest_name(name, (*known, *names))
            raise ConfigurationError(
                f"the recovery location in {url.scheme}: has an unknown option {name!r}",
                do=f"did you mean {near!r}?" if near else f"use only {', '.join(sorted((*known, *names)))}",
            )
    return ServerUrl(url.scheme, url.place, rest), own
