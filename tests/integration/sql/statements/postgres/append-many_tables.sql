CREATE UNLOGGED TABLE "outfall"."staging_sink_28cf1d1af0db_0123456789ab" ("_outfall_stage" bigint, "_outfall_table" text, "id" bigint, "name" text, "version" bigint)
CREATE INDEX ON "outfall"."staging_sink_28cf1d1af0db_0123456789ab" ("_outfall_table")
CREATE UNLOGGED TABLE "outfall"."staging_sink_28cf1d1af0db_0123456789ab" ("_outfall_stage" bigint, "_outfall_table" text, "id" bigint, "name" character varying(9), "version" bigint)
SELECT target FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND step = %(step)s AND target IN (%(target_0)s, %(target_1)s)
SELECT EXISTS (SELECT 1 FROM "outfall"."ledger" WHERE step = %(step)s AND incarnation <> %(incarnation)s AND epoch IS NOT NULL)
EXPLAIN INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE false
EXPLAIN INSERT INTO "public"."t2" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE false
INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND "_outfall_table" IN (%(table_0)s)
INSERT INTO "public"."t2" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND "_outfall_table" IN (%(table_0)s)
INSERT INTO "outfall"."ledger" (incarnation, target, step, generation, begun, epoch, token, published_token) VALUES (%(incarnation)s, %(target_0)s, %(step)s, %(generation)s, -1, %(epoch)s, %(token)s, %(token)s), (%(incarnation)s, %(target_1)s, %(step)s, %(generation)s, -1, %(epoch)s, %(token)s, %(token)s)
UPDATE "outfall"."attempts" SET incarnation = %s WHERE stage IN (1234567890)
SELECT stage, staging FROM "outfall"."attempts" WHERE substring(staging, 1, %(length)s) = %(staging)s AND (incarnation = %(incarnation)s AND generation < %(generation)s OR NOT EXISTS (SELECT 1 FROM "outfall"."ledger" AS ledger WHERE ledger.incarnation = "outfall"."attempts".incarnation))
DELETE FROM "outfall"."staging_sink_28cf1d1af0db_0123456789ab" WHERE NOT EXISTS (SELECT 1 FROM "outfall"."attempts" AS live WHERE live.stage = "outfall"."staging_sink_28cf1d1af0db_0123456789ab"."_outfall_stage")
SELECT target FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND step = %(step)s AND target IN (%(target_0)s)
