CREATE UNLOGGED TABLE "outfall"."refused" ("_outfall_stage" bigint NOT NULL, "row" text NOT NULL, "reason" text NOT NULL, "code" text, "excerpt" text, "step" text NOT NULL, "epoch" bigint, "part" text, "time" timestamp with time zone NOT NULL)
CREATE TABLE "dead" ("row" text NOT NULL, "reason" text NOT NULL, "code" text, "excerpt" text, "step" text NOT NULL, "epoch" bigint, "part" text, "time" timestamp with time zone NOT NULL)
EXPLAIN DELETE FROM "public"."t" AS target USING (SELECT DISTINCT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE false) AS removed WHERE target."id" = removed."id"
SET CONSTRAINTS ALL IMMEDIATE
DELETE FROM "public"."t" AS target USING (SELECT DISTINCT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s)) AS removed WHERE target."id" = removed."id"
ROLLBACK TO SAVEPOINT outfall_1
SELECT "_outfall_stage", count(*) FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" IN (1234567890) GROUP BY 1
LOCK TABLE "outfall"."staging_t_sink_0123456789ab" IN ACCESS SHARE MODE
SAVEPOINT outfall_2
DELETE FROM "public"."t" AS target USING (SELECT DISTINCT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND ctid >= %(low)s::tid AND ctid < %(high)s::tid) AS removed WHERE target."id" = removed."id"
ROLLBACK TO SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
ROLLBACK TO SAVEPOINT outfall_3
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
ROLLBACK TO SAVEPOINT outfall_8
RELEASE SAVEPOINT outfall_8
SAVEPOINT outfall_9
RELEASE SAVEPOINT outfall_9
SAVEPOINT outfall_10
ROLLBACK TO SAVEPOINT outfall_10
RELEASE SAVEPOINT outfall_10
SAVEPOINT outfall_11
ROLLBACK TO SAVEPOINT outfall_11
RELEASE SAVEPOINT outfall_11
SAVEPOINT outfall_12
RELEASE SAVEPOINT outfall_12
SAVEPOINT outfall_13
RELEASE SAVEPOINT outfall_13
SAVEPOINT outfall_14
RELEASE SAVEPOINT outfall_14
SAVEPOINT outfall_15
RELEASE SAVEPOINT outfall_15
SAVEPOINT outfall_16
RELEASE SAVEPOINT outfall_16
SAVEPOINT outfall_17
RELEASE SAVEPOINT outfall_17
SAVEPOINT outfall_18
RELEASE SAVEPOINT outfall_18
SAVEPOINT outfall_19
DELETE FROM "public"."t" AS target USING (SELECT DISTINCT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE ctid = %(place)s::tid) AS removed WHERE target."id" = removed."id"
ROLLBACK TO SAVEPOINT outfall_19
RELEASE SAVEPOINT outfall_19
INSERT INTO "dead" ("row", "reason", "code", "excerpt", "step", "epoch", "part", "time") VALUES ((SELECT to_json(shown)::text FROM (SELECT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE ctid = '(0,2)'::tid) AS shown), %(reason)s, %(code)s, %(excerpt)s, %(step)s, %(epoch)s, %(part)s, %(time)s)
DELETE FROM "outfall"."refused" WHERE NOT EXISTS (SELECT 1 FROM "outfall"."attempts" AS live WHERE live.stage = "outfall"."refused"."_outfall_stage")
