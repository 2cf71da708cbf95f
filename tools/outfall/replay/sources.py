"""Sources of dead letters by URL scheme. Each call reads the current dead letters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.options import make_options, resolve_secret
from outfall.replay.dead_letters import FoundDeadLetter, dead_letter_of
from outfall.replay.files import FileDeadLetters
from outfall.serde import parse_json
from outfall.sql.dead_letters import stored_dead_letters
from outfall.sql.dialect import Dialect
from outfall.urls import masked, scheme_of, split_url

if TYPE_CHECKING:
    from outfall.kafka.client import KafkaClients

Source = Callable[[], Iterator[FoundDeadLetter]]
"""Reads a location once, from its beginning to its end at the start of the read."""

_BROKERS_WAIT = 60.0
"""Timeout for brokers in seconds."""


def dead_letters_at(location: str) -> Source:
    """Return a source for the dead letters at a location. It connects when it is called.

    A location is a path or URL of a file or a directory; `postgresql://user@host/database?table=schema.name` or
    `mysql://user@host/database?table=name`, plus the parameters of the sink's `dsn`; or `kafka://host:9092/topic`, plus
    librdkafka properties as in recovery locations. Passwords are given as `env:NAME` or `file:PATH`. Raises
    `ConfigurationError` if the location is invalid or contains a secret, and `ImportError` if an extra is missing.
    """
    scheme = scheme_of(location)
    if scheme in ("postgresql", "postgres", "mysql", "mariadb"):
        return _table(location)
    if scheme == "kafka":
        return _kafka(location)
    return FileDeadLetters(location if scheme else os.path.abspath(os.path.expanduser(location)))


def _refused(location: str, why: str, do: str) -> ConfigurationError:
    return ConfigurationError(f"the location of dead letters {masked(location)!r} is invalid", why=why, do=do)


def _reference(location: str, name: str, value: str) -> str:
    """Resolve the secret of a parameter."""
    if not value.startswith(("env:", "file:")):
        do = f"write {name}=env:NAME or {name}=file:PATH, because other users can see command lines"
        raise _refused(location, f"it contains a secret: {name}", do)
    return resolve_secret(SecretStr(value))


def _table(location: str) -> Source:
    try:
        split = split_url(location)
    except ValueError as error:
        raise _refused(location, str(error), "write postgresql://user@host/database?table=NAME") from None
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    if split.password is not None:
        raise _refused(location, "it contains a password", "append ?password=env:NAME or ?password=file:PATH instead")
    if not given.get("table"):
        raise _refused(location, "the table is missing", f"write {split.scheme}://user@host/database?table=NAME")
    options = {"table": given.pop("table")}
    for name in ("password", "sslpassword"):
        if name in given:
            given[name] = _reference(location, name, given[name])
    options["dsn"] = f"{location.partition('?')[0]}?{urlencode(given, quote_via=quote)}"
    dialect = _dialect(split.scheme.lower(), options)
    place = f"the table {options['table']} in {dialect.database.name()}"
    return lambda: (dead_letter_of(values, place) for values in stored_dead_letters(dialect))


def _dialect(scheme: str, options: Mapping[str, str]) -> Dialect:
    """Return the dialect of a table, which raises `ImportError` if its extra is missing."""
    if scheme in ("mysql", "mariadb"):
        from outfall.mysql.dialect import MySQLDialect
        from outfall.mysql.options import MySQLOptions

        return MySQLDialect(make_options(MySQLOptions, options))
    from outfall.postgres.connection.database import PostgresDatabase
    from outfall.postgres.dialect import PostgresDialect
    from outfall.postgres.options import PostgresOptions

    made = make_options(PostgresOptions, options)
    return PostgresDialect(made, PostgresDatabase(made))


def _kafka(location: str) -> Source:
    from outfall.kafka import recovery_from_url
    from outfall.kafka.client import KafkaClients

    # Parsed like a recovery location, with a topic instead of the prefix.
    config = recovery_from_url(location)
    topic = config.topic_prefix

    def read() -> Iterator[FoundDeadLetter]:
        clients = KafkaClients(
            config.brokers,
            config.options(),
            _BROKERS_WAIT,
            isolation="read_committed",
            role="the topic of dead letters",
            then="run the command again",
        )
        with closing(clients):
            for partition, offset, value in _records(clients, topic):
                place = f"{topic}, partition {partition}, offset {offset}"
                try:
                    found = parse_json(value or b"null")
                except ValueError:
                    found = None
                if not isinstance(found, dict):
                    raise ConfigurationError(
                        f"{place} is not a JSON object", do='write dead letters to Kafka with value_format="json"'
                    )
                yield dead_letter_of(found, place)

    return read


def _records(clients: KafkaClients, topic: str) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield partition, offset and value of committed records, up to the end of each partition when its read starts."""
    from confluent_kafka import KafkaError, TopicPartition

    from outfall.kafka.topics import Topics

    count = Topics(clients).partitions(topic)
    if count is None:
        raise ConfigurationError(f"the topic {topic} does not exist at {clients.where}", do="correct the name")
    consumer = clients.consumer()
    for partition in range(count):
        here = TopicPartition(topic, partition)

        def bounds(seconds: float, here: Any = here) -> tuple[int, int]:
            low, high = consumer.get_watermark_offsets(here, seconds)
            return int(low), int(high)

        low, high = clients.ask(f"asking for the end of {topic}", bounds)
        if low >= high:
            continue
        clients.listen()
        consumer.assign([TopicPartition(topic, partition, low)])
        ended = False
        while not ended:
            message = consumer.poll(clients.timeout)
            if message is None:
                raise clients.explain(KafkaError(KafkaError._TIMED_OUT), f"reading {topic}")
            error = message.error()
            if error is None:
                if (offset := message.offset() or 0) >= high:
                    break
                value: Any = message.value()
                yield partition, offset, value
                ended = offset + 1 >= high
            elif error.code() == KafkaError._PARTITION_EOF:
                ended = True
            elif not clients.waits_for(error):
                raise clients.explain(error, f"reading {topic}")
        consumer.unassign()
