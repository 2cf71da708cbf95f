"""pyiceberg's catalog, opened once per process, with translated errors and masked secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.filesystems import remedy, sync_directory
from outfall.iceberg.files import DURABLE_IO, is_local
from outfall.options import known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.store_errors import Operation, explained
from outfall.tables.allowed import pattern_of
from outfall.urls import MASK, masked

_SECRET = re.compile(r"(secret|password|token|credential|key|sas|auth|header|cert)", re.IGNORECASE)
_PROOF = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE)
"""The value of a header of a request, as a catalog repeats it."""
_PLACE = re.compile(r"warehouse|.*(location|path)")
"""Properties that may begin with `file:` as the URL of a directory."""

_DENIED = (UnauthorizedError, ForbiddenError, OAuthError)
_PASSING = (
    AuthorizationExpiredError, ServiceUnavailableError, ServerError, TooManyRequestsError, WaitingForLockException,
)  # fmt: skip
_PASSING_NAMES = {
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
    "requests.exceptions.ChunkedEncodingError",
    "sqlalchemy.exc.OperationalError",
    "sqlalchemy.exc.InterfaceError",
    "sqlalchemy.exc.TimeoutError",
    "botocore.exceptions.HTTPClientError",
    "thrift.transport.TTransport.TTransportException",
}
"""By name, because the installed packages depend on the catalog."""


class Catalogue:
    """A catalog with its name and properties. Pickled without open resources, and opened again where it is used."""

    def __init__(self, name: str, options: Mapping[str, SecretStr]) -> None:
        """Describe the catalog without opening it."""
        self.name = name
        self._options = dict(options)
        self._opened: Catalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def place(self) -> str:
        """Its location without credentials, as far as the configuration contains it."""
        configured: Mapping[str, Any] = Config().get_catalog_config(self.name) or {}
        for name in ("uri", "glue.id", "warehouse"):
            known = self._value(name, self._options[name]) if name in self._options else configured.get(name)
            if known:
                return masked(str(known)).rstrip("/")
        return self.name

    @property
    def opened(self) -> Catalog:
        """The open pyiceberg catalog. Files of its tables on a disk are durable once written."""
        if self._opened is None:
            opened = load_catalog(self.name, **self._resolved())
            if is_local(opened.properties.get("warehouse", "")):
                opened.properties.setdefault(PY_IO_IMPL, DURABLE_IO)
            self._opened = opened
        return self._opened

    def load(self, identifier: str) -> Table | None:
        """Load a table; `None` if it does not exist.

        Loaded files are made durable: their writer may have died before.
        """
        with self.translated_errors(f"table {identifier} could not be loaded"):
            self.make_durable()
            try:
                return self.opened.load_table(identifier)
            except NoSuchTableError:
                return None

    def tables(self, entry: Sequence[str]) -> Iterator[str]:
        """Yield the tables that exist under a name, in whose parts `*` stands for any characters.

        Namespaces are listed only where an entry leaves them open. Errors are those of pyiceberg.
        """
        *namespace, table = entry
        places: list[tuple[str, ...]] = [()]
        for part in namespace:
            wanted = pattern_of(part)
            places = [
                (*place, name)
                for place in places
                for name in (self._namespaces(place) if "*" in part else [part])
                if wanted.fullmatch(name)
            ]
        wanted = pattern_of(table)
        for place in places:
            if "*" not in table:
                yield ".".join((*place, table))
                continue
            with suppress(NoSuchNamespaceError):
                for name in self.opened.list_tables(place):
                    if wanted.fullmatch(name[-1]):
                        yield ".".join(name)

    def _namespaces(self, place: tuple[str, ...]) -> list[str]:
        try:
            return [found[len(place)] for found in self.opened.list_namespaces(place) if len(found) > len(place)]
        except NoSuchNamespaceError:
            return []

    def with_configuration(self) -> Catalogue:
        """Return the same catalog with what this process knows of it, for tasks: their hosts have no configuration.

        Secrets that were given by reference stay references.
        """
        configured: Mapping[str, Any] = Config().get_catalog_config(self.name) or {}
        known = {name: SecretStr(value) for name, value in configured.items() if isinstance(value, str)}
        return Catalogue(self.name, {**known, **self._options})

    def is_shared_by_threads(self) -> bool:
        """Return whether several threads may use the open catalog: its client is known to permit that."""
        # By name, since the modules of others may not be installed. The client of Hive has one connection.
        return type(self.opened).__name__ in ("RestCatalog", "SqlCatalog", "GlueCatalog")

    def forget_open(self) -> None:
        """Open the catalog again at the next use, for example after a connection error."""
        self._opened = None

    def make_durable(self) -> None:
        """Make a commit durable that the catalog has confirmed: SQLite does not sync the end of its journal.

        Otherwise a power loss could undo a commit that was recorded as done (SQLite: `PRAGMA synchronous`, EXTRA).
        Raises `OSError` if the commit may not be durable.
        """
        uri = self.opened.properties.get("uri", "")
        path = uri.removeprefix("sqlite:///")
        if path != uri and "/" in path:
            sync_directory(path.partition("?")[0].rpartition("/")[0] or "/")

    def for_tasks(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of a table's files for tasks: secrets given by reference stay references."""
        named = {
            name: secret
            for name, secret in self._options.items()
            if secret.get_secret_value() != properties.get(name) == self._value(name, secret)
        }
        return {**{name: value for name, value in properties.items() if isinstance(value, str)}, **named}

    def hide(self, text: str) -> str:
        """Return a text of the client with secrets masked."""
        known = [(name, str(value)) for name, value in (self._opened.properties if self._opened else {}).items()]
        known += [(name, value) for name, secret in self._options.items() for value in known_values(secret)]
        secrets = [value for name, value in known if _SECRET.search(name)]
        # The client sends the parts of `credential`, which is `client:secret`, and a token that the catalog gave it.
        secrets += [value.partition(":")[2] for name, value in known if name == "credential"]
        secrets += [password for _, value in known if (password := _password(value))]
        return _PROOF.sub(rf"\1 {MASK}", Redaction(secrets).hide(text))

    @contextmanager
    def translated_errors(self, what: str) -> Iterator[None]:
        """Convert errors of the catalog and of the files to `ConfigurationError` and the errors of `LoadedTable`."""
        try:
            yield
        except OutfallError:
            raise
        except Exception as error:
            raise self.explain(error, what) from None

    def explain(self, error: Exception, what: str) -> OutfallError:
        """Convert an error of the catalog or of the files. Its cause is omitted, because it may show a secret."""
        why = self.hide(f"{type(error).__name__}: {error}")
        if _is_passing(error):
            self.forget_open()
            do = f"check that the catalog {self.name!r} and its store are up, and reachable from the driver"
            return TransientError(what, why=why, do=do)
        if isinstance(error, _DENIED):
            self.forget_open()
            return TargetError(what, why=why, do="use credentials with this permission")
        if isinstance(error, ModuleNotFoundError | NotInstalledError):
            return ConfigurationError(
                what, why=why, do="install the extra of pyiceberg for this kind of catalog on the driver"
            )
        if isinstance(error, FileNotFoundError):
            return TargetError(what, why=why, do="restore the table: files that its metadata names are missing")
        if isinstance(error, OSError):
            if is_of_disk(error):
                return TargetError(what, why=why, do=remedy(error))
            do = f"check that the store of the catalog {self.name!r} is up, and reachable from the driver"
            return explained(error, what, url=self.place, operation=Operation.READ, why=why, do=do)
        if self._opened is None:
            return ConfigurationError(
                what, why=why, do=f"correct catalog_options, or pyiceberg's configuration of {self.name!r}"
            )
        return TargetError(what, why=why, do="check the table and its catalog")

    def _resolved(self) -> dict[str, str]:
        return {name: self._value(name, secret) for name, secret in self._options.items()}

    @staticmethod
    def _value(name: str, secret: SecretStr) -> str:
        text = secret.get_secret_value()
        return text if text.startswith("file:") and _PLACE.fullmatch(name) else resolve_secret(secret)


def is_of_disk(error: Exception) -> bool:
    """Whether an error is an operating system error for a file: no request was lost."""
    return isinstance(error, OSError) and bool(error.errno) and not isinstance(error, ConnectionError | TimeoutError)


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password
    except ValueError:
        return None


def _is_passing(error: Exception) -> bool:
    if "unable to open database file" in str(error):
        return False
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(response, dict) else 0
    return (
        isinstance(error, (*_PASSING, ConnectionError, TimeoutError)) or bool(names & _PASSING_NAMES) or status >= 500
    )
