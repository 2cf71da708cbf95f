"""Tables that would lose, hide or keep rows without an error: a crash, a policy, a trigger or a rule does it."""

from __future__ import annotations

import re
import uuid
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outfall.capabilities import Guarantee
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError, TargetError
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server
from tests.integration.support.sql import first, mostly_thorough, rows, run
from tests.unit.support.command import done

PARTS: dict[str, Any] = {"parts": 1, "offset_keys": "ledger"}
UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id"}
DELETE: dict[str, Any] = {"write_mode": "delete", "key_columns": "id"}
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"
FILTER = """
CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$;
CREATE TRIGGER filter BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leave_out()
"""
KEEP = """
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER archived BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()
"""


def keyed(made: list[Any], options: dict[str, Any]) -> list[Any]:
    """The rows with a key that routes them, if the sink has parts."""
    return [("key", row) for row in made] if "parts" in options else made


UNLOGGED: list[tuple[str, dict[str, Any]]] = [
    ("CREATE UNLOGGED TABLE t (id bigint, name text)", {}),
    ("CREATE UNLOGGED TABLE t (id bigint, name text)", PARTS),
    (
        "CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id);"
        " CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (2);"
        " CREATE UNLOGGED TABLE high PARTITION OF t DEFAULT",
        {},
    ),
    ("CREATE TABLE t (id bigint, name text); CREATE UNLOGGED TABLE child () INHERITS (t)", {}),
    ('CREATE UNLOGGED TABLE "Base" (id bigint, name text); CREATE VIEW t AS SELECT * FROM "Base"', {}),
    (f"{TABLE}; {{ddl}}; ALTER TABLE outfall.ledger SET UNLOGGED", {}),
    (f"{TABLE}; {{ddl}}; ALTER TABLE dead SET UNLOGGED", {"dead_letter_table": "dead"}),
]


@pytest.mark.parametrize(
    ("ddl", "options"),
    first(1, UNLOGGED),
    ids=["table", "by parts", "partition", "child", "view", "ledger", "dead letters"],
)
def test_what_a_crash_of_the_server_empties_is_refused_with_the_statement_that_keeps_it(
    dsn: str, recovery: str, ddl: str, options: dict[str, Any]
) -> None:
    target = Target(dsn, TABLE)
    support = target.sink(**options).ddl()
    target.run("DROP TABLE t")
    target.run(ddl.format(ddl=support))
    made = keyed(rows(1, 2), options)
    with pytest.raises(TargetError, match="is unlogged") as refused:
        run(target.sink(**options), recovery, 0, made)
    (advice,) = re.findall(r"ALTER TABLE \S+ SET LOGGED", str(refused.value))
    target.run(advice)
    run(target.sink(**options), recovery, 0, made)
    assert target.ids() == [1, 2]


@pytest.mark.thorough
def test_who_accepts_that_a_crash_loses_rows_gets_no_promise_of_exactly_once(
    mortal_postgres: Server, recovery: str
) -> None:
    target = Target(mortal_postgres.new_database(), "CREATE UNLOGGED TABLE t (id bigint, name text)")
    sink = target.sink(allow_unlogged=True)
    assert resolve(sink).guarantee() == Guarantee.AT_LEAST_ONCE
    assert any("does not crash" in each for each in resolve(sink).requirements())
    run(sink, recovery, 0, rows(1, 2))
    mortal_postgres.kill()
    mortal_postgres.start()
    assert target.ids() == []
    run(sink, recovery, 1, rows(3))
    assert target.ids() == [3]


JOINED = "CREATE TABLE b (id bigint, name text); CREATE VIEW t AS SELECT b.* FROM b JOIN b AS other USING (id)"
PUBLISHED = "CREATE TABLE t (id bigint NOT NULL UNIQUE, name text); CREATE PUBLICATION {name} FOR TABLE t"


