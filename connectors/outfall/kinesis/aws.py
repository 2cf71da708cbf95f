"""The common parts of both sinks: options, checks, and the outcome of each record of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from outfall.async_sink import AsyncSinkSettings, RefusedEntry, RequestOutcome
from outfall.async_sink.responses import unreadable
from outfall.aws.client import AwsConnection, AwsPartition, AwsSettings, AwsSink
from outfall.aws.errors import AT_FAULT
from outfall.capabilities import RowIdentity, TargetContext
from outfall.errors import ConfigurationError, OutfallError
from outfall.kinesis.records import AwsRecord, AwsRecordSerializer
from outfall.values import require_columns, spark_type


class AwsOptions(AwsConnection):
    """Options of both sinks, and of the connection."""

    data: str | None = Field(
        default=None,
        description="The column with the bytes or string that is the data of the record. Default: the whole row as a"
        " JSON object.",
    )


class StreamSettings(AsyncSinkSettings, AwsSettings, total=False):
    """The fields of `AwsOptions` as keyword arguments of the constructors."""

    data: str | None


class StreamSink(AwsSink[AwsRecord]):
    """A sink that sends records of bytes."""

    named_by: str
    """The option with the name of the stream."""
    look: staticmethod[[Any, str], Sequence[str]]
    """Checks the stream, with a client and its name; see `outfall.kinesis.preflight`."""
    options: Any

    def name(self) -> str:
        return str(getattr(self.options, self.named_by))

    def columns(self) -> dict[str, str]:
        """The columns in the options, by option."""
        return {name: column for name in ("data",) if (column := getattr(self.options, name)) is not None}

    def key_columns(self) -> Sequence[str]:
        return [column for option, column in self.columns().items() if option == "partition_key"]

    def row_identity(self) -> RowIdentity | None:
        keys = tuple(self.key_columns())
        return RowIdentity("append by partition_key", keys) if keys else None

    def entry_serializer(self) -> AwsRecordSerializer:
        return AwsRecordSerializer()

    def check_schema(self, schema: pa.Schema) -> None:
        require_columns(schema.names, self.columns())
        for option, column in self.columns().items():
            kind = schema.field(column).type
            if option != "data" and not _has_text(kind):
                raise ConfigurationError(
                    f"{option} is the column {column!r}, and {spark_type(kind)} cannot be converted to a string",
                    do="use another column, or cast it",
                )
        kind = schema.field(self.options.data).type if self.options.data else pa.string()
        if not any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, _is_binary)):
            raise ConfigurationError(
                f"the data column {self.options.data!r} is {spark_type(kind)}, and data must be binary or a string",
                do="cast it, or omit data to send rows as JSON",
            )

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        if context.first_contact:
            self.patiently("checking the stream", self.check_connection)
        return {}

    def owns_target(self) -> bool:
        """Return False: it only sends, and others may write to the stream."""
        return False

    def check_connection(self) -> Sequence[str]:
        client = self.client()
        try:
            return self.look(client, self.name())
        except OutfallError as error:
            self.renew(client, error.__cause__)
            raise


class StreamPartition(AwsPartition[AwsRecord]):
    """Sends records by one call, whose response lists the failed records."""

    options: Any
    sink: StreamSink

    def __init__(self, sink: StreamSink) -> None:
        """Create a client, if this process has none."""
        super().__init__(sink)
        sink.client()

    def text_of(self, entry: AwsRecord) -> str:
        return entry["Data"].decode(errors="backslashreplace").rstrip("\n")

    def outcome(
        self, entries: Sequence[AwsRecord], answers: Sequence[dict[str, Any]], failed: int | None
    ) -> RequestOutcome[AwsRecord]:
        """Reject the records whose own error shows that they are at fault, and retry those with other errors.

        Raises `TransientError` if the response does not say what each record came to, or names fewer or more errors
        than `failed` records.
        """
        what = f"the response to {len(entries)} records"
        if len(answers) != len(entries) or not all(isinstance(answer, dict) for answer in answers):
            raise unreadable(what, f"it has not one result for each: {str(answers)[:200]}")
        errors = sum(1 for answer in answers if answer.get("ErrorCode"))
        if failed is not None and errors != failed:
            raise unreadable(what, f"it has {errors} errors and counts {failed}")
        retry: list[AwsRecord] = []
        dead: list[RefusedEntry[AwsRecord]] = []
        reason = code = None
        for entry, answer in zip(entries, answers, strict=True):
            found = answer.get("ErrorCode")
            summary = f"{found}: {answer.get('ErrorMessage', '')}"
            if found in AT_FAULT:
                dead.append(RefusedEntry(entry, summary, found))
            elif found:
                retry.append(entry)
                reason, code = reason or summary, code or found
        return RequestOutcome(retry=retry, dead=dead, reason=reason, code=code)


def _has_text(kind: pa.DataType) -> bool:
    try:
        pc.cast(pa.array([], kind), pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
