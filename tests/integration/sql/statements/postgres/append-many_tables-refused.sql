CREATE UNLOGGED TABLE "outfall"."staging_sink_28cf1d1af0db_0123456789ab" ("_outfall_stage" bigint, "_outfall_table" text, "id" bigint, "name" character varying(9), "version" bigint)
CREATE INDEX ON "outfall"."staging_sink_28cf1d1af0db_0123456789ab" ("_outfall_table")
SELECT target FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND step = %(step)s AND target IN (%(target_0)s, %(target_1)s)
SELECT EXISTS (SELECT 1 FROM "outfall"."ledger" WHERE step = %(step)s AND incarnation <> %(incarnation)s AND epoch IS NOT NULL)
EXPLAIN INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE false
EXPLAIN INSERT INTO "public"."t2" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE false
INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND "_outfall_table" IN (%(table_0)s)
INSERT INTO "public"."t2" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND "_outfall_table" IN (%(table_0)s)
ROLLBACK TO SAVEPOINT outfall_1
SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
ROLLBACK TO SAVEPOINT outfall_3
ROLLBACK
SELECT target FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND step = %(step)s AND target IN (%(target_0)s)
LOCK TABLE "outfall"."staging_sink_28cf1d1af0db_0123456789ab" IN ACCESS SHARE MODE
SET CONSTRAINTS ALL IMMEDIATE
INSERT INTO "public"."t2" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND "_outfall_table" IN (%(table_0)s) AND ctid >= %(low)s::tid AND ctid < %(high)s::tid
ROLLBACK TO SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_3
SAVEPOINT outfall_4
ROLLBACK TO SAVEPOINT outfall_4
RELEASE SAVEPOINT outfall_4
SAVEPOINT outfall_5
ROLLBACK TO SAVEPOINT outfall_5
RELEASE SAVEPOINT outfall_5
SAVEPOINT outfall_6
ROLLBACK TO SAVEPOINT outfall_6
RELEASE SAVEPOINT outfall_6
SAVEPOINT outfall_7
ROLLBACK TO SAVEPOINT outfall_7
RELEASE SAVEPOINT outfall_7
SAVEPOINT outfall_8
RELEASE SAVEPOINT outfall_8
SAVEPOINT outfall_9
ROLLBACK TO SAVEPOINT outfall_9
RELEASE SAVEPOINT outfall_9
SAVEPOINT outfall_10
ROLLBACK TO SAVEPOINT outfall_10
RELEASE SAVEPOINT outfall_10
SELECT to_json(shown)::text FROM (SELECT "id", "name", "version", "_outfall_table" AS "place" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE ctid = '(0,2)'::tid) AS shown