def own_publication(ddl: str) -> str:
    """Name the publication, whose names are those of the database, not of a schema."""
    return ddl.replace("{name}", f"p_{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    first(
        2,
        [
            (JOINED, {}, "is a view for which the server runs no INSERT"),
            (PUBLISHED, UPSERT, "has no replica identity. The server rejects each UPDATE of"),
            (PUBLISHED, DELETE, "has no replica identity. The server rejects each DELETE of"),
            (PUBLISHED, {"on_existing": "overwrite"}, "has no replica identity. The server rejects each DELETE of"),
            (
                "CREATE TABLE t (id bigint NOT NULL UNIQUE, name text) PARTITION BY RANGE (id);"
                " CREATE TABLE low PARTITION OF t DEFAULT; CREATE PUBLICATION {name} FOR TABLE t",
                UPSERT,
                "has no replica identity",
            ),
            ("CREATE TABLE b (id bigint); CREATE MATERIALIZED VIEW t AS SELECT * FROM b", {}, "a materialized view"),
            ("CREATE TYPE t AS (id bigint, name text)", {}, "is a composite type"),
            ("CREATE SEQUENCE t", {}, "is a sequence"),
        ],
    ),
)
def test_what_the_server_cannot_write_is_refused_before_the_first_row(
    dsn: str, recovery: str, ddl: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigurationError, TargetError), match=message):
        LocalDriver(Target(dsn, own_publication(ddl)).sink(**options), recovery).coordinator().begin(0)


KEYED = "CREATE TABLE {} (id bigint PRIMARY KEY, name text)"
UNIQUE = "CREATE TABLE t (id bigint NOT NULL UNIQUE, name text)"


@pytest.mark.parametrize(
    ("ddl", "options"),
    first(
        1,
        [
            (f"{UNIQUE}; CREATE PUBLICATION {{name}} FOR TABLE t", {}),
            (f"{UNIQUE}; {KEYED.format('other')}; CREATE PUBLICATION {{name}} FOR TABLE other", UPSERT),
            (
                f"{KEYED.format('t')}; CREATE TABLE child () INHERITS (t);"
                " CREATE PUBLICATION {name} FOR TABLE ONLY t",
                UPSERT,
            ),
            (
                f"{KEYED.format('base')}; CREATE TABLE lookup (id bigint);"
                " CREATE PUBLICATION {name} FOR TABLE base, lookup;"
                " CREATE VIEW t AS SELECT * FROM base WHERE id NOT IN (SELECT id FROM lookup)",
                UPSERT,
            ),
        ],
    ),
    ids=["append", "another table", "parent", "view"],
)
def test_a_publication_hinders_nobody_whose_table_it_does_not_concern(
    dsn: str, role: str, recovery: str, ddl: str, options: dict[str, Any]
) -> None:
    target = Target(dsn, own_publication(ddl))
    target.run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; CREATE SCHEMA outfall AUTHORIZATION {role}")
    run(target.sink(dsn=make_conninfo(dsn, user=role), **options), recovery, 0, rows(1))
    assert target.ids() == [1]


def test_a_replica_identity_lets_a_published_table_be_written(dsn: str, recovery: str) -> None:
    target = Target(dsn, own_publication(PUBLISHED))
    run(target.sink(), recovery, 0, rows(1))
    target.run("ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key")
    run(target.sink(**UPSERT, on_existing="resume"), f"{recovery}2", 0, rows(1, 2))
    assert target.ids() == [1, 2]


def test_a_temporary_table_of_some_session_is_no_target(dsn: str, recovery: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as theirs:
        theirs.execute("CREATE TEMPORARY TABLE t (id bigint, name text)")
        found = theirs.execute("SELECT pg_my_temp_schema()::regnamespace::text").fetchone()
        assert found
        with pytest.raises(ConfigurationError, match="is a temporary table"):
            run(PostgresSink(dsn, f"{found[0]}.t"), recovery, 0, rows(1))


def test_a_foreign_partition_is_refused_whose_server_commits_apart(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id)")
    target.run("CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere")
    target.run("CREATE FOREIGN TABLE far PARTITION OF t FOR VALUES FROM (100) TO (200) SERVER elsewhere")
    target.run("CREATE TABLE near PARTITION OF t DEFAULT")
    with pytest.raises(TargetError, match="stores rows in the foreign table far"):
        run(target.sink(), recovery, 0, rows(1))
    target.run("ALTER TABLE t DETACH PARTITION far")
    run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1]


