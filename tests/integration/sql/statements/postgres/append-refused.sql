CREATE UNLOGGED TABLE "outfall"."staging_t_sink_0123456789ab" ("_outfall_stage" bigint, "id" bigint, "name" character varying(9), "version" bigint)
LOCK TABLE "outfall"."staging_t_sink_0123456789ab" IN ACCESS SHARE MODE
SET CONSTRAINTS ALL IMMEDIATE
INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s) AND ctid >= %(low)s::tid AND ctid < %(high)s::tid
SELECT to_json(shown)::text FROM (SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE ctid = '(0,2)'::tid) AS shown
