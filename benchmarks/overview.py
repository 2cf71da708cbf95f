"""The table and the plot that begin docs/benchmarks.md: each sink beside what a user would pick instead.

They are made from the results on that page, so they cannot differ from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context
from html import escape
from math import log10

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Cell:
    """Where the results have the ratio of a job to a peer."""

    section: str
    group: str
    """The heading of the table, or how it begins."""
    label: str
    peer: str


@dataclass(frozen=True)
class Comparison:
    """One line: a sink and what it replaces."""

    sink: str
    """Its name on the plot and, with a link to `page`, in the table."""
    page: str
    work: str
    instead: str
    cells: Sequence[Cell] = ()
    """None if it is not measured; several are joined with a slash."""


@dataclass(frozen=True)
class Ratios:
    """What the results have for a comparison."""

    clock: str
    cpu: str
    day: str


def _cells(section: str, label: str, peer: str, *groups: str) -> tuple[Cell, ...]:
    return tuple(Cell(section, group, label, peer) for group in groups)


_FILES = ("3,000,000 mixed rows", "1,010,328 flights")
_COPIED = "PostgreSQL, beside bare COPY"
_LOADED = "MariaDB, beside JDBC without rewriting"
_COPIES = {"5 columns": "3,000,000 mixed rows, appended", "19 columns": "1,010,328 flights, appended"}
_LOADS = ("300,000 mixed rows, appended", "100,000 flights, appended")
_STREAMED = "4,000,000 mixed rows, streamed"
_TABLES = "Tables, beside the formats' own engines"
_MERGES = "Upserts into Delta and Iceberg tables, beside MERGE"
_FLINK = "Files, beside Flink's own sink"
_KEYS = "Upserts by key, one task, beside the client's own helper"
_SPARKS_KAFKA = "Kafka, beside Spark's own sink"


def _files(kind: str, name: str, *, by_spark: bool = False) -> Comparison:
    sink, job = ('FileSink, writer="spark"', 'writer="spark"') if by_spark else ("FileSink", "Python API")
    cells = _cells("Whole files", f"{name}, {job}", "Spark", *_FILES)
    return Comparison(sink, "file", f"{kind}, 5 / 19 columns", "Spark's own writer", cells)


def _merge(sink: str, page: str, table: str) -> Comparison:
    groups = [
        f"100,000 changes into 10,000,000 rows of {table}, {parts}" for parts in ("all partitions", "one partition")
    ]
    cells = _cells(_MERGES, f"{sink}, upsert", "MERGE in foreachBatch", *groups)
    return Comparison(sink, page, "upsert, all / one partition", "`MERGE` in `foreachBatch`", cells)


def _copies(columns: str, instead: str, peer: str, section: str) -> Comparison:
    cells = _cells(section, "PostgresSink", peer, _COPIES[columns])
    return Comparison("PostgresSink", "postgres", f"append, {columns}", instead, cells)


def _loads(server: str) -> Iterator[Comparison]:
    """Compare appends, appends by parts and upserts of new keys with the appends of rewriting JDBC."""
    peer = "Spark JDBC, rewriting"
    for sink, label in (("MySQLSink", "MySQLSink"), ("MySQLSink, 2 parts", "MySQLSink, parts")):
        yield Comparison(
            sink, "mysql", f"{server}, append, 5 / 19 columns", "JDBC with `rewriteBatchedStatements`",
            _cells(server, label, peer, *_LOADS),
        )  # fmt: skip
    yield Comparison(
        "MySQLSink", "mysql", f"{server}, upsert of new keys", "rewriting JDBC's append",
        _cells(server, "MySQLSink", peer, "300,000 mixed rows, upserted; others append"),
    )  # fmt: skip


def _keys(sink: str, page: str, helper: str, *, label: str, work: str) -> Comparison:
    return Comparison(sink, page, work, helper, _cells(_KEYS, label, helper, page))


COMPARISONS = (
    _files("Parquet", "parquet"),
    _files("Parquet", "parquet", by_spark=True),
    _files("ORC", "orc", by_spark=True),
    _files("CSV", "csv"),
    _files("JSON", "jsonl"),
    Comparison(
        "FileSink", "file", "streams of 5 columns, JSON / Parquet", "Flink's file sink",
        tuple(Cell(_FLINK, "2,000,000 mixed rows", f"FileSink, {kind}", "Flink") for kind in ("jsonl", "parquet")),
    ),
    Comparison(
        "S3Sink", "s3", "upload of 500 MB", "boto3's `upload_fileobj`",
        _cells("Uploads to S3", "S3Sink's upload", "boto3", "500 MB"),
    ),
    Comparison(
        "S3Sink", "s3", "500 MB of text, 1 kB a row", "boto3's `upload_fileobj` of a file",
        _cells("Uploads to S3", "S3Sink, text of 1 kB a row", "boto3", "500 MB"),
    ),
    _copies("5 columns", "JDBC, default", "Spark JDBC", "PostgreSQL"),
    _copies("19 columns", "JDBC, default", "Spark JDBC", _COPIED),
    _copies("5 columns", "JDBC with `reWriteBatchedInserts`", "Spark JDBC, rewriting", "PostgreSQL"),
    _copies("19 columns", "JDBC with `reWriteBatchedInserts`", "Spark JDBC, rewriting", _COPIED),
    Comparison(
        "PostgresSink", "postgres", "upsert", "rewriting JDBC, then `ON CONFLICT`",
        _cells(_COPIED, "PostgresSink", "Spark JDBC, rewriting, and ON CONFLICT", "3,000,000 mixed rows, upserted"),
    ),
    Comparison(
        "MySQLSink", "mysql", "MariaDB, append, 5 / 19 columns", "JDBC, default",
        _cells(_LOADED, "MySQLSink", "Spark JDBC", *_LOADS),
    ),
    *_loads("MariaDB"),
    *_loads("MySQL 9.7"),
    Comparison(
        "KafkaSink", "kafka", "at least once", "Spark's Kafka sink",
        _cells(_SPARKS_KAFKA, "KafkaSink", "Spark's Kafka sink", "400,000"),
    ),
    Comparison(
        "KafkaSink, 16 parts", "kafka", "exactly once", "Spark's Kafka sink, at least once",
        _cells(_SPARKS_KAFKA, "KafkaSink, 16 parts", "Spark's Kafka sink", "400,000"),
    ),
    Comparison(
        "IcebergSink", "iceberg", "append", "Iceberg's own sink",
        _cells(_TABLES, "IcebergSink", "the format's own", _STREAMED),
    ),
    _merge("IcebergSink", "iceberg", "Iceberg"),
    Comparison(
        "DeltaSink", "delta", "append", "Delta's own sink", _cells(_TABLES, "DeltaSink", "the format's own", _STREAMED)
    ),
    _merge("DeltaSink", "delta", "Delta"),
    _keys("RedisSink", "redis", "redis-py pipeline", label="with versions", work="upsert"),
    _keys("DynamoDBSink", "dynamodb", "boto3 batch_writer", label="with versions", work="upsert, a request per row"),
    _keys(
        "DynamoDBSink", "dynamodb", "boto3 batch_writer", label="with versions, in transactions",
        work="upsert, `transactions=True`",
    ),
    _keys("OpenSearchSink", "opensearch", "opensearch-py parallel_bulk", label="with versions", work="upsert"),
    Comparison(
        "HttpSink", "http", "500 rows per request, 64 at once", "`requests.post` per row",
        _cells("The HTTP sink against a service of 20 ms", "500 rows per request", "requests.post per row", "rows/s"),
    ),
    Comparison("KinesisSink", "kinesis", "", "boto3's `put_records`"),
)  # fmt: skip


def overview(page: str) -> str:
    """Return the table, made from the results on the page.

    Raises:
        LookupError: if the results lack a line that the table needs.
    """
    found = dict(_results(page))
    text = "\n| sink | work | instead of | by clock | by CPU | measured |\n| --- | --- | --- | --- | --- | --- |\n"
    for line in COMPARISONS:
        ratios = _ratios(line, found)
        cells = (f"[{line.sink}]({line.page}.md)", line.work, line.instead, ratios.clock, ratios.cpu, ratios.day)
        text += f"| {' | '.join(cells)} |\n"
    return text


def _ratios(line: Comparison, found: dict[Cell, Ratios]) -> Ratios:
    if not line.cells:
        return Ratios(NOT_MEASURED, NOT_MEASURED, "")
    there = [_lookup(cell, found) for cell in line.cells]
    clock, cpu = (" / ".join(each) for each in zip(*((ratio.clock, ratio.cpu) for ratio in there), strict=True))
    return Ratios(clock, cpu if all(ratio.cpu for ratio in there) else NOT_MEASURED, there[0].day)


def _lookup(wanted: Cell, found: dict[Cell, Ratios]) -> Ratios:
    exact = found.get(wanted)
    if exact is not None:
        return exact
    for cell, ratios in found.items():
        same = (cell.section, cell.label, cell.peer) == (wanted.section, wanted.label, wanted.peer)
        if same and cell.group.startswith(wanted.group):
            return ratios
    raise LookupError(f"docs/benchmarks.md has no result for {wanted}")


def _results(page: str) -> Iterator[tuple[Cell, Ratios]]:
    """Read the tables of results: each ratio with its day."""
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        day = _short_day(text.strip().partition(",")[0])
        for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
            head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
            for label, *cells in rows:
                yield from _of_row(Cell(title, head[0], label, ""), head[1:], cells, day)


def _of_row(where: Cell, names: list[str], cells: list[str], day: str) -> Iterator[tuple[Cell, Ratios]]:
    for index, (name, cell) in enumerate(zip(names, cells, strict=True)):
        if name.startswith("vs. ") and cell:
            by_cpu = cells[index + 1] if names[index + 1 : index + 2] == ["by CPU"] else ""
            peer = Cell(where.section, where.group, where.label, name.removeprefix("vs. "))
            yield peer, Ratios(_short(cell.partition(" ")[0]), _short(by_cpu), day)


def _short(number: str) -> str:
    """Two digits, which is what repeated runs agree on."""
    if not number:
        return ""
    rounded = _TWO_DIGITS.create_decimal(number.replace(",", ""))
    return f"{rounded:.1f}" if 1 <= rounded < 10 else f"{rounded:,f}" if rounded < 1 else f"{rounded:,.0f}"


def _short_day(day: str) -> str:
    """26 Nov 2026, which fits into a column."""
    number, month, year = day.split()
    return f"{number} {month[:3]} {year}"


_TWO_DIGITS = Context(prec=2, rounding=ROUND_HALF_UP)

_WIDTH, _ROW, _LEFT, _TOP = 300, 48, 10, 30
_LOW, _HIGH = 0.05, 12.0


def plot(page: str) -> str:
    """Return the table as an SVG without a background, whose text is legible on a phone."""
    found = dict(_results(page))
    rows = [(line, _ratios(line, found)) for line in COMPARISONS if line.cells]
    drawn = [(line, ratios) for line, ratios in rows if _number(ratios.clock) < _HIGH]
    height = _TOP + _ROW * len(drawn) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="11">'
    ]
    for tick in (0.1, 0.5, 1, 2, 5, 10):
        x = _x(tick)
        width = 1.5 if tick == 1 else 0.5
        parts.append(f'<path d="M{x:.1f} {_TOP - 8}V{height}" stroke="#666" stroke-width="{width}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 13}" text-anchor="middle">{tick:g}</text>')
    for index, (line, ratios) in enumerate(drawn):
        y = _TOP + _ROW * index
        name, instead = (_plain(text) for text in (f"{line.sink}, {line.work}", line.instead))
        parts.append(f'<text x="{_LEFT}" y="{y + 11}">{name}</text>')
        parts.append(f'<text x="{_LEFT}" y="{y + 23}" fill="#666">instead of {instead}</text>')
        parts.append(_bar(y + 28, _number(ratios.clock), "#2f6fb0"))
        if ratios.cpu != NOT_MEASURED:
            parts.append(_bar(y + 35, _number(ratios.cpu), "#d07a20"))
    return "\n".join([*parts, "</svg>\n"])


def _plain(text: str) -> str:
    return escape(text.replace("`", "").replace(", 5 / 19 columns", ""))


def _number(ratio: str) -> float:
    """The first of ratios that a slash joins."""
    return float(ratio.partition(" ")[0].replace(",", ""))


def _x(ratio: float) -> float:
    return _LEFT + (_WIDTH - 2 * _LEFT) * log10(ratio / _LOW) / log10(_HIGH / _LOW)


def _bar(y: float, ratio: float, color: str) -> str:
    """A bar from 1, to the left where the sink is slower."""
    left, right = sorted((_x(1), _x(ratio)))
    return f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1.5):.1f}" height="6" fill="{color}"/>'
