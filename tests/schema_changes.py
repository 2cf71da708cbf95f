"""What happens on the next start of a query whose columns, key or order have changed: for each sink, each change.

`TABLE` says it in the words of `WORDS`. tests/integration/schema tests each cell, with the remedy of its word, and
`python -m tests.generated` writes both into docs/schema-changes.md.
"""

from __future__ import annotations

from collections.abc import Iterable

CHANGES = {
    "end": "added at the end",
    "middle": "added in the middle",
    "dropped": "dropped",
    "renamed": "renamed",
    "wider": "retyped wider",
    "narrower": "retyped narrower",
    "required": "NOT NULL in the target",
    "key": "another key column",
    "order": "another order column",
}
"""The changes, as the page names them. A changed aggregation is Spark's matter, and the same for all sinks."""

WORDS = {
    "new": (
        "goes on",
        "New rows have the new column, earlier ones have no value in it.",
        "Nothing. A reader that names its columns sees the new one once it asks for it.",
    ),
    "without": (
        "goes on",
        "New rows have no value in the dropped column.",
        "Nothing, if readers accept NULL or a missing field there.",
    ),
    "keeps": (
        "goes on",
        "A row that is updated **keeps its stored value** in the dropped column. An inserted row has NULL there.",
        "If the stored values must not stay, select the column as NULL in the query, or drop it in the table.",
    ),
    "both": (
        "goes on",
        "New rows have the value under the new name, earlier ones under the former name.",
        "Let readers take either name; or give the column its former name in the query, by an alias.",
    ),
    "add": (
        "refused",
        "The target has no such column.",
        'Add the column to the target, or set `schema_evolution="add_columns"`, and start the query with the same'
        " checkpoint.",
    ),
    "rename": (
        "refused",
        "The target has no such column.",
        "Rename the column in the target, or give it its former name in the query. `add_columns` would add a second"
        " column and leave the former one behind.",
    ),
    "former": (
        "refused",
        "The target has no such column.",
        "Give the column its former name in the query. `add_columns` would add a second column and leave the former one"
        " behind.",
    ),
    "columns": (
        "refused",
        "Readers take values by their position, so that earlier files would be read in the wrong columns.",
        "Select the earlier columns in their order; or write to another path with a new checkpoint.",
    ),
    "type": (
        "refused",
        "No reader of the target could return the values of both types.",
        "Cast the column to its former type, or write it under another name. In a table, change the type of its column"
        " where the table allows that.",
    ),
    "value": (
        "goes on",
        "A value that the column cannot hold fails the query; with `dead_letter_table`, it is a dead letter.",
        "Change the type of the column in the target, and start the query with the same checkpoint.",
    ),
    "fits": ("goes on", "All values are stored as they are.", "Nothing."),
    "null": (
        "goes on",
        "A row with NULL there fails the query. Nothing of its epoch is in the target.",
        "Replace NULL in the query, or allow it in the target, and start the query with the same checkpoint.",
    ),
    "identity": (
        "refused",
        "Rows of one key would no longer meet in the target, or an older one could win.",
        "Restore the options; or see [another key or order](#another-key-or-order).",
    ),
    "recorded": (
        "goes on",
        "A row with NULL there fails the query at each start, since its epoch is recorded. Nothing of it is stored.",
        "Allow NULL in the table until the epoch is published, or set `dead_letter_table`. A correction in the query"
        " comes too late.",
    ),
    "—": ("", "The sink has no such option, or its target no such rule.", ""),
}
"""What each word stands for: what the next start does, why or with which result, and what to do."""

TABLE = """\
target         end     middle  dropped renamed wider narrower required key      order
postgres       add     add     keeps   rename  value fits     recorded identity identity
mysql          add     add     keeps   rename  value fits     null     identity identity
delta          add     add     keeps   former  type  fits     null     identity identity
iceberg        add     add     keeps   rename  type  fits     null     identity identity
redis          new     new     without both    fits  fits     —        identity identity
opensearch     new     new     without both    fits  fits     —        identity identity
dynamodb       new     new     without both    fits  fits     —        —        identity
kafka          new     new     without both    fits  fits     —        identity —
kinesis        new     new     without both    fits  fits     —        identity —
http           new     new     without both    fits  fits     —        identity —
jsonl          new     new     without both    type  fits     —        —        —
growing_jsonl  new     new     without both    type  fits     —        —        —
s3_jsonl       new     new     without both    type  fits     —        —        —
csv            columns columns columns columns type  fits     —        —        —
growing_csv    columns columns columns columns type  fits     —        —        —
parquet        new     new     without both    type  type     —        —        —
s3_parquet     new     new     without both    type  type     —        —        —
"""

