"""The options of `KafkaSink`, and the librdkafka properties that users may set."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from outfall.capabilities import MAX_DEAD_LETTERS
from outfall.errors import ConfigurationError
from outfall.options import Duration, Pairs, SinkOptions, known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.row_logging import LogRows, log_rows_field
from outfall.schema_registry.options import SchemaRegistryOptions, parse_registry
from outfall.schema_registry.subjects import KINDS, Role, SchemaChoice, SchemaSettings, SubjectStrategy
from outfall.urls import MASK

_REACHING = (
    r"security\.protocol|client\.(id|rack|dns\.lookup)|(sasl|ssl|enable\.ssl|socket|broker\.address|reconnect)\..+|"
    r"connections\.max\.idle\.ms|metadata\.max\.age\.ms|api\.version\.request(\.timeout\.ms)?|compression\.(codec|type)|"
    r"queue\.buffering\.max\.(messages|kbytes)|receive\.message\.max\.bytes|debug|log_level"
)
_PRODUCING = (
    r"linger\.ms|queue\.buffering\.max\.ms|batch\.(size|num\.messages)|message\.(copy\.)?max\.bytes|compression\.level|"
    r"sticky\.partitioning\.linger\.ms|request\.timeout\.ms|retry\.backoff(\.max)?\.ms|"
    r"queue\.buffering\.backpressure\.threshold|topic\.metadata\.(refresh|propagation)\..+"
)
_BREAKS = (
    (r"(bootstrap\.servers|metadata\.broker\.list)", "brokers sets it"),
    (r"(acks|request\.required\.acks)", "the sink waits for all in-sync replicas: with fewer, rows could be lost"),
    (r"enable\.(idempotence|gapless\.guarantee)|max\.in\.flight.*|(message\.send\.max\.)?retries",
     "the sink has an idempotent producer: without it, retries could duplicate rows and change their order"),
    (r"transactional\.id", "the sink creates its transactional ids; transactional_id_prefix sets their prefix"),
    (r"transaction\.timeout\.ms", "transaction_timeout sets it"),
    (r"(message|delivery)\.timeout\.ms", "delivery_timeout sets it"),
    (r"partitioner", ("keys go to the same partitions as with Java's and Spark's producers (murmur2_random); a"
                     " column partition overrides it")),
    (r"delivery\.report.*|dr_.*|on_delivery|.*_cb|statistics\..+|logger|plugin\..+",
     "the sink has its own reports and counters"),
)  # fmt: skip
_SECRET = re.compile(r"password|passphrase|secret|private|token|oauthbearer\.config|ssl\.key\.|\.pem|\.jaas")
_HERE = (
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "client.id", "socket.timeout.ms",
    "compression.type", "queue.buffering.max.messages",
)  # fmt: skip
_REFERENCE = re.compile(r"(env|file):.+")


class ClientOptions(Mapping[str, str]):
    """librdkafka properties for all clients of a log. Only `resolved` shows secrets.

    Raises `ConfigurationError` if a property is unknown, does not concern the connection, or has no value.
    """

    _allowed: ClassVar[str] = _REACHING
    _why: ClassVar[str] = (
        "only connection properties are allowed; the log depends on the others (acks, idempotence, offsets)"
    )
    _do: ClassVar[str] = (
        "use librdkafka properties of security, sasl, ssl, socket, reconnect, compression or the local queue"
    )

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = {name: SecretStr(self._text(name, value)) for name, value in sorted(options.items())}

    def __getitem__(self, name: str) -> str:
        """Return a property for display: a literal secret is masked, `env:NAME` and `file:PATH` are not."""
        value = self._options[name].get_secret_value()
        return MASK if _SECRET.search(name) and not _REFERENCE.fullmatch(value) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientOptions) and self._options == other._options

    def __hash__(self) -> int:
        return hash(tuple(self._options))

    def __repr__(self) -> str:
        return repr(dict(self))

    def changed(self, more: Mapping[str, object]) -> Self:
        """Return these properties with some added or replaced."""
        return type(self)({name: value.get_secret_value() for name, value in self._options.items()} | dict(more))

    def without_secrets(self) -> dict[str, str]:
        """Return the properties that a URL may contain: all except literal secrets."""
        return {name: value for name, value in self.items() if value != MASK}

    def resolved(self) -> dict[str, str]:
        """Return the properties for librdkafka.

        Raises `ConfigurationError` if a secret's variable or file does not exist here.
        """
        return {
            name: resolve_secret(value) if _SECRET.search(name) else value.get_secret_value()
            for name, value in self._options.items()
        }

    def masked(self, text: str) -> str:
        """Return a text of the client with secrets masked."""
        secrets = (value for name, value in self._options.items() if _SECRET.search(name))
        return Redaction(known_values(*secrets)).hide(text)

    def _text(self, name: object, value: object) -> str:
        if not isinstance(name, str) or not re.fullmatch(self._allowed, name):
            near = difflib.get_close_matches(str(name), _HERE, n=1)
            reasons = (why for pattern, why in self._breaks() if re.fullmatch(pattern, str(name)))
            raise ConfigurationError(
                f"the client option {name!r} is not allowed" + (f", did you mean {near[0]!r}?" if near else ""),
                why=next(reasons, self._why),
                do=self._do,
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if value is None or not text or text == MASK:
            raise ConfigurationError(f"the client option {name!r} has no value", do="set a value, or omit the option")
        return text

    @classmethod
    def _breaks(cls) -> tuple[tuple[str, str], ...]:
        """Patterns of names with a specific reason for their rejection."""
        return ()


class ProducerOptions(ClientOptions):
    """librdkafka properties for a sink: connection and throughput, but none that the guarantees depend on."""

    _allowed = f"{_REACHING}|{_PRODUCING}"
    _why = "it is not a librdkafka property, or the guarantees of the sink depend on it"
    _do = (
        "use librdkafka properties of security, sasl, ssl, socket, reconnect, compression, batches, lingering or"
        " the local queue"
    )

    @classmethod
    def _breaks(cls) -> tuple[tuple[str, str], ...]:
        return _BREAKS

    def reaching(self) -> ClientOptions:
        """Return the connection properties, for clients that send no records."""
        return ClientOptions(
            {
                name: value.get_secret_value()
                for name, value in self._options.items()
                if re.fullmatch(_REACHING, name) and not name.startswith(("compression.", "queue."))
            }
        )


_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Valid topic names (`Topic.validate` in Apache Kafka)."""
_LEDGER = "outfall-ledger"
_RECORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_brokers(brokers: object) -> str:
    """Return addresses separated by commas, from such a string or a list.

    Raises `ConfigurationError` if an address is not `host:port`; its text does not show the addresses.
    """
    parts = brokers.split(",") if isinstance(brokers, str) else brokers
    names = [part.strip() for part in parts if isinstance(part, str)] if isinstance(parts, list | tuple) else []
    if not names or not all(_BROKER.fullmatch(name) for name in names):
        # Not shown: it may contain a password.
        raise ConfigurationError("brokers are not host:port", do="set for example 'kafka-1:9092,kafka-2:9092'")
    return ",".join(names)


