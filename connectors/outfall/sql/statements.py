"""The statements of the sink's own tables and of moves from staging, as text, from options and a database's words.

All are pure, and need no server. Those that move rows by key are two algorithms:

```
upsert     remove the rows of keys with a delete marker · write the last row of each key
changes    write the sequences of removed keys as tombstones · remove their rows · write the rows that are newer
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfall.delivery_order import PER_GENERATION, PER_OFFSET
from outfall.sql.changes import REMOVALS
from outfall.sql.dialect import compose
from outfall.sql.names import SqlName
from outfall.sql.options import DELETED, MARKER, NUMBER, OPERATION, REMOVED, SEQUENCE, STAGE, TABLE, SqlOptions
from outfall.sql.words import NO_CONFLICTS, Conflicts, Selection, Words, doubled


def ledger_ddl(words: Words, metadata_schema: str) -> list[str]:
    """Return the statements that create the tables that all sinks of a database share. They can be run again."""
    schema, name = words.quote(metadata_schema), words.name.format(180)
    parts = {"schema": schema, "name": name, "rows": words.quote("rows"), "time": words.time, "made": words.made}
    return [
        compose(words.make_schema, schema),
        compose(
            "CREATE TABLE IF NOT EXISTS {schema}.ledger (incarnation {name}, target {name}, step {step},"
            " generation bigint NOT NULL, begun bigint NOT NULL, epoch bigint, revoked bigint NOT NULL DEFAULT 0,"
            " {rows} bigint NOT NULL DEFAULT 0, changed {time}, token text, published_token text,"
            " PRIMARY KEY (incarnation, target)){made}",
            step=words.name.format(400), **parts,
        ),
        compose(
            "CREATE TABLE IF NOT EXISTS {schema}.attempts (stage bigint PRIMARY KEY, staging {name},"
            " incarnation {name}, generation bigint NOT NULL, epoch bigint NOT NULL,"
            " attempt bigint NOT NULL, {rows} bigint NOT NULL, staged {time}{key}){made}",
            key=words.staging_key, **parts,
        ),
    ]  # fmt: skip


def staging_ddl(words: Words, table: str, own: Sequence[str], columns: Sequence[tuple[str, str]]) -> str:
    """Return the statement that creates a staging table, with names and types of columns as the catalogue has them."""
    fields = [f"{words.quote(name)} {words.own[name]}" for name in own]
    fields += [f"{words.quote(name)} {words.staged.format(doubled(kind))}" for name, kind in columns]
    return compose(words.staging, table=table, fields=", ".join(fields))


def staging_index_ddl(words: Words, table: str) -> str:
    """Return the statement that creates the index by which the rows of one of many tables are found in staging."""
    return compose(words.staging_index, table=table, column=words.quote(TABLE))


def tombstones_ddl(
    words: Words, table: str, wanted: Mapping[str, str], keys: Sequence[str], deleted: str, found: Mapping[str, str]
) -> list[str]:
    """Return the statements that create a table of tombstones, or give the columns that are found other types.

    `wanted` are the types of its columns, as the catalogue has them.
    """
    fields = {name: words.not_null(doubled(kind)) for name, kind in wanted.items()}
    if not found:
        listed = ", ".join(f"{words.quote(name)} {field}" for name, field in fields.items())
        parts = {"table": table, "fields": listed, "deleted": words.quote(deleted), "keys": words.listed(keys)}
        return [compose(template, **parts) for template in words.tombstones]
    altered = [
        compose(
            words.altered,
            name=words.quote(name),
            type=doubled(kind),
            plain=doubled(kind).partition(" COLLATE ")[0],
            whole=fields[name],
        )
        for name, kind in wanted.items()
        if found.get(name) != kind
    ]
    return [compose("ALTER TABLE {} {}", table, ", ".join(altered))] if altered else []


class Statements:
    """The statements that move a selection of staged rows into a table, in key order where the server allows it.

    Two queries that write the same keys then cannot deadlock. `columns` are those of the table for which the rows have
    values, and `tombstones` the table for changes.
    """

    def __init__(
        self,
        words: Words,
        options: SqlOptions,
        table: SqlName,
        staging: SqlName,
        columns: Sequence[str],
        tombstones: SqlName | None = None,
        conflicts: Conflicts = NO_CONFLICTS,
    ) -> None:
        self.words = words
        self.options = options
        self.table, self.staging = table.sql, staging.sql
        self.columns = columns
        self.conflicts = conflicts
        self.keys = options.key_columns
        self.is_removal = _is_removal(words, options)
        """The expression for whether a staged row is a removal."""
        self._changes = tombstones is not None
        quote, sequence = words.quote, options.sequence_column or ""
        self._parts = {
            "table": self.table, "staging": self.staging, "tombstones": "" if tombstones is None else tombstones.sql,
            "columns": words.listed(columns), "keys": words.listed(self.keys), "sequence": quote(sequence),
            "buried": quote(SEQUENCE), "deleted": quote(DELETED), "removed": quote(REMOVED), "number": quote(NUMBER),
            "stage": quote(STAGE), "operation": quote(OPERATION), "marked": _has(quote(OPERATION), "mark"),
            "is_removal": self.is_removal,
            "target": words.target, "now": words.now,
        }  # fmt: skip

    def moving(self, rows: Selection) -> list[str]:
        """Return the statements that move rows, in order."""
        if self.options.write_mode == "append":
            return [self.append(rows)]
        if self.options.write_mode == "delete":
            return self.remove(rows)
        if self._changes:
            return [self.bury(rows), self.remove_buried(rows), self.write(rows)]
        return [*(self.remove(rows) if self.options.delete_marker else []), self.write(rows)]

    def append(self, rows: Selection) -> str:
        """Return the statement that inserts each row."""
        text = "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {these}{in_order}"
        return self.filled(text, rows, in_order=self.words.in_order)

    def remove(self, rows: Selection) -> list[str]:
        """Return the statements that remove the rows of keys. One statement could not write a key again."""
        removed, ordered = self.words.removed(self, rows), self.options.order_column
        newer = [] if ordered is None else [self.not_newer("target", ordered, removed.values[ordered])]
        keys = {key: removed.values[key] for key in self.keys}
        return [self._delete(removed.source, same, [*removed.conditions, *newer]) for same in self._same(keys)]

    def write(self, rows: Selection) -> str:
        """Return the statement that writes rows that are newer than the table's and than removals."""
        latest = self.words.latest(self, rows, self.columns)
        conditions = [*latest.conditions, *([] if latest.removed is None else [f"NOT {latest.removed}"])]
        if self._changes:
            conditions += [f"NOT {newer}" for newer in self._newer()[self.words.leaves :]]
        return self.filled(
            "{before}INSERT INTO {table}{target} ({columns}) SELECT {columns} FROM {source} WHERE {where}"
            " ORDER BY {order} {upsert}",
            before=latest.before, source=latest.source, where=" AND ".join(conditions), order=latest.order,
            upsert=self.words.upsert(self),
        )  # fmt: skip

    def bury(self, rows: Selection) -> str:
        """Return the statement that writes the sequences of removed keys.

        Its row count is the number of removals that are not stale.
        """
        latest = self.words.latest(self, rows, [*self.keys, self.options.sequence_column or ""])
        newer = [f"NOT {newer}" for newer in self._newer()[: 1 if self.words.leaves else 2]]
        return self.filled(
            "{before}INSERT INTO {tombstones}{target} ({keys}, {buried}, {deleted}) SELECT {keys}, {sequence}, {now}"
            " FROM {source} WHERE {where} ORDER BY {keys} {bury}",
            before=latest.before, source=latest.source, bury=self.filled(self.words.bury),
            where=" AND ".join([*latest.conditions, latest.removed or "false", *newer]),
        )  # fmt: skip

    def remove_buried(self, rows: Selection) -> str:
        """Return the statement that removes the rows whose tombstones this transaction has written."""
        buried = {key: f"removed.{self.words.quote(key)}" for key in self.keys}
        sequence = self.filled("removed.{buried}")
        older = self.not_newer("target", self.options.sequence_column or "", sequence)
        chosen = "({own}) IN (SELECT {keys} FROM {staging} WHERE {these})"
        conditions = [self.filled("removed.{deleted} = {now}"), older]
        conditions += [] if rows.every else [self.filled(chosen, rows, own=", ".join(buried.values()))]
        return self._delete(self._parts["tombstones"], self._same(buried)[0], conditions)

    def survey(self, rows: Selection) -> str:
        """Return the query for the numbers of keys to write and to remove, and of rows that may be tied, and the time.

        And for the numbers of rows that keep a value, and of those that come from another partition than the next newer
        one of their key. Those that may be tied share the newest sequence of their key with another one.
        """
        of_kafka = self.options.sequence_kind == "kafka"
        return self.filled(
            "SELECT count(CASE WHEN {number} = 1 AND NOT {removed} THEN 1 END),"
            " count(CASE WHEN {number} = 1 AND {removed} THEN 1 END), count(CASE WHEN {alike} THEN 1 END), {clock},"
            " count(CASE WHEN {marked} THEN 1 END), {moves}"
            " FROM (SELECT {is_removal} AS {removed}, {operation}, row_number() OVER of_key AS {number}, {ranked}"
            "{apart} FROM {staging} WHERE {these} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {sequence} DESC))"
            " AS ranked",
            rows, clock=self.words.clock, ranked=_RANKED, alike=_ALIKE,
            moves=f"count(CASE WHEN mod(_outfall_apart, {PER_OFFSET}) <> 0 THEN 1 END)" if of_kafka else "0",
            apart=self.filled(", lag({sequence}) OVER of_key - {sequence} AS _outfall_apart") if of_kafka else "",
        )  # fmt: skip

    def tied(self, rows: Selection) -> str:
        """Return the query for the addresses and attempts of rows that share the newest sequence of a key, and differ.

        The parameter `most` is their maximum number. Removals are alike if their keys are. Other rows are compared as
        text, because not every type has an equality, or not that of bytes.
        """
        quote, words = self.words.quote, self.words
        own = {key: quote(f"_outfall_key_{number}") for number, key in enumerate(self.keys)}
        places = {column: f"_outfall_place_{number}" for number, column in enumerate(words.address)}
        return self.filled(
            "SELECT {place}, {stage} FROM (SELECT {places}, {stage}, min(content) OVER of_key AS least,"
            " max(content) OVER of_key AS greatest FROM (SELECT {places}, staged.{stage}, {own}, {content} AS content"
            " FROM (SELECT {address}, {aliased}, {ranked} FROM {staging} WHERE {these}"
            " WINDOW of_key AS (PARTITION BY {keys} ORDER BY {sequence} DESC)) AS ranked"
            " JOIN {staging} AS staged ON {joined} WHERE {alike}) AS candidates"
            " WINDOW of_key AS (PARTITION BY {own})) AS found WHERE least <> greatest ORDER BY {places} LIMIT %(most)s",
            rows, place=words.place.format(*places.values()), places=", ".join(places.values()),
            address=", ".join(f"{column} AS {place}" for column, place in places.items()),
            joined=" AND ".join(f"staged.{column} = ranked.{place}" for column, place in places.items()),
            own=", ".join(own.values()), aliased=", ".join(f"{quote(key)} AS {name}" for key, name in own.items()),
            content=words.content(self.is_removal, [f"staged.{quote(name)}" for name in self.columns]),
            ranked=_RANKED, alike=_ALIKE,
        )  # fmt: skip

    def operations_that_keep(self, rows: Selection) -> str:
        """Return the query for the operations of updates that keep values. The parameter `mark` is `KEPT`."""
        text = "SELECT DISTINCT {operation} FROM {staging} WHERE {these} AND {marked}"
        return self.filled(text, rows)

    def keep(self, rows: Selection, column: str) -> str:
        """Return the statement that gives a column the newest known value, where an update keeps it.

        Known is what an older change of the epoch has, or else the table, since the last removal of the key. The
        parameter `kept` is the column's name between two `KEPT`.
        """
        value = (
            "CASE WHEN target.{first} IS NOT NULL"
            " AND (known.{sequence} IS NULL OR target.{sequence} >= known.{sequence})"
            " THEN target.{column} ELSE known.{column} END AS _outfall_value"
        )
        query = self._keeping(rows, column, value)
        query += self.filled(" AND (known.{sequence} IS NOT NULL OR target.{first} IS NOT NULL)", first=self._first())
        places = [f"found._outfall_place_{number}" for number in range(len(self.words.address))]
        same = " AND ".join(f"kept.{name} = {place}" for name, place in zip(self.words.address, places, strict=True))
        return self.filled(self.words.keep, query=query, same=same, column=self.words.quote(column))

    def unknown(self, rows: Selection, column: str) -> str:
        """Return the query for the addresses, attempts and operations of the newest changes whose value is not known.

        Changes that are older than a tombstone are not among them. The parameters are `kept` and `most`.
        """
        places = [f"_outfall_place_{number}" for number in range(len(self.words.address))]
        same = " AND ".join(f"held.{self.words.quote(key)} = newest.{self.words.quote(key)}" for key in self.keys)
        query = self._keeping(rows, column, "newest.{stage} AS {stage}, newest.{operation} AS {operation}")
        query += self.filled(
            " AND newest.{number} = 1 AND known.{sequence} IS NULL AND target.{first} IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM {tombstones} AS held WHERE {same} AND held.{buried} >= newest.{sequence})",
            first=self._first(), same=same,
        )  # fmt: skip
        return self.filled(
            "SELECT {place}, {stage}, {operation} FROM ({query}) AS found ORDER BY {places} LIMIT %(most)s",
            query=query, place=self.words.place.format(*places), places=", ".join(places),
        )  # fmt: skip

    def _keeping(self, rows: Selection, column: str, wanted: str) -> str:
        """Return the query for the rows that keep a column, beside what is known: `newest`, `known`, `target`."""
        quote = self.words.quote

        def same(other: str) -> str:
            return " AND ".join(f"{other}.{quote(key)} = newest.{quote(key)}" for key in self.keys)

        def since(other: str) -> str:
            # The create after a removal may be a dead letter, and the row before it is another one.
            sequence = quote(self.options.sequence_column or "")
            return f"(newest._outfall_removed IS NULL OR {other}.{sequence} > newest._outfall_removed)"

        address = ", ".join(f"{name} AS _outfall_place_{number}" for number, name in enumerate(self.words.address))
        known = self.filled(f"NOT {{is_removal}} AND NOT {_has(quote(OPERATION), 'kept')}")
        of_newest = {
            "value": quote(self.options.sequence_column or ""),
            "window": self.filled("PARTITION BY {keys} ORDER BY {sequence}"),
        }
        return self.filled(
            "SELECT {places}, {wanted} FROM (SELECT {address}, {stage}, {keys}, {sequence}, {operation},"
            " row_number() OVER (PARTITION BY {keys} ORDER BY {sequence} DESC) AS {number},"
            " {newest_known} AS _outfall_known, {newest_removed} AS _outfall_removed"
            " FROM {staging} WHERE {these}) AS newest"
            " LEFT JOIN (SELECT {keys}, {sequence}, {column} FROM {staging} WHERE {these} AND {known}) AS known"
            " ON {same_known} AND known.{sequence} = newest._outfall_known AND {known_since}"
            " LEFT JOIN {table} AS target ON {same_target} AND {target_since} WHERE {keeps}",
            rows, address=address, known=known,
            newest_known=self.words.newest.format(condition=known, **of_newest),
            newest_removed=self.words.newest.format(condition=self.is_removal, **of_newest),
            same_known=same("known"), same_target=same("target"),
            known_since=since("known"), target_since=since("target"),
            places=", ".join(f"_outfall_place_{number}" for number in range(len(self.words.address))),
            keeps=_has(f"newest.{quote(OPERATION)}", "kept"), column=quote(column),
            wanted=self.filled(wanted, column=quote(column), first=self._first()),
        )  # fmt: skip

    def _first(self) -> str:
        return self.words.quote(self.keys[0])

    def moved(self, rows: Selection, *, stored: bool = False) -> str:
        """Return the query for the addresses and attempts of rows that are older than one of another partition.

        The newer one is in the table, or a tombstone unless `stored`. The parameter `most` is the maximum number of
        rows.
        """
        quote = self.words.quote
        same = " AND ".join(f"held.{quote(key)} = staged.{quote(key)}" for key in self.keys)
        # A generation is compared by what is left without the offset, since a quotient may be rounded.
        newer = (
            "EXISTS (SELECT 1 FROM {from_} AS held WHERE {same} AND {theirs} > {mine}"
            " AND mod({theirs}, {per_offset}) <> mod({mine}, {per_offset})"
            " AND {theirs} - mod({theirs}, {least}) = {mine} - mod({mine}, {least}))"
        )
        units = {"per_offset": PER_OFFSET, "least": PER_GENERATION}
        columns = {self.table: self.filled("held.{sequence}")}
        if not stored:
            columns[self._parts["tombstones"]] = self.filled("held.{buried}")
        elsewhere = " OR ".join(
            compose(newer, from_=table, same=same, theirs=theirs, mine=self.filled("staged.{sequence}"), **units)
            for table, theirs in columns.items()
        )
        return self.filled(
            "SELECT {place}, {stage} FROM {staging} AS staged WHERE {these} AND ({elsewhere})"
            " ORDER BY {address} LIMIT %(most)s",
            rows, place=self.words.place.format(*self.words.address), address=", ".join(self.words.address),
            elsewhere=elsewhere,
        )  # fmt: skip

    def stale(self) -> str:
        """Return the condition that a change of `latest` is not newer than the table or its tombstone."""
        return f"({' OR '.join(self._newer())})"

    def filled(self, template: str, rows: Selection | None = None, **parts: str) -> str:
        """Return a statement with the names of this move, the condition `{these}` of some rows, and more parts."""
        these = {} if rows is None else {"these": rows.condition}
        return compose(template, **{**self._parts, **these, **parts})

    def updated(self) -> list[str]:
        """Return the columns of an existing row that are updated."""
        options = self.options
        # Includes the ordering column, or the row would seem older than its new values.
        wanted = [*options.update_columns, options.ordered_by] if options.update_columns else self.columns
        return [name for name in dict.fromkeys(wanted) if name is not None and name not in self.keys]

    def not_newer(self, table: str, column: str, theirs: str) -> str:
        """Return the condition that a row of a table is not newer than another one; a change must be older."""
        older = "<" if self._changes else "<="
        return compose("({0}.{1} IS NULL OR {0}.{1} {2} {3})", table, self.words.quote(column), older, theirs)

    def _newer(self) -> list[str]:
        """Return the conditions that the table, and a tombstone, has the sequence of a change, or a newer one."""
        columns = {self.table: self._parts["sequence"], self._parts["tombstones"]: self._parts["buried"]}
        same = " AND ".join(f"held.{self.words.quote(key)} = latest.{self.words.quote(key)}" for key in self.keys)
        text = "EXISTS (SELECT 1 FROM {} AS held WHERE {} AND held.{} >= latest.{})"
        return [compose(text, table, same, column, self._parts["sequence"]) for table, column in columns.items()]

    def _delete(self, source: str, same: str, conditions: Sequence[str]) -> str:
        also = "".join(f" AND {condition}" for condition in conditions)
        where = " AND ".join(conditions)
        return compose(self.words.delete, table=self.table, source=source, same=same, where=where, also=also)

    def _same(self, keys: Mapping[str, str]) -> list[str]:
        """Return the conditions under which rows of the table have one of the keys, which stand beside their columns.

        Keys with a NULL have a condition of their own, because no index finds rows by IS NOT DISTINCT FROM.
        """
        quote, nulls = self.words.quote, self.conflicts.nulls
        equal = {key: f"target.{quote(key)} = {value}" for key, value in keys.items()}
        found = [" AND ".join(equal.values())]
        if nulls:
            both = "({} OR target.{} IS NULL AND {} IS NULL)"
            alike = [compose(both, equal[key], quote(key), keys[key]) if key in nulls else equal[key] for key in keys]
            absent = " OR ".join(f"{keys[key]} IS NULL" for key in nulls)
            found.append(" AND ".join([*alike, f"({absent})"]))
        return found


# MariaDB takes a name in ORDER BY of a window for that of a new column, if there is one, before that of the table.
_RANKED = "rank() OVER of_key AS _outfall_newest, count(*) OVER of_key AS _outfall_alike"
"""The rank of a row in its key, and up to its equals the number of rows: those with rank 1 if it has rank 1."""
_ALIKE = "_outfall_newest = 1 AND _outfall_alike > 1"


def _has(operation: str, parameter: str) -> str:
    """Return the condition that an operation contains a parameter, whatever its collation ignores."""
    return f"length(replace({operation}, %({parameter})s, '')) < length({operation})"


def _is_removal(words: Words, options: SqlOptions) -> str:
    if options.operation_column:
        removals = ", ".join(f"'{word}'" for word in REMOVALS)
        return f"lower({words.quote(OPERATION)}) IN ({removals})"
    return f"coalesce({words.quote(MARKER)}, false)" if options.delete_marker else "false"
