"""The location of a recovery log in a database, as a URL: what belongs to the server, and what to the log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.options import nearest_name, parse_duration, resolve_secret
from outfall.recovery.log import check_step_id
from outfall.urls import split_url

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_LONGEST_TIMEOUT = timedelta(minutes=10)
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


@dataclass(frozen=True)
class LogOptions:
    """What belongs to the log, not to the server."""

    log: str = ""
    schema: str = ""
    prefix: str = "recovery"
    timeout: timedelta = timedelta(seconds=60)
    allow_unsafe: bool = False

    def tables(self) -> tuple[str, str]:
        """Return the names of the tables of entries and blobs."""
        return f"{self.prefix}_entries", f"{self.prefix}_blobs"

    def query(self, default: LogOptions) -> dict[str, str]:
        """Return what differs from the default, as parameters of a URL."""
        found = {name: str(getattr(self, name)) for name in ("log", "schema", "prefix")}
        found |= {"timeout": f"{self.timeout.total_seconds():g}", "allow_unsafe": str(self.allow_unsafe).lower()}
        same = {name: str(getattr(default, name)) for name in ("log", "schema", "prefix")}
        same |= {"timeout": f"{default.timeout.total_seconds():g}", "allow_unsafe": str(default.allow_unsafe).lower()}
        return {name: value for name, value in found.items() if value != same[name]}


def log_options(default: LogOptions, given: Mapping[str, Any]) -> LogOptions:
    """Check options and return them, with the default for those that are not given.

    Raises `ConfigurationError` if one is invalid.
    """
    options = {"log": default.log, "schema": default.schema, "prefix": default.prefix, **given}
    if options["log"]:
        check_step_id(options["log"])
    for name in ("schema", "prefix"):
        value = options[name]
        if (
            not isinstance(value, str)
            or (value and not _IDENTIFIER.fullmatch(value))
            or (name == "prefix" and not value)
        ):
            raise ConfigurationError(
                f"the {name} of the recovery log is {value!r}",
                do="use up to 40 ASCII letters, digits and '_', not beginning with a digit",
            )
    unsafe = options.get("allow_unsafe", default.allow_unsafe)
    if str(unsafe).lower() not in ("true", "false"):
        raise ConfigurationError(f"allow_unsafe of the recovery log is {unsafe!r}", do="use true or false")
    return LogOptions(
        options["log"], options["schema"], options["prefix"], _timeout(options.get("timeout", default.timeout)),
        str(unsafe).lower() == "true",
    )  # fmt: skip


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


def _timeout(value: object) -> timedelta:
    try:
        timeout = parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(
            "the timeout of the recovery log is invalid", why=str(error), do="use for example '60 seconds'"
        ) from None
    if timeout > _LONGEST_TIMEOUT:
        raise ConfigurationError(f"the timeout of the recovery log is {timeout}", do="use at most 10 minutes")
    return timeout
