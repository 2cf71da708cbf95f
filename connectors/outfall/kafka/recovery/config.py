"""Recovery data in Kafka: its location, as arguments and as a URL, and the cache of its logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from outfall.errors import ConfigurationError
from outfall.idle import Idle
from outfall.kafka.options import ClientOptions, check_brokers
from outfall.options import parse_duration
from outfall.recovery.log import RecoveryConfig, RecoveryLog, check_step_id
from outfall.urls import MASK, masked, split_url

if TYPE_CHECKING:
    from outfall.kafka.partition import KafkaPartition
    from outfall.kafka.recovery.log import KafkaLog

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_TIMEOUT = timedelta(minutes=10)
_OWN = ("replication_factor", "timeout")

MOST = 32
"""Maximum number of cached logs: each has up to four clients, with their own threads and connections."""


@dataclass(frozen=True)
class KafkaRecoveryConfig(RecoveryConfig):
    """Two compacted topics with one partition each, `<topic_prefix>-progress` and `<topic_prefix>-state`.

    They are created on the first append. The broker's transactions are not used. Needs `pip install 'outfall[kafka]'`.

    Args:
        brokers: `host:port`, several separated by commas, or a list.
        topic_prefix: the prefix of the topics' names. Several steps may share it; use one per query, because a log is
            read from the beginning of its topic.
        client_options: librdkafka's connection properties, such as `security.protocol`. Secrets may be `env:NAME` or
            `file:PATH`, and then appear in no plan and no task.
        replication_factor: for topics that are created; existing topics keep theirs. An append waits for all in-sync
            replicas. Created topics require one in-sync replica less than this number. Without it the brokers choose
            both (`default.replication.factor`, brokers from 2.4).
        timeout: how long one call may wait for the brokers; at most 10 minutes.

    Raises:
        ConfigurationError: an argument is invalid. The text contains no secret.
    """

    brokers: str
    topic_prefix: str
    client_options: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int | None = None
    timeout: timedelta | float | str = timedelta(seconds=60)

    def __post_init__(self) -> None:
        object.__setattr__(self, "brokers", check_brokers(self.brokers))
        object.__setattr__(self, "client_options", client_options(self.client_options))
        object.__setattr__(self, "replication_factor", _replication(self.replication_factor))
        object.__setattr__(self, "timeout", client_timeout(self.timeout))
        if not isinstance(self.topic_prefix, str) or not _PREFIX.fullmatch(self.topic_prefix):
            raise ConfigurationError(
                f"{self.topic_prefix!r} is not a valid prefix of a topic name",
                do="use up to 200 ASCII letters, digits, '.', '_' or '-'",
            )

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step. No request is sent before the first read or append.

        A closed log is cached in this process, with its connections, for the next open with the same secrets.

        Raises:
            ConfigurationError: the step id is invalid, or a secret does not exist here.
        """
        from outfall.kafka.recovery.log import KafkaLog

        step = check_step_id(step_id)
        key = (self.options(), self.brokers, self.topics(), self.seconds(), step)
        resolved = self.options().resolved()
        kept = IDLE.take(key, resolved)
        if kept is not None:
            return kept
        progress, states = map(self._partition, self.topics())
        return KafkaLog(
            step, progress, states, timeout=self.seconds(), release=lambda log: IDLE.keep(key, resolved, log)
        )

    def steps(self) -> Sequence[str]:
        from outfall.kafka.recovery.progress import steps_in

        with closing(self._partition(self.topics()[0])) as progress:
            return steps_in(progress)

    def topics(self) -> tuple[str, str]:
        """Return the names of the two topics: progress and large states."""
        return f"{self.topic_prefix}-progress", f"{self.topic_prefix}-state"

    def _partition(self, topic: str) -> KafkaPartition:
        # Imported here: a process that imports the configuration may not have the client installed.
        from outfall.kafka.client import KafkaClients
        from outfall.kafka.partition import KafkaPartition

        clients = KafkaClients(self.brokers, self.options(), self.seconds())
        return KafkaPartition(clients, topic, replication_factor=self.replication_factor)

    def options(self) -> ClientOptions:
        """Return the properties of the client."""
        return ClientOptions({}) if not isinstance(self.client_options, ClientOptions) else self.client_options

    def seconds(self) -> float:
        """Return the timeout in seconds."""
        return parse_duration(self.timeout).total_seconds()

    def url(self) -> str:
        """Return `kafka://host:9092/prefix?…`.

        Literal secrets are omitted. For an equal configuration, give them as `env:NAME`.
        """
        given = dict(self.options().without_secrets())
        if self.replication_factor is not None:
            given["replication_factor"] = f"{self.replication_factor}"
        if self.seconds() != 60:
            given["timeout"] = f"{self.seconds():g}"
        query = urlencode(given, quote_via=quote, safe=":/")
        return f"kafka://{self.brokers}/{self.topic_prefix}" + (f"?{query}" if query else "")


def recovery_from_url(url: str) -> KafkaRecoveryConfig:
    """Create the configuration from a URL, `kafka://host:9092,host2:9092/prefix`, with the options as its query.

    Raises `ConfigurationError` if the URL is invalid; its text shows nothing of a query.
    """
    do = "write kafka://host:9092/prefix, and secrets as ?sasl.password=env:NAME"
    try:
        split = split_url(url)
    except ValueError as error:
        raise ConfigurationError("a recovery location in kafka: is invalid", why=str(error), do=do) from None
    problem = ""
    if "@" in split.netloc + split.path or split.fragment:
        problem = "it contains credentials or a fragment"
    elif not split.netloc or not split.path.strip("/") or "/" in split.path.strip("/"):
        problem = "it does not have brokers and one prefix"
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    literal = [name for name, value in ClientOptions(_but(given, _OWN)).items() if value == MASK]
    if literal:
        problem = f"it contains a secret: {', '.join(literal)}"
    if problem:
        raise ConfigurationError(f"the recovery location {masked(url)!r} is invalid", why=problem, do=do)
    own = {name: given[name] for name in _OWN if name in given}
    return KafkaRecoveryConfig(
        split.netloc,
        split.path.strip("/"),
        _but(given, _OWN),
        _replication(own.get("replication_factor")),
        own.get("timeout", timedelta(seconds=60)),
    )


def _but(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in names}


def client_options(options: object) -> ClientOptions:
    """Return the properties of clients. Raises `ConfigurationError` if they are invalid."""
    if isinstance(options, ClientOptions):
        return options
    if not isinstance(options, Mapping):
        raise ConfigurationError("client_options is not a mapping", do="give {'security.protocol': 'SASL_SSL', …}")
    return ClientOptions(options)


def _replication(value: object) -> int | None:
    if value is None:
        return None
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= 32767:
        raise ConfigurationError(f"the replication factor is {value!r}", do="use an integer from 1")
    return int(text)


def client_timeout(value: object) -> timedelta:
    """Return how long brokers are waited for. Raises `ConfigurationError` if it is invalid."""
    try:
        timeout = parse_duration(value)
    except ValueError as error:
        raise ConfigurationError("the timeout is invalid", why=str(error), do="use for example '60 seconds'") from None
    if timeout > _LONGEST_TIMEOUT:
        raise ConfigurationError(f"the timeout is {timeout}", do="use at most 10 minutes")
    return timeout


IDLE: Idle[KafkaLog] = Idle(MOST)
"""The cached logs of this process."""