class KafkaOptions(SinkOptions):
    """The options of `KafkaSink`, in its constructor and in Spark."""

    brokers: str = Field(description="The bootstrap servers: `host:port`, several separated by commas.")
    topic: str | None = Field(
        default=None,
        description="The topic of all records, which overrides a column `topic`. Default: the topic of each row, from"
        " the column `topic` or `topic_column`.",
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        description="Number of parts that rows are routed to by key. Each epoch of a part is one transaction (exactly"
        " once; `write_stream` and `write` only). Default: no parts, at least once.",
    )
    value_format: Literal["json", "csv", "text", "avro", "json_schema", "protobuf"] | None = Field(
        default=None,
        description="How a row becomes a value: all columns except `topic_column` as a JSON object, a CSV line, or with"
        " a schema of a registry an Avro record, a JSON object or a Protobuf message; or the single column of text."
        " Default: rows have Spark's Kafka columns, with `value`.",
    )
    key_column: str | None = Field(
        default=None,
        min_length=1,
        description="With `value_format`: the column with the key, a string or binary, or with `key_format` any type.",
    )
    key_format: Literal["avro", "json_schema", "protobuf"] | None = Field(
        default=None, description="How the key column becomes a key. Default: its bytes, unchanged."
    )
    topic_column: str | None = Field(
        default=None,
        min_length=1,
        description="With `value_format`: the column with the topic, which is not part of the value.",
    )
    schema_registry: Annotated[SchemaRegistryOptions | None, BeforeValidator(parse_registry)] = Field(
        default=None,
        description="With the formats `avro`, `json_schema` and `protobuf`: the URL of a [schema"
        " registry](#schema-registry), or a mapping or JSON object with `url` and credentials.",
    )
    value_schema: str = Field(
        default="latest",
        description="The schema of values: `latest`, the number of a version of the subject, or an id such as `id:17`."
        " Looked up before the first row.",
    )
    key_schema: str = Field(default="latest", description="The schema of keys, with `key_format`; as `value_schema`.")
    register_schemas: bool = Field(
        default=False,
        description="Whether schemas are derived from the columns, and registered if their subjects do not have them.",
    )
    subject_strategy: SubjectStrategy = Field(
        default="topic",
        description="The names of subjects. `topic`: `<topic>-value` and `<topic>-key`. `record`: the name of the"
        " record. `topic_record`: `<topic>-<record>`. As in Confluent's serializers.",
    )
    value_record: str | None = Field(
        default=None,
        min_length=1,
        description="The full name of the record of values, for subjects and for a schema that is registered. Default"
        " there: `<topic>_value`, with underscores in place of other characters.",
    )
    key_record: str | None = Field(default=None, min_length=1, description="The same for keys.")
    create_topic: Literal["never", "if_missing"] = Field(
        default="never",
        description="Whether a missing `topic` is created before the first row or rejected.",
    )
    partitions: int | None = Field(
        default=None, ge=1, description="Partitions of a created topic. Default: `num.partitions` of the brokers."
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=32767,
        description="Replicas of a created topic, with `parts` also of the ledger, whose `min.insync.replicas` is then"
        " one less. Default: `default.replication.factor` of the brokers (2.4 and later).",
    )
    client_options: Pairs = Field(
        default={},
        description="librdkafka properties, as a mapping or a JSON object: `security.protocol`, `sasl.*`, `ssl.*`,"
        " `linger.ms`, `batch.size`, `compression.type`, … Secrets accept `env:NAME` and `file:PATH`."
        " Properties that the guarantees depend on are rejected.",
    )
    delivery_timeout: Duration = Field(
        default=timedelta(minutes=2),
        description="Maximum time from the local queue to the acknowledgment of a record, and for one query to the"
        " brokers. After that the task fails.",
    )
    transaction_timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="With `parts`: maximum duration of a transaction, after which the brokers abort it. Must not exceed"
        " their `transaction.max.timeout.ms` (15 minutes by default).",
    )
    transactional_id_prefix: str = Field(
        default="outfall", description="With `parts`: prefix of the transactional ids, for ACLs."
    )
    reuse_producers: bool = Field(
        default=True,
        description="With `parts`: whether a producer is used for the next epoch if the brokers have answered all its"
        " requests. `false`: each epoch registers new producers.",
    )
    ledger_topic: str | None = Field(
        default=None,
        description="With `parts`: the compacted topic that records each commit. Created on first use. Default:"
        " `<topic>-outfall-ledger`, or `outfall-ledger` if rows have their own topics.",
    )
    max_dead_letters: int = Field(
        default=MAX_DEAD_LETTERS,
        ge=1,
        description="Maximum number of dead letters per epoch. One more fails the query, so that a wrong schema does"
        " not divert a whole epoch unnoticed.",
    )
    log_rows: LogRows = log_rows_field()
    on_existing: Literal["check", "resume"] = Field(
        default="check",
        description="With `parts`: what to do on the first run if the ledger has this step under a missing checkpoint."
        " `check`: fail. `resume`: continue.",
    )

    @property
    def client(self) -> ProducerOptions:
        """The client properties, with unresolved secrets."""
        return ProducerOptions({name: value.get_secret_value() for name, value in self.client_options.items()})

    @property
    def seconds(self) -> float:
        """`delivery_timeout` in seconds."""
        return self.delivery_timeout.total_seconds()

    @property
    def ledger(self) -> str:
        """The name of the ledger topic."""
        return self.ledger_topic or (f"{self.topic}-{_LEDGER}" if self.topic else _LEDGER)

    def keeps_commits(self, topic: str) -> bool:
        """Whether a topic has Outfall's own records: it is the ledger, or has the name of one by default."""
        return topic == self.ledger_topic or topic == _LEDGER or topic.endswith(f"-{_LEDGER}")

    @field_validator("brokers", mode="before")
    @classmethod
    def _brokers(cls, value: object) -> str:
        # Not a pydantic error, whose text would contain the value: that may include a password.
        return check_brokers(value)

    @field_validator("topic", "ledger_topic")
    @classmethod
    def _topic(cls, value: str | None) -> str | None:
        if value is not None and not TOPIC.fullmatch(value):
            raise ValueError("must be up to 249 ASCII letters, digits, '.', '_' or '-'")
        return value

    @field_validator("transactional_id_prefix")
    @classmethod
    def _id_prefix(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("must be up to 100 ASCII letters, digits, '.', '_' or '-'")
        return value

    @field_validator("client_options")
    @classmethod
    def _client_options(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        try:
            ProducerOptions({name: text.get_secret_value() for name, text in value.items()})
        except ConfigurationError as error:
            raise ValueError(f"{error.what}: {error.why}" if error.why else error.what) from None
        return value

    @field_validator("value_schema", "key_schema", mode="before")
    @classmethod
    def _schema(cls, value: object) -> str:
        text = str(value)
        SchemaChoice.parse(text)
        return text

    @field_validator("value_record", "key_record")
    @classmethod
    def _record(cls, value: str | None) -> str | None:
        if value is not None and not _RECORD.fullmatch(value):
            raise ValueError("must be a name of Avro, such as com.example.Flight")
        return value

    def schema_settings(self, role: Role) -> SchemaSettings | None:
        """Return how values or keys are encoded with a schema of the registry; `None` if they are not."""
        value = role == "value"
        format_ = self.value_format if value else self.key_format
        if format_ not in KINDS or self.schema_registry is None:
            return None
        return SchemaSettings(
            self.schema_registry,
            role,
            format_,
            SchemaChoice.parse(self.value_schema if value else self.key_schema),
            self.register_schemas,
            self.subject_strategy,
            self.value_record if value else self.key_record,
            self.key_column if value else None,
        )

    @model_validator(mode="after")
    def _together(self) -> Self:
        self._check_columns()
        self._check_schemas()
        alone = ("partitions",) if self.parts is not None else ("partitions", "replication_factor")
        making = {name for name in alone if getattr(self, name) is not None}
        if making and self.create_topic == "never":
            raise ValueError(f'{min(making)} applies to a created topic: set create_topic="if_missing" too')
        if self.create_topic != "never" and self.topic is None:
            raise ValueError("create_topic requires topic")
        of_parts = {"transaction_timeout", "transactional_id_prefix", "reuse_producers", "ledger_topic", "on_existing"}
        given = of_parts & {name for name in self.model_fields_set if getattr(self, name) != _default(name)}
        if given and self.parts is None:
            raise ValueError(f"{min(given)} requires parts")
        if self.parts is not None and self.delivery_timeout > self.transaction_timeout:
            raise ValueError(
                "delivery_timeout is longer than transaction_timeout: the brokers would abort the transaction first"
            )
        if self.parts is not None and len(self.ledger) > 249:
            raise ValueError("ledger_topic is required: the default name with topic is longer than 249 characters")
        return self

    def _check_columns(self) -> None:
        for name in ("key_column", "topic_column"):
            if self.value_format is None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} requires value_format; without it the column must have the name {name[:-7]!r}"
                )
        if self.topic is not None and self.keeps_commits(self.topic):
            raise ValueError("topic is a ledger, which contains Outfall's own records")
        if self.topic is not None and self.topic_column is not None:
            raise ValueError("topic and topic_column exclude each other")
        if self.value_format is not None and self.topic is None and self.topic_column is None:
            raise ValueError("topic or topic_column is required")
        if self.key_column is not None and self.key_column == self.topic_column:
            raise ValueError("key_column and topic_column must be different columns")

    def _check_schemas(self) -> None:
        formats = {"value": self.value_format, "key": self.key_format}
        encoded = {role for role, format_ in formats.items() if format_ in KINDS}
        if encoded and self.schema_registry is None:
            raise ValueError(f"{min(encoded)}_format={formats[min(encoded)]} requires schema_registry")
        if self.key_format is not None and self.key_column is None:
            raise ValueError("key_format requires key_column")
        for name, role in _OF_SCHEMAS.items():
            if getattr(self, name) != _default(name) and (role not in encoded if role else not encoded):
                raise ValueError(f"{name} requires {role or 'value'}_format avro, json_schema or protobuf")
        for role in encoded:
            by_id = getattr(self, f"{role}_schema").startswith("id:")
            if self.register_schemas and getattr(self, f"{role}_schema") != "latest":
                raise ValueError(f"register_schemas and {role}_schema exclude each other")
            if self.subject_strategy != "topic" and not by_id and getattr(self, f"{role}_record") is None:
                raise ValueError(f'subject_strategy="{self.subject_strategy}" requires {role}_record')


_OF_SCHEMAS = {
    "schema_registry": "", "register_schemas": "", "subject_strategy": "", "value_schema": "value",
    "value_record": "value", "key_schema": "key", "key_record": "key",
}  # fmt: skip
"""Options that only formats with schemas have, of values, of keys, or of both."""


def _default(name: str) -> object:
    return KafkaOptions.model_fields[name].default
