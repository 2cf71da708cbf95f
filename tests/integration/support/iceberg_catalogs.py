"""Catalogues of Iceberg tables, as the properties by which pyiceberg finds them: three kinds that share no code.

What each was seen to do, with pyiceberg 0.12, six commits at a time on one loaded table:

- `embedded`: one row of SQLite for each table, changed only where its metadata is the one that was read. One commit of
  several wins. All that the library can do works here. Its warehouse is a directory: no request is ever lost.
- `rest`: SeaweedFS compares branch and table id as the REST specification asks, and then a version of its own. One
  commit of several wins (15 of 90 in 15 rounds), the others get 409. Properties, branches, rollback, expiry, evolution
  of schema and partitioning work. Its warehouse is a table bucket, as in S3 Tables: below a table's location only
  `data/` and `metadata/` can be written. It signs in by OAuth2; its SigV4 refuses what pyiceberg signs.
- `in_postgres`: the same rows in a real database, which can be killed, and whose COMMIT can be lost. Warehouse on S3.

Environment: `OUTFALL_TEST_ICEBERG_REST` names another REST catalogue, by its properties as JSON.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
from sqlalchemy import URL

from tests.integration.support.s3 import S3, SeaweedFS
from tests.integration.support.waiting import until

REST = "OUTFALL_TEST_ICEBERG_REST"
Properties = dict[str, str]


def embedded(directory: Path) -> Properties:
    """A catalogue in a directory that exists."""
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def rest(server: SeaweedFS) -> Properties:
    """The one that the environment names, or that of a server of our own."""
    given = os.environ.get(REST)
    if given:
        return dict(json.loads(given))
    properties = {
        "type": "rest",
        "uri": server.catalog,
        "oauth2-server-uri": f"{server.catalog}/v1/oauth/tokens",
        "credential": f"{server.s3.key}:{server.s3.secret}",
        "warehouse": f"s3://{server.table_bucket}",
        **on_s3(server.s3),
    }
    catalog = load(properties)

    def answers() -> bool:
        with suppress(RESTError, NoSuchNamespaceError):
            return catalog.list_namespaces() is not None
        return False

    # The server answers before it has made its table bucket.
    until(answers, "the table bucket being there", 60)
    return properties


def in_postgres(dsn: str, s3: S3, bucket: str) -> Properties:
    """A catalogue in a database, whose tables lie in a bucket."""
    return {"type": "sql", "uri": _sqlalchemy(dsn), "warehouse": f"s3://{bucket}/warehouse", **on_s3(s3)}


def in_postgres_on_disk(dsn: str, directory: Path) -> Properties:
    """A catalogue in a database, whose tables lie in a directory."""
    return {"type": "sql", "uri": _sqlalchemy(dsn), "warehouse": f"file://{directory}/warehouse"}


def on_s3(s3: S3) -> Properties:
    """What a table's files are reached by."""
    return {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.key,
        "s3.secret-access-key": s3.secret,
        "s3.region": "us-east-1",
    }


def _sqlalchemy(dsn: str) -> str:
    """The URL that SQLAlchemy takes of a connection string of PostgreSQL."""
    parts = conninfo_to_dict(dsn)
    url = URL.create(
        "postgresql+psycopg2",
        username=str(parts.pop("user")),
        password=str(parts.pop("password")) if "password" in parts else None,
        host=str(parts.pop("host")),
        port=int(parts.pop("port") or 5432),
        database=str(parts.pop("dbname")),
        query={name: str(value) for name, value in parts.items()},
    )
    return url.render_as_string(hide_password=False)


def load(properties: Mapping[str, str]) -> Catalog:
    """Load a catalogue by pyiceberg itself, as other writers do."""
    return load_catalog(None, **properties)


def new_namespace(properties: Mapping[str, str]) -> str:
    """Make a namespace that nobody else uses, and return its name."""
    name = f"n{uuid.uuid4().hex[:12]}"
    load(properties).create_namespace(name)
    return name