@pytest.mark.parametrize("options", mostly_thorough([DELETE, {"on_existing": "overwrite"}], [DELETE]))
def test_row_security_that_hides_rows_from_a_delete_is_refused(
    dsn: str, role: str, recovery: str, options: dict[str, Any]
) -> None:
    target = Target(dsn, TABLE)
    target.run("INSERT INTO t VALUES (1, 'theirs'), (2, 'ours'); ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    target.run(f"CREATE POLICY ours ON t TO {role} USING (name = 'ours') WITH CHECK (true)")
    target.run(f"GRANT ALL ON t TO {role}; CREATE SCHEMA outfall AUTHORIZATION {role}")
    theirs = make_conninfo(dsn, user=role)
    with pytest.raises(TargetError, match="hides rows"):
        run(target.sink(dsn=theirs, **options), recovery, 0, rows(1))
    target.run(f"CREATE POLICY everything ON t TO {role} USING (true)")
    run(target.sink(dsn=theirs, **options), recovery, 0, rows(1))
    assert target.ids() == ([2] if options == DELETE else [1])


@pytest.mark.parametrize(
    ("keeping", "options"),
    first(
        1,
        mostly_thorough(
            [(KEEP, {}), ("CREATE RULE archived AS ON DELETE TO t DO INSTEAD NOTHING", {}), (KEEP, PARTS)],
            [(KEEP, {}), (KEEP, PARTS)],
        ),
    ),
)
def test_overwrite_is_not_told_where_a_trigger_or_a_rule_keeps_rows(
    dsn: str, recovery: str, keeping: str, options: dict[str, Any]
) -> None:
    target = Target(dsn, TABLE)
    target.run(f"INSERT INTO t VALUES (1, 'old'); {keeping}")
    made = keyed(rows(2), options)
    with pytest.raises(TargetError, match=r"still holds rows.*archived"):
        run(target.sink(on_existing="overwrite", **options), recovery, 0, made)
    assert target.ids() == [1]
    target.run("TRUNCATE t")
    run(target.sink(on_existing="overwrite", **options), recovery, 0, made)
    run(target.sink(on_existing="overwrite", **options), recovery, 1, keyed(rows(3), options))
    assert target.ids() == [2, 3]


@pytest.mark.parametrize(
    "options",
    mostly_thorough([{}, {"dead_letter_table": "dead"}, PARTS], [{"dead_letter_table": "dead"}]),
)
def test_rows_that_a_trigger_skips_are_counted(dsn: str, recovery: str, options: dict[str, Any]) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint CHECK (id <> 3), name text)")
    target.run(FILTER)
    made = rows(1, 2, 3, 4) if "dead_letter_table" in options else rows(1, 2, 4)
    counts = run(target.sink(**options), recovery, 0, keyed(made, options)).counts
    assert (counts["rows_skipped"], counts.get("dead_letters", 0)) == (1, len(made) - 3)
    assert "rows_skipped" not in run(target.sink(**options), recovery, 1, keyed(rows(5), options)).counts
    assert target.ids() == [1, 4, 5]


def test_doctor_tells_what_a_crash_and_triggers_do_to_rows(dsn: str, role: str) -> None:
    target = Target(dsn, TABLE)
    target.run(f"{FILTER}; CREATE RULE also AS ON INSERT TO t DO ALSO NOTIFY t; ALTER TABLE t SET UNLOGGED")
    target.run(f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT ALL ON t TO {role}; CREATE SCHEMA outfall")
    target.run(f"GRANT ALL ON SCHEMA outfall TO {role}")
    given = ("--sink", "postgres", "-o", f"dsn={make_conninfo(dsn, user=role)}", "-o", "table=t")
    text = " ".join(done("doctor", *given, "-o", "allow_unlogged=true").split())
    assert "a crash of the server empties t; rule also, trigger filter may change or skip rows; row security" in text
    target.run("ALTER TABLE t SET LOGGED")
    assert "a crash of the server keeps the rows of t" in " ".join(done("doctor", *given).split())