TITLES = {
    "postgres": "[PostgreSQL](postgres.md)",
    "mysql": "[MySQL, MariaDB](mysql.md)",
    "delta": "[Delta](delta.md)",
    "iceberg": "[Iceberg](iceberg.md)",
    "redis": "[Redis](redis.md)",
    "opensearch": "[OpenSearch](opensearch.md)",
    "dynamodb": "[DynamoDB](dynamodb.md)",
    "kafka": "[Kafka](kafka.md), JSON values",
    "kinesis": "[Kinesis](kinesis.md)",
    "http": "[HTTP](http.md)",
    "jsonl": "JSON lines: [files](file.md)",
    "growing_jsonl": "growing files",
    "s3_jsonl": "[S3](s3.md)",
    "csv": "CSV: files",
    "growing_csv": "growing files",
    "parquet": "Parquet: files",
    "s3_parquet": "S3",
}
"""The targets of the table, as the page names them."""


_SILENT = 'A new checkpoint that reads the source from its beginning, with `on_existing="overwrite"` or another target.'
_REFUSED = "Spark's check of the state refuses the query before a row is written."
_RESTORE = f"Restore the aggregation, and nothing is lost. Or: {_SILENT[0].lower()}{_SILENT[1:]}"

AGGREGATIONS: dict[str, tuple[str, dict[str, int] | None, str, str]] = {
    "function": (
        "another function with a state of the same type, such as `max` instead of `sum`",
        {"a": 5, "b": 1, "c": 9},
        "**Wrong values, without an error**: the stored sum of a group counts as its maximum.",
        _SILENT,
    ),
    "grouping": (
        "another grouping column of the same type",
        {"a": 5, "b": 1, "p": 12},
        "**Wrong values, without an error**: new groups begin without earlier rows, and former groups stay.",
        _SILENT,
    ),
    "aggregate": ("one more aggregate", None, _REFUSED, _RESTORE),
    "column": ("one more grouping column", None, _REFUSED, _RESTORE),
}
"""Changes of `sum(n)` grouped by `k`, after (a, 5) and (b, 1): the change, and what the target has after (a, 3) and
(c, 9); `None` if Spark refuses. For the page: the result, and what to do."""


def cells() -> dict[str, dict[str, str]]:
    """Return the words by target and change."""
    (_, *changes), *rows = (line.split() for line in TABLE.splitlines())
    return {target: dict(zip(changes, words, strict=True)) for target, *words in rows}


def schema_changes() -> str:
    """What the next start does, by target and change. Targets with the same words have one row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for target, words in cells().items():
        alike.setdefault(tuple(words.values()), []).append(TITLES[target])
    rows = (
        [", ".join(titles), *(f"**{word}**" if WORDS[word][0] == "refused" else word for word in words)]
        for words, titles in alike.items()
    )
    return _table(["", *CHANGES.values()], rows)


def schema_words() -> str:
    """What each word of the table stands for."""
    rows = (
        [f"`{word}`", f"**{start}**" if start == "refused" else start, *more] for word, (start, *more) in WORDS.items()
    )
    return _table(["word", "next start", "result", "what to do"], rows)


def aggregations() -> str:
    """What Spark does when an aggregation changes."""
    rows = (
        [change, "**refused**" if goes_on is None else "goes on", result, remedy]
        for change, goes_on, result, remedy in AGGREGATIONS.values()
    )
    return _table(["change", "next start", "result", "what to do"], rows)


def _table(columns: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (columns, *rows)]
    return "".join([lines[0], f"|{'---|' * len(columns)}\n", *lines[1:]])
