"""Recovery data in Kafka: where it is, as arguments and as a URL, and its logs, kept open between two uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from outfall.errors import ConfigurationError, missing_extra
from outfall.kafka.idle import Idle
from outfall.kafka.options import ClientOptions, check_brokers
from outfall.options import parse_duration
from outfall.recovery.log import RecoveryConfig, RecoveryLog, check_step_id

if TYPE_CHECKING:
    from outfall.kafka.partition import KafkaPartition
    from outfall.kafka.recovery.log import KafkaLog

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_TIMEOUT = timedelta(minutes=10)
_OWN = ("replication_factor", "timeout")

MOST = 32
"""Logs that are kept: each has up to four clients, with threads and connections of their own."""


@dataclass(frozen=True)
class KafkaRecoveryConfig(RecoveryConfig):
    """Two compacted topics of one partition each, `<topic_prefix>-progress` and `<topic_prefix>-state`.

    They are made on the first append. The broker's transactions are not used. Needs `pip install 'outfall[kafka]'`.

    Args:
        brokers: where the cluster is: `host:port`, several with commas between them, or a list.
        topic_prefix: what the topics' names begin with. Several steps may share it; take one for each query, since a
            log is read from the beginning of its topic.
        client_options: librdkafka's properties that say how the brokers are reached, as `security.protocol`. Secrets
            may be `env:NAME` or `file:PATH`, and then reach neither plans nor tasks.
        replication_factor: of topics that are made here; those that exist keep theirs. An append waits for all
            replicas in sync, of which topics made here ask for one less than this.
        timeout: how long one call may wait for the brokers; up to 10 minutes.

    Raises:
        ConfigurationError: one of these will not do. The text holds no secret.
        ImportError: confluent-kafka is not installed; the text says what to do.
    """

    brokers: str
    topic_prefix: str
    client_options: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 3
    timeout: timedelta | float | str = timedelta(seconds=60)

    def __post_init__(self) -> None:
        if find_spec("confluent_kafka") is None:
            raise missing_extra("confluent-kafka", "kafka")
        options = self.client_options
        object.__setattr__(self, "brokers", check_brokers(self.brokers))
        object.__setattr__(self, "client_options", options if isinstance(options, ClientOptions) else _options(options))
        object.__setattr__(self, "replication_factor", _replication(self.replication_factor))
        object.__setattr__(self, "timeout", _timeout(self.timeout))
        if not isinstance(self.topic_prefix, str) or not _PREFIX.fullmatch(self.topic_prefix):
            raise ConfigurationError(
                f"{self.topic_prefix!r} cannot be the prefix of a topic's name",
                do="give up to 200 letters, digits, '.', '_' or '-' of ASCII",
            )

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step. No broker is asked before the first read or append.

        What is closed is kept in this process, connected, for who opens the same next with the same secrets.

        Raises:
            ConfigurationError: the step id will not do, or a secret does not exist here.
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
        """Return the names of the two topics: of progress, and of large states."""
        return f"{self.topic_prefix}-progress", f"{self.topic_prefix}-state"

    def _partition(self, topic: str) -> KafkaPartition:
        # Here and not above: whoever imports the configuration may not have the client.
        from outfall.kafka.client import KafkaClients
        from outfall.kafka.partition import KafkaPartition

        clients = KafkaClients(self.brokers, self.options(), self.seconds())
        return KafkaPartition(clients, topic, replication_factor=self.replication_factor)

    def options(self) -> ClientOptions:
        """Return the client's properties."""
        return ClientOptions({}) if not isinstance(self.client_options, ClientOptions) else self.client_options

    def seconds(self) -> float:
        """Return the timeout in seconds."""
        return parse_duration(self.timeout).total_seconds()

    def url(self) -> str:
        """Return `kafka://host:9092/prefix?…`.

        A secret that was given literally is left out: who wants an equal configuration gives it as `env:NAME`.
        """
        given = dict(self.options().shown())
        if self.replication_factor != 3:
            given["replication_factor"] = f"{self.replication_factor}"
        if self.seconds() != 60:
            given["timeout"] = f"{self.seconds():g}"
        query = urlencode(given, quote_via=quote, safe=":/")
        return f"kafka://{self.brokers}/{self.topic_prefix}" + (f"?{query}" if query else "")


def recovery_from_url(url: str) -> KafkaRecoveryConfig:
    """Make the configuration of a URL, `kafka://host:9092,host2:9092/prefix`, the options after it as a query.

    Raises:
        ConfigurationError: it is not of this form. The text shows nothing of a query.
    """
    split = urlsplit(url)
    shown = f"kafka://{split.netloc.rpartition('@')[2]}{split.path}"
    problem = ""
    if "@" in split.netloc or split.fragment:
        problem = "it holds credentials or a fragment"
    elif not split.netloc or not split.path.strip("/") or "/" in split.path.strip("/"):
        problem = "it does not name brokers and one prefix"
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    literal = [name for name, value in ClientOptions(_but(given, _OWN)).items() if value == "***"]
    if literal:
        problem = f"it holds a secret: {', '.join(literal)}"
    if problem:
        raise ConfigurationError(
            f"the recovery location {shown!r} will not do",
            why=problem,
            do="write kafka://host:9092/prefix, and secrets as ?sasl.password=env:NAME",
        )
    own = {name: given[name] for name in _OWN if name in given}
    return KafkaRecoveryConfig(
        split.netloc,
        split.path.strip("/"),
        _but(given, _OWN),
        _replication(own.get("replication_factor", 3)),
        own.get("timeout", timedelta(seconds=60)),
    )


def _but(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in names}


def _options(options: object) -> ClientOptions:
    if not isinstance(options, Mapping):
        raise ConfigurationError("client_options is no mapping", do="give {'security.protocol': 'SASL_SSL', …}")
    return ClientOptions(options)


def _replication(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= 32767:
        raise ConfigurationError(f"the replication factor is {value!r}", do="give a whole number from 1")
    return int(text)


def _timeout(value: object) -> timedelta:
    try:
        timeout = parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(
            "the timeout will not do", why=str(error), do="give for example '60 seconds'"
        ) from None
    if timeout > _LONGEST_TIMEOUT:
        raise ConfigurationError(f"the timeout is {timeout}", do="give up to 10 minutes")
    return timeout


IDLE: Idle[KafkaLog] = Idle(MOST)
"""Those of this process."""
