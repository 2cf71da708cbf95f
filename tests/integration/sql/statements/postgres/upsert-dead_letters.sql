CREATE UNLOGGED TABLE "outfall"."refused" ("_outfall_stage" bigint NOT NULL, "row" text NOT NULL, "reason" text NOT NULL, "code" text, "excerpt" text, "step" text NOT NULL, "epoch" bigint, "part" text, "time" timestamp with time zone NOT NULL)
CREATE TABLE "dead" ("row" text NOT NULL, "reason" text NOT NULL, "code" text, "excerpt" text, "step" text NOT NULL, "epoch" bigint, "part" text, "time" timestamp with time zone NOT NULL)
CREATE UNLOGGED TABLE "outfall"."staging_t_sink_0123456789ab" ("_outfall_stage" bigint, "_outfall_row" bigint, "id" bigint, "name" character varying(9), "version" bigint)
EXPLAIN WITH latest AS (SELECT DISTINCT ON ("id") "id", "name", "version", false AS "_outfall_gone" FROM "outfall"."staging_t_sink_0123456789ab" WHERE false ORDER BY "id", "_outfall_stage" DESC, "_outfall_row" DESC) INSERT INTO "public"."t" AS target ("id", "name", "version") SELECT "id", "name", "version" FROM latest WHERE NOT "_outfall_gone" ORDER BY "id" ON CONFLICT ("id") DO UPDATE SET "name" = EXCLUDED."name", "version" = EXCLUDED."version"
SET CONSTRAINTS ALL IMMEDIATE
WITH latest AS (SELECT DISTINCT ON ("id") "id", "name", "version", false AS "_outfall_gone" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) ORDER BY "id", "_outfall_stage" DESC, "_outfall_row" DESC) INSERT INTO "public"."t" AS target ("id", "name", "version") SELECT "id", "name", "version" FROM latest WHERE NOT "_outfall_gone" ORDER BY "id" ON CONFLICT ("id") DO UPDATE SET "name" = EXCLUDED."name", "version" = EXCLUDED."version"
ROLLBACK TO SAVEPOINT outfall_1
SELECT "_outfall_stage", count(*) FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" IN (1234567890) GROUP BY 1
LOCK TABLE "outfall"."staging_t_sink_0123456789ab" IN ACCESS SHARE MODE
CREATE TEMPORARY TABLE pg_temp._outfall_ranks (place tid, replaced tid, removal tid, first tid, rank bigint) ON COMMIT DROP
INSERT INTO pg_temp._outfall_ranks (place, replaced, removal, first, rank) SELECT _outfall_place, _outfall_replaced, CASE WHEN _outfall_stretch > 0 THEN first_value(_outfall_place) OVER of_stretch END, CASE WHEN _outfall_stretch > 0 THEN nth_value(_outfall_place, 2) OVER of_stretch ELSE first_value(_outfall_place) OVER of_stretch END, CASE WHEN _outfall_n = 1 THEN row_number() OVER (PARTITION BY _outfall_n = 1 ORDER BY _outfall_place) - 1 END FROM (SELECT *, count(*) FILTER (WHERE _outfall_gone) OVER (PARTITION BY "_outfall_key_0" ORDER BY _outfall_n DESC) AS _outfall_stretch FROM (SELECT "id" AS "_outfall_key_0", false AS _outfall_gone, ctid AS _outfall_place, row_number() OVER of_key AS _outfall_n, lead(ctid) OVER of_key AS _outfall_replaced FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) WINDOW of_key AS (PARTITION BY "id" ORDER BY "id", "_outfall_stage" DESC, "_outfall_row" DESC)) AS numbered) AS placed WINDOW of_stretch AS (PARTITION BY "_outfall_key_0", _outfall_stretch ORDER BY _outfall_n DESC)
CREATE INDEX ON pg_temp._outfall_ranks ("rank")
CREATE INDEX ON pg_temp._outfall_ranks ("place")
ANALYZE pg_temp._outfall_ranks
SELECT count(rank) FROM pg_temp._outfall_ranks
SAVEPOINT outfall_2
WITH latest AS (SELECT "id", "name", "version", false AS "_outfall_gone" FROM "outfall"."staging_t_sink_0123456789ab" WHERE ctid = ANY(ARRAY(SELECT "place" FROM pg_temp._outfall_ranks WHERE rank >= %(low)s AND rank < %(high)s))) INSERT INTO "public"."t" AS target ("id", "name", "version") SELECT "id", "name", "version" FROM latest WHERE NOT "_outfall_gone" ORDER BY "id" ON CONFLICT ("id") DO UPDATE SET "name" = EXCLUDED."name", "version" = EXCLUDED."version"
ROLLBACK TO SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
ROLLBACK TO SAVEPOINT outfall_3
RELEASE SAVEPOINT outfall_3
SELECT place::text FROM pg_temp._outfall_ranks WHERE rank = %s
SAVEPOINT outfall_4
RELEASE SAVEPOINT outfall_4
SELECT replaced::text FROM pg_temp._outfall_ranks WHERE place = %s::tid
INSERT INTO "dead" ("row", "reason", "code", "excerpt", "step", "epoch", "part", "time") VALUES ((SELECT to_json(shown)::text FROM (SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE ctid = '(0,2)'::tid) AS shown), %(reason)s, %(code)s, %(excerpt)s, %(step)s, %(epoch)s, %(part)s, %(time)s)
DELETE FROM "outfall"."refused" WHERE NOT EXISTS (SELECT 1 FROM "outfall"."attempts" AS live WHERE live.stage = "outfall"."refused"."_outfall_stage")
